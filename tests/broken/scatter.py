"""State scatter with one line changed."""

from __future__ import annotations

from typing import Any

from broken.twin import SCATTER, Twin, edited

SLOT = "slot = tl.load(dst_indices + i * dst_step).to(tl.int64)"
STEP = "step = tl.load(steps + i * steps_step).to(tl.int64)"
ROW = "tl.load(rows + i * rows_step).to(tl.int64)"


def _scatter(name: str, old: str, new: str, *laws: str, **traits: Any) -> Twin:
    return edited(SCATTER, name, old, new, *laws, **traits)


MASKS = (
    _scatter("one unit too many", "mask = e < entry", "mask = e <= entry", "containment"),
    _scatter(
        "one unit too few",
        "mask = e < entry",
        "mask = e < entry - 1",
        "agreement",
        "complete-write",
    ),
    _scatter("second block dropped", "triton.cdiv(entry // unit, _BLOCK)", "1", "agreement"),
)

WATCHED = (
    _scatter(
        "block read past the entry's end",
        "tl.load(from_e, mask)",
        "tl.load(from_e)",
        "memory-clean",
    ),
    _scatter(
        "blocks overlap by a unit",
        "(program % blocks).to(tl.int64) * BLOCK",
        "(program % blocks).to(tl.int64) * (BLOCK - 1)",
        "race-free",
    ),
)

ADDRESSES = (
    *(
        _scatter(f"{product} in 32 bits", product, f"({product}).to(tl.int32)", "64-bit-addressing")
        for product in ("slot * dst_slot", "row * src_row", "step * src_step")
    ),
    _scatter(
        "layer times stride in 32 bits",
        "layer * dst_layer",
        "(layer * dst_layer).to(tl.int32)",
        "64-bit-addressing",
    ),
)

INDICES = (
    _scatter(
        "null_slot ignored",
        " | (slot == null_slot)",
        "",
        "unnamed-slots",
    ),
    _scatter("slot 0 always null", "(slot < 0)", "(slot <= 0)", "agreement"),
    _scatter(
        "slot past the end clamped",
        SLOT,
        f"{SLOT}\n    slot = tl.where(slot >= S, S - 1, slot)",
        "inactive-requests",
    ),
    _scatter(
        "negative slot counts from the end",
        SLOT,
        f"{SLOT}\n    slot = tl.where(slot < 0, slot + S, slot)",
        "inactive-requests",
    ),
    _scatter(
        "slot narrowed before its check",
        SLOT,
        SLOT.replace(".to(", ".to(tl.int32).to("),
        "inactive-requests",
    ),
    _scatter(
        "step clamped, not checked",
        STEP,
        f"{STEP}\n    step = tl.minimum(tl.maximum(step, 0), D - 1)",
        *("index-garbage", "inactive-requests"),
    ),
    _scatter(
        "step narrowed before its check",
        STEP,
        STEP.replace(".to(", ".to(tl.int32).to("),
        "inactive-requests",
    ),
    _scatter(
        "source row clamped, not checked",
        ROW,
        "tl.minimum(tl.maximum(tl.load(rows + i * rows_step), 0), R - 1).to(tl.int64)",
        "inactive-requests",
    ),
    _scatter(
        "source row narrowed before its check",
        ROW,
        ROW.replace(".to(", ".to(tl.int32).to("),
        "inactive-requests",
    ),
    _scatter("source rows ignored", "else " + ROW, "else i % R", "batch-invariance"),
)

HOST = (
    _scatter(
        "duplicates not refused",
        "    if validate_indices:",
        "    if validate_indices and not validate_indices:",
        "duplicates-refused",
    ),
    _scatter(
        "duplicates without a step refused",
        "    active &= (steps >= 0) & (steps < D) & (rows >= 0) & (rows < R)\n",
        "",
        "duplicates-refused",
    ),
)

TWINS = (*MASKS, *WATCHED, *ADDRESSES, *INDICES, *HOST)
