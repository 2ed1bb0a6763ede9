"""The memory checker: run kernels interpreted and look at every access of every program.

    from twinlaw.properties.memcheck import memcheck

    def test_my_kernel_is_clean():
        x, out = torch.rand(100, 7)[:, :5], torch.empty(100, 5)
        memcheck(my_launcher, x, out, access={"x": "r", "out": "w"}).raise_if_dirty()

What it finds, exactly to the element, is in :data:`KINDS`. An access may touch elements of the
tensors that its pointer was made from, and nothing else: not the gaps of a view, not a neighbour
in one storage. What it may not touch is reported and left alone, wherever it points.

Kernels must be interpreted: ``TRITON_INTERPRET=1`` in the environment, or
:func:`twinlaw.properties.interpreter.enable` before Triton is imported.
"""

from __future__ import annotations

import bisect
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from twinlaw.contract import Contract
from twinlaw.properties import interpreter
from twinlaw.properties.shadow import Argument, Array, Memory, arrange
from twinlaw.properties.watch import Access, site, watching

__all__ = ["KINDS", "Finding", "Kind", "MemcheckError", "Report", "memcheck", "self_test"]

Kind = Literal[
    "out-of-bounds read",
    "out-of-bounds write",
    "misaligned access",
    "write to read-only",
    "uninitialised read",
    "unwritten output",
    "write-write race",
    "read-write race",
    "address overflow",
    "undefined lane",
    "order-dependent",
]

KINDS: dict[Kind, str] = {
    "out-of-bounds read": "reads what is no element of the tensor that the pointer was made from",
    "out-of-bounds write": "writes what is no element of the tensor that the pointer was made from",
    "misaligned access": "covers several elements from an address that is no multiple of its width",
    "write to read-only": "writes an element of a read-only tensor",
    "uninitialised read": "reads an element of a write-only tensor before anything wrote it",
    "unwritten output": "leaves an element unwritten that it is to write",
    "write-write race": "writes an element that another program writes",
    "read-write race": "reads or writes an element that another program writes or reads",
    "address overflow": "follows an address in which an integer wrapped around",
    "undefined lane": "stores what depends on a masked-off lane of a load without `other`",
    "order-dependent": "stores what depends on the order in which programs run",
}

Program = tuple[int, ...]


class MemcheckError(AssertionError):
    """Kernels did to memory what they must not; the text lists the findings."""


@dataclass(frozen=True)
class Finding:
    """One thing that one line of a kernel does wrong, where it does it first."""

    kind: Kind
    kernel: str
    """The kernel that was launched."""
    file: str
    line: int
    """Where the access is, in the kernel or in a function that it calls; 0 without a line."""
    program: Program
    argument: str
    offset: int
    """Elements from the argument's first one, rounded down; of the first lane at fault."""
    index: tuple[int, ...] | None
    """The element at that offset, or the one nearest to it; None in an empty tensor."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    lanes: int
    """How many lanes of the access, or how many elements, it is about."""
    first_lanes: tuple[int, ...]
    other_program: Program | None = None
    """The other program of a race, and the line where it touched the element."""
    other_line: int | None = None
    times: int = field(default=1, compare=False)
    """How many accesses from this line to this argument are at fault."""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.line else ""
        race = f", program {self.other_program} at line {self.other_line}"
        again = f"; {self.times} such accesses in all" if self.times > 1 else ""
        return (
            f"{where}{self.kind} by `{self.kernel}`, program {self.program}"
            f"{race if self.other_program is not None else ''}: {KINDS[self.kind]}: "
            f"`{self.argument}` at offset {self.offset}, nearest element {self.index} of shape "
            f"{self.shape}, strides {self.strides}; {self.lanes} lanes, first "
            f"{list(self.first_lanes)}{again}"
        )


@dataclass(frozen=True)
class Report:
    """What was found, and what the function returned."""

    findings: list[Finding]
    returned: Any = None

    @property
    def clean(self) -> bool:
        return not self.findings

    def raise_if_dirty(self) -> None:
        """Raise MemcheckError, which lists the findings, if there are any."""
        if self.findings:
            raise MemcheckError(str(self))

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings)) or "clean"


def memcheck(
    function: Callable[..., Any],
    /,
    *args: Any,
    access: Contract | Mapping[str, str],
    touched: Mapping[str, torch.Tensor] | None = None,
    witnesses: bool = True,
    **kwargs: Any,
) -> Report:
    """Call ``function``, which launches kernels, and report what they do wrong to memory.

    ``access`` gives, by parameter of ``function``, what kernels may do with its tensor: ``"r"``,
    ``"w"`` (everything is to be written, nothing read before) or ``"rw"``; a contract says it
    itself. Tensors in a tuple or list parameter ``p`` are ``p[0]``, ``p[1]``, ... and have the
    access of ``p``. All tensors must be on the CPU. Others that a launch gets are the function's
    own: element-exact too, but nobody knows what they hold.
    ``touched`` gives, by argument, a bool mask of the elements that the call is to write, where
    that is not all of a write-only one and none of the others.

    Arguments hold afterwards what one call left in them, except that forbidden accesses did not
    happen. A clean call is repeated from the same memory, unless ``witnesses`` is False: with
    other values in masked-off lanes of loads without ``other``, if there are any, and with the
    programs in the reverse order. Sums of floating-point atomics may depend on that.

    Raises RuntimeError if kernels are compiled in this process or this Triton is not supported,
    ValueError for tensors without access or on another device, and what ``function`` raises.
    """
    interpreter.enable()
    _self_test_once()
    declared = list(_declare(function, args, kwargs, access))
    shapes = {a.name: a.shape for a in declared}
    for name, mask in (touched or {}).items():
        if mask.dtype != torch.bool or shapes.get(name) != mask.shape:
            raise ValueError(
                f"`touched` must give bool masks in the shapes of tensor arguments: got "
                f"{mask.dtype} of shape {tuple(mask.shape)} for `{name}`, shape {shapes.get(name)}"
            )
    return _check(lambda: function(*args, **kwargs), declared, touched or {}, witnesses)


def _declare(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    access: Contract | Mapping[str, str],
) -> Iterator[Argument]:
    if isinstance(access, Contract):
        access = {a.name: a.access for a in access.args}
    bound = inspect.signature(function).bind(*args, **kwargs)
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        variadic = bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        named.update(value if variadic else {name: value})
    for parameter, value in named.items():
        for name, tensor in _tensors(parameter, value):
            how = access.get(name, access.get(parameter))
            if how not in ("r", "w", "rw"):
                raise ValueError(
                    f'`access` must say "r", "w" or "rw" for every tensor: got {how!r} for '
                    f"`{name}`; add it"
                )
            if tensor.device.type != "cpu" or tensor.layout != torch.strided:
                raise ValueError(
                    f"`{name}` must be a strided tensor on the CPU, where kernels are interpreted: "
                    f"got {tensor.layout} on {tensor.device}; pass a copy with its layout"
                )
            yield Argument.of(name, how, tensor)


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (tuple, list)):
        for i, part in enumerate(value):
            yield from _tensors(f"{name}[{i}]", part)
    elif hasattr(value, "base"):  # reinterpreted, or a descriptor
        yield from _tensors(name, value.base)


def _check(
    call: Callable[[], Any],
    declared: list[Argument],
    touched: Mapping[str, torch.Tensor],
    witnesses: bool,
) -> Report:
    memories = arrange(declared)
    run = _Run(declared)
    try:
        returned = run.of(call)
    except Exception as error:
        if run.findings:
            raise MemcheckError(str(Report(run.findings))) from error
        raise
    run.find_unwritten(touched)
    if run.findings or not witnesses:
        return Report(run.findings, returned)
    patience = max(1000, 10 * run.clock)
    repeats = [_Run(declared, patience, poison=p) for p in ("nan", "huge") if run.is_undefined]
    repeats += [_Run(declared, patience, reverse=True)] if run.most_programs > 1 else []
    before = [(m, *m.saved()) for m in memories]
    after = [(m, at, m.read(at)) for m, at, _ in before]
    for repeat in repeats:
        _restore(before)
        for memory in memories:
            memory.reset()
        try:
            repeat.of(call)
        except _Endless:
            pass
        finally:
            findings = repeat.differences(after)
        if findings:
            return Report(findings, returned)
    return Report([], returned)


class _Endless(BaseException):
    """A repeated call goes on and on. Not an Exception: nothing between here and there may
    catch it."""


State = list[tuple[Memory, Array, Array]]
"""By memory, addresses of cells and what they hold."""


def _restore(state: State) -> None:
    for memory, addresses, bits in state:
        memory.write(addresses, bits)


_CONFLICTS: dict[str, list[tuple[Kind, tuple[str, ...]]]] = {
    "read": [("read-write race", ("writer", "atomic", "atomic2"))],
    "atomic read": [("read-write race", ("writer",))],
    "write": [
        ("write-write race", ("writer", "atomic", "atomic2")),
        ("read-write race", ("reader", "reader2")),
    ],
    "atomic": [
        ("write-write race", ("writer",)),
        ("read-write race", ("reader", "reader2")),
    ],
}
"""By kind of access, the races it makes and the histories of a cell that make them."""

_HOST = 1
"""The time of everything that PyTorch writes."""

_POISON = {None: 0, "nan": 0xFF, "huge": 0x72}
"""What the bytes of a masked-off lane are: NaN or -1; large numbers."""


class _Run:
    """One call under watch: the clock, the programs, and what they did wrong."""

    def __init__(
        self,
        declared: list[Argument],
        patience: float = math.inf,
        poison: str | None = None,
        reverse: bool = False,
    ) -> None:
        self.declared = declared
        self.patience, self.poison, self.reverse = patience, poison, reverse
        self.is_undefined = False
        """Whether a load without ``other`` had lanes masked off."""
        self.most_programs = 0
        """In the largest launch."""
        self.clock = _HOST
        self._sites = [("", 0)] * (_HOST + 1)
        """By time."""
        self._kernel = ""
        self._every = declared
        """Declared tensors and those of the launch that are not."""
        self._origins: dict[tuple[Any, ...], tuple[Argument, ...]] = {}
        self._launch_start = self._program_start = 0
        self._starts: list[int] = [0]
        self._programs: list[Program] = [()]
        """When programs began, and which."""
        self._acquired: dict[int, list[tuple[int, int]]] = {}
        """By the start of a program: when it acquired, and the time of the release it saw."""
        self._found: dict[tuple[Any, ...], Finding] = {}

    @property
    def findings(self) -> list[Finding]:
        return list(self._found.values())

    def of(self, call: Callable[[], Any]) -> Any:
        with watching(self):
            return call()

    # -- what the hooks tell ---------------------------------------------------------------------

    def launch(self, kernel: Any, tensors: Sequence[torch.Tensor]) -> None:
        self._kernel = kernel.__name__
        self._launch_start = self.clock + 1
        origins = {_key(t): self._owners(t) for t in tensors}
        own = {
            _key(t): Argument.of("a tensor of the function's own", "rw", t, declared=False)
            for t in tensors
            if not origins[_key(t)]
        }
        arrange(own.values())
        self._origins = origins | {key: (argument,) for key, argument in own.items()}
        self._every = [*self.declared, *own.values()]

    def _owners(self, tensor: torch.Tensor) -> tuple[Argument, ...]:
        """The declared tensors that a tensor is, or begins in, or shares a storage with."""
        first = np.array([tensor.data_ptr()])
        width = tensor.element_size()
        storage = tensor.untyped_storage().data_ptr()
        for owns in (
            lambda a: a.key == _key(tensor),
            lambda a: bool(a.contains(first, width)[0]),
            lambda a: a.storage == storage != 0,
        ):
            if owners := tuple(a for a in self.declared if owns(a)):
                return owners
        return ()

    def order(self, program: Program, grid: Program) -> Program:
        self.most_programs = max(self.most_programs, math.prod(grid))
        if self.reverse:
            program = tuple(n - 1 - i for n, i in zip(grid, program, strict=True))
        self._program_start = self.clock + 1
        self._starts.append(self._program_start)
        self._programs.append(program)
        return program

    def origin(self, tensor: torch.Tensor) -> tuple[Argument, ...]:
        return self._origins[_key(tensor)]

    def undefined(self, dtype: Any, stored: np.dtype[Any]) -> Any:
        self.is_undefined = True
        pattern = np.full(stored.itemsize, _POISON[self.poison], np.uint8)
        return pattern.any() if stored.kind == "b" else pattern.view(stored)[0]

    def host(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage().data_ptr()
        memories = {a.memory for a in self.declared if a.storage == storage}
        if memories:
            view = Argument.of("", "w", tensor)
        for memory in memories:
            cells = memory.cells_of(view)
            memory.save(cells)
            memory.writer[cells] = _HOST

    def access(self, access: Access) -> Array:
        self.clock += 1
        self._sites.append(site())
        owners = self._every if access.origin is None else access.origin
        good = np.zeros(len(access.addresses), bool)
        free = np.arange(len(good))
        """Lanes that no owner has claimed."""
        if self.clock > self.patience:
            # In the reverse order, programs that wait for earlier ones do so forever.
            if not self.reverse:
                self._report("undefined lane", owners, access, free)
            raise _Endless
        if len(owners) > 1 and access.kind != "read":
            owners = sorted(owners, key=lambda a: not a.written)
        for owner in owners:
            inside = owner.contains(access.addresses[free], access.width)
            mine = free[inside]
            if len(mine):
                good[mine] = self._touch(owner, access, mine)
            free = free[~inside]
            if not len(free):
                break
        if access.wrapped is not None:
            self._report("address overflow", owners, access, np.flatnonzero(access.wrapped))
            free = free[~access.wrapped[free]]
        kind: Kind = f"out-of-bounds {'read' if 'read' in access.kind else 'write'}"  # type: ignore[assignment]
        self._report(kind, owners, access, free)
        return good

    # -- one access to elements of one tensor ------------------------------------------------------

    def _touch(self, owner: Argument, access: Access, mine: Array) -> bool:
        """Enter an access; False if memory must be left alone."""
        writes = "read" not in access.kind
        if writes and not owner.written:
            self._report("write to read-only", [owner], access, mine)
            return False
        memory = owner.memory
        addresses = access.addresses[mine]
        if access.width > owner.itemsize:
            self._report("misaligned access", [owner], access, mine[addresses % access.width != 0])
        if not memory.writable:
            return True
        if writes and len(memory.arguments) > 1:
            for other in memory.arguments:
                if not other.written:
                    hit = mine[other.touched_by(addresses, access.width)]
                    self._report("write to read-only", [other], access, hit)
        cells = memory.cells(addresses, access.width)
        mine = mine.repeat(len(cells) // len(mine))
        if memory.write_only and access.kind in ("read", "atomic") and not access.swaps:
            unknown = memory.untouched(cells) & memory.is_write_only(cells)
            self._report("uninitialised read", [owner], access, mine[unknown])
        self._enter(memory, cells, owner, access, mine)
        return True

    def _enter(
        self, memory: Memory, cells: Array, owner: Argument, access: Access, mine: Array
    ) -> None:
        """Look for other programs that touched the cells, and note that this one does."""
        kind, now = access.kind, self.clock
        clear = np.ones(len(cells), bool)
        for race, histories in _CONFLICTS[kind]:
            for history in histories:
                if history.startswith("atomic") and not memory.has_atomics:
                    continue
                times = getattr(memory, history)[cells]
                raced = self._foreign(times) & clear
                if raced.any():
                    raced[raced] = [not self._comes_before(int(t)) for t in times[raced]]
                    clear &= ~raced
                    self._report(race, [owner], access, mine[raced], times[raced])
        if kind == "atomic" or access.acquires:
            if access.acquires:
                seen = memory.released[cells]
                for release in np.unique(seen[self._foreign(seen)]).tolist():
                    self._acquired.setdefault(self._program_start, []).append((now, release))
            if access.releases:
                memory.released[cells] = now
        if kind in ("write", "atomic"):
            memory.save(cells)
        if kind == "write":
            memory.writer[cells] = now
        elif kind == "read":
            self._stamp(memory.reader, memory.reader2, cells)
        elif kind == "atomic":
            memory.has_atomics = True
            self._stamp(memory.atomic, memory.atomic2, cells)

    def _foreign(self, times: Array) -> Array:
        """Which times belong to other programs of this launch."""
        return (times >= self._launch_start) & (times < self._program_start)

    def _stamp(self, one: Array, another: Array, cells: Array) -> None:
        """Note the time in ``another`` for cells that ``one`` has of another program."""
        foreign = self._foreign(one[cells])
        one[cells[~foreign]] = self.clock
        another[cells[foreign]] = self.clock

    def _comes_before(self, then: int) -> bool:
        """Whether releases and acquires put what happened ``then`` before what happens now."""
        program = self._start_of(then)
        todo, done = [(self._program_start, self.clock)], set[int]()
        while todo:
            start, until = todo.pop()
            for acquired, released in self._acquired.get(start, ()):
                if acquired > until or released in done:
                    continue
                done.add(released)
                if self._start_of(released) == program and then <= released:
                    return True
                todo.append((self._start_of(released), released))
        return False

    def _start_of(self, time: int) -> int:
        """When the program began that ran at ``time``."""
        return self._starts[bisect.bisect_right(self._starts, time) - 1]

    def _program_at(self, time: int) -> Program:
        return self._programs[bisect.bisect_right(self._starts, time) - 1]

    # -- findings ----------------------------------------------------------------------------------

    def _report(
        self,
        kind: Kind,
        owners: Sequence[Argument],
        access: Access,
        at_fault: Array,
        times: Array | None = None,
    ) -> None:
        """Note that lanes of an access are at fault, each at a place of ``at_fault``."""
        if not len(at_fault):
            return
        address = int(access.addresses[at_fault[0]])
        owner = min(owners, key=lambda a: a.distance(address))
        self._note(
            kind,
            self.clock,
            owner,
            address,
            np.unique(access.lanes[at_fault]),
            None if times is None else int(times[0]),
        )

    def _note(
        self,
        kind: Kind,
        time: int,
        owner: Argument,
        address: int,
        lanes: Array,
        other: int | None = None,
    ) -> None:
        file, line = self._sites[time]
        key = (kind, self._kernel, file, line, owner.name)
        if key in self._found:
            known = self._found[key]
            self._found[key] = replace(known, times=known.times + 1)
            return
        self._found[key] = Finding(
            kind,
            self._kernel,
            file,
            line,
            self._program_at(time),
            owner.name,
            (address - owner.address) // owner.itemsize,
            owner.nearest(address),
            owner.shape,
            owner.strides,
            len(lanes),
            tuple(lanes[:8].tolist()),
            None if other is None else self._program_at(other),
            None if other is None else self._sites[other][1],
        )

    def find_unwritten(self, touched: Mapping[str, torch.Tensor]) -> None:
        """Note elements that were to be written and were not."""
        for argument in self.declared:
            mask = touched.get(argument.name)
            if mask is None and argument.access != "w":
                continue
            addresses = argument.addresses(None if mask is None else mask.numpy())
            if not len(addresses):
                continue
            cells = argument.memory.cells(addresses, argument.itemsize)
            missing = argument.memory.untouched(cells).reshape(len(addresses), -1).any(1)
            if missing.any():
                first = int(addresses[missing][0])
                self._note("unwritten output", 0, argument, first, np.flatnonzero(missing))

    def differences(self, after: State) -> list[Finding]:
        """What this call left otherwise than another one; puts back what that one left."""
        kind: Kind = "order-dependent" if self.reverse else "undefined lane"
        endless = self.clock > self.patience
        mine = {memory: memory.saved() for memory, _, _ in after}
        places = {m: np.union1d(at, mine[m][0]) for m, at, _ in after}
        bits = {m: m.read(at) for m, at in places.items()}
        _restore([(m, *mine[m]) for m in mine])
        _restore(after)
        findings = [replace(f, kind=kind) for f in self._found.values()]
        self._found.clear()
        if endless:
            return [] if self.reverse else findings
        for memory, at in places.items():
            differs = bits[memory] != memory.read(at)
            cells = memory.cells(at[differs], memory.unit)
            times = np.maximum(memory.writer[cells], memory.atomic[cells])
            for argument in memory.arguments:
                inside = argument.contains(at[differs], memory.unit)
                if self.reverse and argument.floating:
                    inside &= memory.atomic[cells] == 0
                for time in np.unique(times[inside]).tolist():
                    which = at[differs][inside & (times == time)]
                    self._note(kind, time, argument, int(which[0]), np.arange(len(which)))
        return findings + self.findings


def _key(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (
        tensor.data_ptr(),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.element_size(),
    )


# --- is this Triton one that the hooks fit? -------------------------------------------------------

# The probe finds it among the globals of this module.
tl: Any


@functools.cache
def _self_test_once() -> None:
    self_test()


def self_test() -> None:
    """Run a kernel that does everything wrong, and see that it is all found.

    Raises RuntimeError, with Triton's version, if a hook does not fire.
    """
    global tl

    import triton
    import triton.language as tl

    @triton.jit
    def probe(x, out, count, n, big):  # type: ignore[no-untyped-def]
        o = tl.arange(0, 8)
        v = tl.load(x + o)
        tl.store(out + o, v, o < n)
        tl.store(x + tl.program_id(0), 1.0)
        tl.atomic_add(count + tl.program_id(0), 1)
        tl.atomic_cas(count + 7, 0, 1)
        tl.load(x + n * big)
        tl.store(count, 0)

    # Views of more than they show: what a lost hook lets through must not end the process.
    x, out = torch.zeros(64)[16:20], torch.zeros(64)[16:24]
    count = torch.zeros(64, dtype=torch.int32)[16:17]
    declared = [
        Argument.of(name, access, tensor)
        for name, access, tensor in (("x", "r", x), ("out", "w", out), ("count", "rw", count))
    ]
    try:
        report = _check(lambda: probe[(2,)](x, out, count, 4, 2**30), declared, {}, False)
    except Exception as error:
        raise _unsupported(f"a probe failed with {error!r}") from error
    first = probe.fn.__code__.co_firstlineno + 1
    found = {(f.kind, f.argument, f.line - first) for f in report.findings}
    wanted = {
        ("out-of-bounds read", "x", 2),
        ("write-write race", "out", 3),
        ("write to read-only", "x", 4),
        ("out-of-bounds write", "count", 5),
        ("out-of-bounds write", "count", 6),
        ("address overflow", "x", 7),
        ("write-write race", "count", 8),
        ("unwritten output", "out", -first),
    }
    if found != wanted:
        raise _unsupported(
            f"a probe missed {sorted(wanted - found)}, made up {sorted(found - wanted)}"
        )


def _unsupported(what: str) -> RuntimeError:
    import triton

    return RuntimeError(
        f"Triton {triton.__version__} is not supported by the memory checker: {what}; check with "
        "one of Triton 3.6 to 3.9"
    )
