"""The arena: every tensor of a call is carved out of a larger buffer of poison.

Guards lie before, behind and in every gap of a view. After the call, all that is not an element
of a written argument must hold the same bits as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from twinlaw.contract import Contract
from twinlaw.properties.case import Case, StandIn, TensorSpec
from twinlaw.properties.strategies.values import fill

__all__ = ["POISONS", "Arena"]

GUARD = 256
"""Bytes of poison before and behind the elements of a buffer; a multiple of any alignment."""

POISONS = ("nan", "inf", "huge", "ones", "zero")
"""What the gaps, the guards and unwritten outputs can be filled with."""


@dataclass
class _Buffer:
    """Bytes on the device, those they held before the call, and which of them may change."""

    bytes: torch.Tensor
    before: torch.Tensor
    owned: torch.Tensor
    """Bool mask over the bytes: elements of written arguments."""


class Arena:
    """The arguments of one call of ``case``, each in its own poisoned buffer on ``device``.

    Outputs (access ``w``) are poisoned too. ``arguments`` holds what to call the op with.
    """

    def __init__(
        self, case: Case, contract: Contract, device: str, poison: str = "nan", output: str = "nan"
    ) -> None:
        self.case = case
        self.arguments: dict[str, Any] = {}
        self._written = {a.name for a in contract.args if a.written}
        self._buffers: dict[str, _Buffer] = {}
        specs = {n: s for n, s in case.tensors.items() if isinstance(s, TensorSpec)}
        outputs = {a.name for a in contract.args if a.access == "w"}
        hosts = [n for n, s in specs.items() if s.inside is None]
        for host in hosts:
            guests = {n: s for n, s in specs.items() if s.inside and s.inside[0] == host}
            self._build(host, {host: specs[host], **guests}, outputs, device, poison, output)
        for name, spec in case.tensors.items():
            if isinstance(spec, StandIn):
                self.arguments[name] = spec.make(device)
            elif spec is None:
                self.arguments[name] = None
        self.arguments |= case.scalars

    def _build(
        self,
        host: str,
        specs: dict[str, TensorSpec],
        outputs: set[str],
        device: str,
        poison: str,
        output: str,
    ) -> None:
        """One buffer with a host tensor and those that live inside it."""
        starts = {
            name: GUARD + (s.inside[1] if s.inside else 0) + s.layout.offset * s.itemsize
            for name, s in specs.items()
        }
        ends = [starts[name] + s.layout.extent * s.itemsize for name, s in specs.items()]
        size = -(-max(ends) // GUARD) * GUARD + GUARD
        memory = poisoned(size, specs[host].torch_dtype, poison)
        owned = torch.zeros(size, dtype=torch.bool)
        for name, spec in specs.items():
            at = _byte_addresses(spec, starts[name])
            values = fill(spec)
            if name in outputs:
                values = poisoned(values.nbytes, spec.torch_dtype, output).view(spec.torch_dtype)
            memory[at] = _one_value_an_element(spec, values).view(torch.uint8)
            if name in self._written:
                owned[at] = True
        on_device = memory.to(device, copy=True)
        self._buffers[host] = _Buffer(on_device, memory, owned)
        for name, spec in specs.items():
            self.arguments[name] = _view(on_device, spec, starts[name])

    def memory(self) -> list[torch.Tensor]:
        """The bytes of every buffer, guards included."""
        return [buffer.bytes for buffer in self._buffers.values()]

    def result(self, name: str) -> torch.Tensor:
        """What a tensor argument holds now: a dense copy on the CPU."""
        tensor: torch.Tensor = self.arguments[name]
        return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)

    def results(self) -> dict[str, torch.Tensor]:
        """What the written arguments hold now."""
        return {n: self.result(n) for n in self.arguments if n in self._written}

    def assert_contained(self) -> None:
        """Raise AssertionError unless only elements of written arguments have changed."""
        for host, buffer in self._buffers.items():
            now = buffer.bytes.cpu()
            escaped = (now != buffer.before) & ~buffer.owned
            if escaped.any():
                self._report(host, int(escaped.nonzero()[0]), int(escaped.sum()))

    def assert_untouched(self) -> None:
        """Raise AssertionError if any byte of any buffer has changed."""
        for host, buffer in self._buffers.items():
            changed = buffer.bytes.cpu() != buffer.before
            if changed.any():
                self._report(host, int(changed.nonzero()[0]), int(changed.sum()))

    def _report(self, host: str, byte: int, count: int) -> None:
        spec = self.case.tensor(host)
        start = GUARD + spec.layout.offset * spec.itemsize
        element, rest = divmod(byte - start, spec.itemsize)
        owners = [
            n
            for n, s in self.case.tensors.items()
            if isinstance(s, TensorSpec) and host in (n, s.inside and s.inside[0])
        ]
        raise AssertionError(
            f"{count} bytes outside the written elements changed in the buffer of "
            f"{', '.join(f'`{n}`' for n in owners)}, first byte {rest} of the element at offset "
            f"{element} of `{host}` ({spec.layout})"
        )


def poisoned(size: int, dtype: torch.dtype, poison: str) -> torch.Tensor:
    """``size`` bytes of poison as it hurts ``dtype`` most: NaN, huge values, live indices."""
    if dtype.is_floating_point and dtype.itemsize > 1:
        value: Any = {"nan": None, "inf": float("inf"), "huge": 1e30, "ones": 1.0, "zero": 0.0}
        if value[poison] is None:
            pattern = torch.tensor([_SIGNALLING.get(dtype, _SIGNALLING[torch.float64])])
            unit = pattern.view(torch.uint8)[: dtype.itemsize]
        else:
            unit = torch.tensor([value[poison]], dtype=torch.float64).to(dtype).view(torch.uint8)
    else:  # to an index tensor, a small number that names a slot is worse than nonsense
        number = {"nan": 0, "inf": 1, "huge": 2**30, "ones": 1, "zero": 0}[poison]
        unit = torch.tensor([number], dtype=torch.int64).view(torch.uint8)
        unit = unit.repeat(2)[: max(dtype.itemsize, 1)]
    return unit.repeat(-(-size // unit.numel()))[:size].clone()


_SIGNALLING = {
    torch.float16: 0x7D01,
    torch.bfloat16: 0x7FA1,
    torch.float32: 0x7FA00001,
    torch.float64: 0x7FF4000000000001,
}
"""NaNs that arithmetic would quieten, so that even a copy through a float shows."""


def _one_value_an_element(spec: TensorSpec, values: torch.Tensor) -> torch.Tensor:
    """The values in order; where several indices name one element, the last one's for them all.

    Else which of them an indexed assignment leaves there would be a matter of chance.
    """
    offsets, order = spec.layout.offsets().reshape(-1), torch.arange(spec.layout.numel)
    last = torch.full((spec.layout.extent,), -1).scatter_reduce(0, offsets, order, "amax")
    return values.reshape(-1)[last[offsets]]


def _byte_addresses(spec: TensorSpec, start: int) -> torch.Tensor:
    """The place of every byte of every element, in order, in a buffer."""
    first = spec.layout.offsets().reshape(-1, 1) * spec.itemsize + start
    return (first + torch.arange(spec.itemsize)).reshape(-1)


def _view(memory: torch.Tensor, spec: TensorSpec, start: int) -> torch.Tensor:
    whole = memory[: memory.numel() // 8 * 8].view(spec.torch_dtype)
    layout = spec.layout
    return whole.as_strided(layout.shape, layout.strides, start // spec.itemsize)
