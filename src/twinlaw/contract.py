"""The contract language: what a fused op accepts, declared once, as data.

A :class:`Contract` is a list of arguments (dims by name, layout, dtypes, access) and of relations
between dims. Everything else is derived from it: the validator (:meth:`Contract.check`), the error
texts, the table in the docs (:meth:`Contract.table`) and, elsewhere, the generated inputs.

Layouts are written one token a dim, from the outermost in::

    *       any stride
    1       unit stride (the last dim)
    dense   this dim and all to its right are row-major without gaps

so ``"* * * 1"`` frees all strides but the last, and ``"dense"`` alone is a contiguous tensor.
A dim of size 1 and an empty tensor have no layout. A tensor that is written (``access`` ``"w"`` or
``"rw"``) may not overlap itself nor share an element with another argument; both are decided
exactly, by solving for two index tuples with one address.

This module, :mod:`twinlaw.memory` and :mod:`twinlaw.overlap` use the standard library only: a
tensor is what looks like a ``torch.Tensor``.
"""

from __future__ import annotations

import numbers
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

from twinlaw.memory import Accepted, Memory, SameMetadata
from twinlaw.overlap import View, overlaps_itself, share_memory

__all__ = [
    "BITS",
    "FLOATS",
    "INDICES",
    "Arg",
    "Clause",
    "Contract",
    "ContractTypeError",
    "ContractValueError",
    "Dim",
    "Rule",
    "Scalar",
]

FLOATS = ("float16", "bfloat16", "float32")
INDICES = ("int32", "int64")
BITS = ("any dtype of 1, 2, 4 or 8 bytes",)
"""For ops that move bits: every dtype whose element has 1, 2, 4 or 8 bytes."""

Access = Literal["r", "w", "rw"]
F = TypeVar("F", bound=Callable[..., Any])


class ContractValueError(ValueError):
    """An argument breaks a clause of the op's contract (``.clause``); no memory was touched."""

    clause: Clause


class ContractTypeError(TypeError):
    """An argument is of the wrong kind for the op's contract (``.clause``)."""

    clause: Clause


# --- the declarations ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Arg:
    """A tensor argument.

    ``dims`` names its dims from the outermost in (``"N HV V K"``); a number is a fixed size and a
    last name with a star (``"L S *E"``) stands for any number of dims. ``indexes`` names the dim
    whose positions the values name; ``unique`` says that two active requests may not name the
    same one. ``reason`` says why a clause is kept for which the kernel itself has no need.
    """

    name: str
    dims: str
    layout: str
    dtypes: tuple[str, ...]
    access: Access = "r"
    optional: bool = False
    same_dtype: str | None = None
    indexes: str | None = None
    unique: bool = False
    reason: str | None = None

    @property
    def dim_names(self) -> tuple[str, ...]:
        """The named dims, without the variadic one."""
        return tuple(d for d in self.dims.split() if not d.startswith("*"))

    @property
    def rest(self) -> str | None:
        """The name of the variadic dims, if any."""
        last = self.dims.split()[-1]
        return last[1:] if last.startswith("*") else None

    @property
    def written(self) -> bool:
        return "w" in self.access

    @property
    def dense_from(self) -> int | None:
        """The first dim of the dense suffix; None when the layout has none."""
        tokens = self.layout.split()
        return tokens.index("dense") if "dense" in tokens else None

    @property
    def unit_last(self) -> bool:
        return self.layout.split()[-1] == "1"


@dataclass(frozen=True)
class Scalar:
    """A scalar argument: a ``real`` number, a ``flag`` (bool) or an ``int?`` (int or None)."""

    name: str
    kind: Literal["real", "flag", "int?"]
    doc: str = ""


@dataclass(frozen=True)
class Dim:
    """The range of a dim, and the formula (over other dims) that a computed one follows.

    ``edges`` are sizes worth trying: those at which a kernel's blocks end. ``reason`` says why the
    range is kept where the kernel itself has no need of it.
    """

    name: str
    least: int = 0
    most: int | None = None
    of: str | None = None
    doc: str = ""
    edges: tuple[int, ...] = ()
    reason: str | None = None


@dataclass(frozen=True)
class Rule:
    """A relation between dims that a range can't say; ``argument`` is named when it's broken."""

    argument: str
    text: str
    holds: Callable[[Mapping[str, Any]], bool]


# --- clauses ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clause:
    """One thing that a contract demands of one argument."""

    argument: str
    kind: str
    text: str
    broken: Callable[[_Call], str | None] = field(repr=False, compare=False)
    """The rest of the error sentence (what came, the fix) when the call breaks the clause."""
    error: type[ContractValueError] | type[ContractTypeError] = field(
        default=ContractValueError, repr=False, compare=False
    )
    reason: str | None = None

    def __str__(self) -> str:
        return f"{self.argument}: {self.kind}"


@dataclass
class _Call:
    """The facts of one call, each read once and only when a clause asks."""

    args: tuple[Arg, ...]
    values: Mapping[str, Any]

    @cached_property
    def readings(self) -> dict[str, View | str]:
        """By tensor argument: its metadata, or what keeps a kernel from its memory."""
        present = ((a.name, self.values[a.name]) for a in self.args)
        return {name: _read(value) for name, value in present if _looks_like_tensor(value)}

    def view(self, name: str) -> View | None:
        reading = self.readings.get(name)
        return reading if isinstance(reading, View) else None

    @cached_property
    def views(self) -> dict[str, View]:
        return {name: r for name, r in self.readings.items() if isinstance(r, View)}

    @cached_property
    def device(self) -> str:
        """The device of most arguments: a lone other one is the one at fault."""
        return Counter(v.device for v in self.views.values()).most_common(1)[0][0]

    @cached_property
    def dims(self) -> dict[str, Any]:
        """The size of each named dim, as most arguments have it: a lone other is at fault."""
        sizes: dict[str, list[Any]] = {}
        for a in self.args:
            if view := self.view(a.name):
                for name, size in zip(a.dim_names, view.shape, strict=False):
                    sizes.setdefault(name, []).append(size)
                if a.rest:
                    sizes.setdefault(a.rest, []).append(view.shape[len(a.dim_names) :])
        return {name: Counter(read).most_common(1)[0][0] for name, read in sizes.items()}


def _name(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _looks_like_tensor(value: object) -> bool:
    return all(hasattr(type(value), name) for name in ("stride", "data_ptr", "element_size"))


def _read(tensor: Any) -> View | str:
    """The metadata of a tensor, or what keeps a kernel from reading its memory as it stands."""
    layout = str(tensor.layout).removeprefix("torch.")
    if tensor.is_nested:
        return "a nested tensor"
    if layout != "strided":
        return f"a {layout} tensor"
    if tensor.is_quantized:
        return "a quantized tensor"
    if tensor.device.type == "meta":
        return "a meta tensor, which has no memory"
    if tensor.is_neg() or tensor.is_conj():
        return "a lazily negated or conjugated view (call resolve_neg() or resolve_conj())"
    try:
        with warnings.catch_warnings():  # a fake tensor warns before it answers 0
            warnings.simplefilter("ignore")
            address = tensor.data_ptr()
    except RuntimeError:
        return f"a {type(tensor).__name__} without memory of its own"
    shape = tuple(tensor.shape)
    if not address and 0 not in shape:
        return f"a {type(tensor).__name__} without memory of its own"
    return View(
        shape,
        tuple(tensor.stride()),
        str(tensor.dtype).removeprefix("torch."),
        tensor.element_size(),
        str(tensor.device),
        address,
    )


def _is_kind(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "flag"
    if kind == "int?":
        return value is None or isinstance(value, int)
    return kind == "real" and isinstance(value, numbers.Real)


_KINDS = {"real": "a real number", "flag": "True or False", "int?": "an int or None"}


def _dense(view: View, first: int) -> bool:
    expected = 1
    for n, stride in zip(reversed(view.shape[first:]), reversed(view.strides), strict=False):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True


@dataclass(frozen=True)
class Contract:
    """What one op accepts; ``args`` and ``scalars`` stand in the order of its parameters."""

    op: str
    parameters: tuple[Arg | Scalar, ...]
    dims: tuple[Dim, ...] = ()
    rules: tuple[Rule, ...] = ()
    serving: tuple[Mapping[str, Any], ...] = ()
    """Sizes of the free dims at which engines call the op."""
    dropped: frozenset[str] = frozenset()
    """Names of clauses left out; only tests of the suite's own power drop any."""
    _clauses: tuple[Clause, ...] = field(init=False, repr=False, compare=False)
    guard: Callable[[Sequence[Any]], SameMetadata | None] | None = field(
        default=None, repr=False, compare=False
    )
    """Makes a fast test for tensors like given ones; see :class:`twinlaw.memory.Memory`."""
    _memory: Memory = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kept = tuple(c for c in self._derive() if str(c) not in self.dropped)
        object.__setattr__(self, "_clauses", kept)
        tensors = [i for i, p in enumerate(self.parameters) if isinstance(p, Arg)]
        optional = [i for i in tensors if getattr(self.parameters[i], "optional", False)]
        memory = Memory(len(self.parameters), tensors, optional, self.guard)
        object.__setattr__(self, "_memory", memory)

    @property
    def args(self) -> tuple[Arg, ...]:
        return tuple(p for p in self.parameters if isinstance(p, Arg))

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return tuple(p for p in self.parameters if isinstance(p, Scalar))

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """Every clause, in the order in which :meth:`check` looks at them."""
        return self._clauses

    def arg(self, name: str) -> Arg:
        return next(a for a in self.args if a.name == name)

    def without(self, *clauses: Clause) -> Contract:
        """The same contract with ``clauses`` dropped: a validator that is too loose."""
        return replace(self, dropped=self.dropped | {str(c) for c in clauses})

    def with_layout(self, argument: str, layout: str) -> Contract:
        """The same contract with another layout for one argument, narrower or wider."""
        changed = tuple(
            replace(p, layout=layout) if p.name == argument and isinstance(p, Arg) else p
            for p in self.parameters
        )
        return replace(self, parameters=changed)

    # -- checking --------------------------------------------------------------------------------

    def check(self, *values: Any) -> None:
        """Accept the arguments of one call, given in the order of ``parameters``, or raise.

        The verdict on shapes, strides, dtypes and devices is remembered, so a call that looks like
        an earlier one costs a dictionary look-up and a comparison of address ranges.

        Raises :class:`ContractTypeError` for an argument of the wrong kind and
        :class:`ContractValueError` for any other broken clause. No element is read or written.
        """
        seen = self._memory.find(values)
        if seen is None:
            self._check_slowly(values)
            return
        addresses = self._memory.addresses(values)
        if not seen.surely_disjoint(addresses):  # their ranges interleave: decide it exactly
            self._check_slowly(values)
            seen.found_disjoint(addresses)

    def forget(self) -> None:
        """Forget every signature that was accepted; the next calls are checked from scratch."""
        self._memory.forget()

    def _check_slowly(self, values: Sequence[Any]) -> None:
        named = zip((p.name for p in self.parameters), values, strict=True)
        call = _Call(self.args, dict(named))
        for clause in self._clauses:
            if (got := clause.broken(call)) is not None:
                error = clause.error(f"{clause.text}{got}")
                error.clause = clause
                raise error
        self._memory.keep(values, self._accepted(call))

    def _accepted(self, call: _Call) -> Accepted:
        names = list(call.views)
        written = [a.name for a in self.args if a.written and a.name in call.views]
        pairs = {
            (min(names.index(w), j), max(names.index(w), j))
            for w in written
            for j, other in enumerate(names)
            if other != w
        }
        spans = [v.nbytes_spanned for v in call.views.values()]
        live = tuple(sorted((i, j) for i, j in pairs if spans[i] and spans[j]))
        return Accepted(spans, live, {tuple(v.address for v in call.views.values())})

    # -- clauses from declarations ---------------------------------------------------------------

    def _derive(self) -> Iterator[Clause]:
        for p in self.parameters:
            yield _kind_clause(p)
        for a in self.args:
            yield _plain_clause(a)
        for a in self.args:
            yield _rank_clause(a)
            yield _dtype_clause(a)
            if a.same_dtype:
                yield _same_dtype_clause(a, a.same_dtype)
        for a in self.args:
            yield _device_clause(a)
        for a in self.args:
            yield _shape_clause(a)
        for d in self.dims:
            if (d.least or d.most) and (holder := self._holder(d.name)):
                yield _range_clause(holder, d)
        for rule in self.rules:
            yield _rule_clause(rule)
        for a in self.args:
            if a.unit_last:
                yield _unit_clause(a)
            if a.dense_from is not None:
                yield _dense_clause(a, a.dense_from)
            if a.written and a.dense_from != 0:
                yield _overlap_clause(a)
        for i, a in enumerate(self.args):
            for b in self.args[i + 1 :]:
                if a.written or b.written:
                    yield _sharing_clause(*((a, b) if a.written else (b, a)))

    def _holder(self, dim: str) -> Arg | None:
        return next((a for a in self.args if dim in a.dim_names), None)

    # -- telling ---------------------------------------------------------------------------------

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """One row a parameter: name, shape, dtypes, legal layout, access."""
        words = {"r": "read", "w": "written", "rw": "read and written"}
        rows = []
        for p in self.parameters:
            if isinstance(p, Scalar):
                rows.append((p.name, "", _KINDS[p.kind], p.doc, "read"))
                continue
            shape = "[" + p.dims.replace(" ", ", ") + "]" + (" or None" if p.optional else "")
            dtypes = ", ".join(_SHORT.get(t, t) for t in p.dtypes)
            dtypes = f"as {p.same_dtype}" if p.same_dtype else dtypes
            rows.append((p.name, shape, dtypes, _layout_words(p), words[p.access]))
        return rows

    def relations(self) -> list[str]:
        """The ranges of dims and the relations between them, one sentence each."""
        told = ["Strides of other dims are free; what is written may not overlap anything."]
        for d in self.dims:
            low = (
                f"{d.name} >= {d.least}" if d.most is None else f"{d.least} <= {d.name} <= {d.most}"
            )
            told.append(f"{d.name} = {d.of}" if d.of else low)
            if d.doc:
                told[-1] += f" ({d.doc})"
        return told + [r.text.replace("`", "") for r in self.rules]

    def table(self) -> str:
        """The contract as plain text, for docstrings."""
        rows = [("argument", "shape", "dtype", "layout", "access"), *self.rows()]
        widths = [max(len(r[i]) for r in rows) for i in range(4)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(r, [*widths, 0], strict=True)) for r in rows]
        lines.insert(
            1, "  ".join("-" * len(line) for line in [" " * w for w in widths] + ["access"])
        )
        return "\n".join([*(line.rstrip() for line in lines), "", *self.relations()])

    def documents(self, op: F) -> F:
        """Decorator: put the table at the end of the op's docstring."""
        table = "\n".join(f"        {line}".rstrip() for line in self.table().splitlines())
        op.__doc__ = f"{(op.__doc__ or '').rstrip()}\n\n    Contract::\n\n{table}\n    "
        return op


_FLAG = {"flag": "any object is true or false; one that is no bool is an argument out of place"}


def _kind_clause(p: Arg | Scalar) -> Clause:
    if isinstance(p, Scalar):
        kind, wanted = p.kind, _KINDS[p.kind]

        def broken_scalar(call: _Call) -> str | None:
            value = call.values[p.name]
            return None if _is_kind(value, kind) else f": got {_name(value)}"

        text = f"`{p.name}` must be {wanted}"
        return Clause(p.name, "kind", text, broken_scalar, ContractTypeError, _FLAG.get(kind))

    def broken(call: _Call) -> str | None:
        value = call.values[p.name]
        if _looks_like_tensor(value) or (p.optional and value is None):
            return None
        return f": got {_name(value)}"

    text = f"`{p.name}` must be a tensor" + (" or None" if p.optional else "")
    return Clause(p.name, "kind", text, broken, ContractTypeError)


def _plain_clause(a: Arg) -> Clause:
    def broken(call: _Call) -> str | None:
        reading = call.readings.get(a.name)
        return (
            f": got {reading}; pass an ordinary strided tensor"
            if isinstance(reading, str)
            else None
        )

    return Clause(a.name, "plain", f"`{a.name}` must be a tensor in plain strided memory", broken)


def _rank_clause(a: Arg) -> Clause:
    least = len(a.dim_names)

    def broken(call: _Call) -> str | None:
        view = call.view(a.name)
        if view is None or len(view.shape) == least or (a.rest and len(view.shape) > least):
            return None
        return f" [{a.dims.replace(' ', ', ')}]: got {view}"

    dims = "1D" if least == 1 else f"a {least}D tensor"
    if a.rest:
        dims = f"a tensor of at least {least} dims"
    return Clause(a.name, "rank", f"`{a.name}` must be {dims}", broken)


def _dtype_clause(a: Arg) -> Clause:
    def broken(call: _Call) -> str | None:
        view = call.view(a.name)
        if view is None or view.dtype in a.dtypes:
            return None
        if a.dtypes == BITS and view.itemsize in (1, 2, 4, 8):
            return None
        return f": got {view.dtype}; convert it once, where it is made"

    if a.dtypes == BITS:
        text = f"`{a.name}` must have elements of 1, 2, 4 or 8 bytes"
    else:
        text = f"`{a.name}` must be {', '.join(a.dtypes[:-1])} or {a.dtypes[-1]}"
    return Clause(a.name, "dtype", text, broken)


def _same_dtype_clause(a: Arg, other: str) -> Clause:
    def broken(call: _Call) -> str | None:
        mine, theirs = call.view(a.name), call.view(other)
        if mine is None or theirs is None or mine.dtype == theirs.dtype:
            return None
        return f": got {mine.dtype} and {theirs.dtype}; bits are moved, not converted"

    return Clause(a.name, "same dtype", f"`{a.name}` must have the dtype of `{other}`", broken)


def _device_clause(a: Arg) -> Clause:
    def broken(call: _Call) -> str | None:
        view = call.view(a.name)
        if view is None or view.device == call.device:
            return None
        return f": got {view.device} while the others are on {call.device}; move it there"

    text = f"`{a.name}` must be on the device of the others"
    reason = "a kernel runs on one device and cannot reach another's memory"
    return Clause(a.name, "device", text, broken, reason=reason)


def _shape_clause(a: Arg) -> Clause:
    def broken(call: _Call) -> str | None:
        view = call.view(a.name)
        if view is None:
            return None
        wanted = [int(d) if d.isdigit() else call.dims[d] for d in a.dim_names]
        if a.rest:
            wanted += call.dims[a.rest]
        if tuple(wanted) == view.shape:
            return None
        return f" = {tuple(wanted)}: got {view}; pass the sizes that the other arguments have"

    shape = a.dims.replace(" ", ", ")
    return Clause(a.name, "shape", f"`{a.name}` must have shape [{shape}]", broken)


def _range_clause(a: Arg, d: Dim) -> Clause:
    def broken(call: _Call) -> str | None:
        size = call.dims[d.name]
        if d.least <= size and (d.most is None or size <= d.most):
            return None
        return f": got {d.name} = {size} from {call.views[a.name]}"

    most = "" if d.most is None else f" and at most {d.most}"
    text = f"`{a.name}` must have {d.name} of at least {d.least}{most}"
    return Clause(a.name, f"range of {d.name}", text, broken, reason=d.reason)


def _rule_clause(rule: Rule) -> Clause:
    def broken(call: _Call) -> str | None:
        if rule.holds(call.dims):
            return None
        sizes = ", ".join(f"{k} = {v}" for k, v in call.dims.items() if k.isidentifier())
        return f": got {call.views[rule.argument]} where {sizes}"

    return Clause(rule.argument, "rule", rule.text, broken)


def _unit_clause(a: Arg) -> Clause:
    def broken(call: _Call) -> str | None:
        view = call.view(a.name)
        if view is None or view.shape[-1] == 1 or view.strides[-1] == 1 or 0 in view.shape:
            return None
        return f": got {view}; {_fix(a)}"

    text = f"`{a.name}` must be contiguous in the last dim"
    return Clause(a.name, "unit stride", text, broken, reason=a.reason)


def _dense_clause(a: Arg, first: int) -> Clause:
    def broken(call: _Call) -> str | None:
        view = call.view(a.name)
        if view is None or 0 in view.shape or _dense(view, first):
            return None
        dims = f" (dims {first}..{len(view.shape) - 1}) must be contiguous" if first else ""
        return f"{dims}: got {view}; {_fix(a)}"

    # The well-known text names the dims that came, so its end is written above.
    text = f"`{a.name}` must be contiguous" if first == 0 else f"{a.name} entry dims"
    return Clause(a.name, "dense", text, broken, reason=a.reason)


def _fix(a: Arg) -> str:
    when = " once, when the buffer is allocated" if a.written else ""
    return f"pass `{a.name}.contiguous()`{when}"


def _overlap_clause(a: Arg) -> Clause:
    def broken(call: _Call) -> str | None:
        view = call.view(a.name)
        if view is None or not overlaps_itself(view.shape, view.strides):
            return None
        return f": got {view}, where two indices name one element; pass `{a.name}.clone()`"

    return Clause(a.name, "overlap", f"`{a.name}` is written and must not overlap itself", broken)


def _sharing_clause(a: Arg, b: Arg) -> Clause:
    def broken(call: _Call) -> str | None:
        mine, theirs = call.view(a.name), call.view(b.name)
        if mine is None or theirs is None or not share_memory(mine, theirs):
            return None
        apart = theirs.address - mine.address
        return f": got {mine} and {theirs}, {apart} bytes apart; give each memory of its own"

    text = f"`{a.name}` is written and must not share memory with `{b.name}`"
    return Clause(a.name, f"sharing with {b.name}", text, broken)


_SHORT = {
    **{"float16": "f16", "bfloat16": "bf16", "float32": "f32", "int32": "i32", "int64": "i64"},
    BITS[0]: "1, 2, 4 or 8 bytes",
}


def _layout_words(a: Arg) -> str:
    first = a.dense_from
    if first is not None:
        return f"dense from dim {first} on" if first else "contiguous"
    return "unit stride in the last dim" if a.unit_last else "any"
