"""Triton's interpreter, repaired: an interpreted kernel means what the compiled one means.

The interpreter runs every program instance in NumPy, on a CPU, on the caller's own memory. As it
comes, from Triton 3.6 to 3.9, it computes some things that no GPU computes: bfloat16 on raw bit
patterns, Python's ``and`` on masks, float arguments in double precision. Each ``_repair_*`` below
corrects one of them and says why; numbers are issues of triton-lang/triton. The tests compare each
repair with ml_dtypes and PyTorch and, where there is a GPU, with the compiled kernel.

Left as they are, because a GPU has no single answer either: how many ulps off ``exp``, ``log`` or
a division are, whether ``a * b + c`` is fused, the order in which sums are taken, the payload of a
NaN. Importing this module imports neither Triton nor NumPy.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["enable", "is_interpreting", "repair", "self_test"]

# Kernels find these two among the globals of their module, so self_test() puts them there.
tl: Any
libdevice: Any


def enable() -> None:
    """Have every kernel of this process interpreted, and repair the interpreter.

    Triton chooses between interpreter and compiler when a kernel is decorated, and decorates its
    own library when it is imported: call this before ``import triton``.

    Raises RuntimeError when Triton is already there to compile, or when a repair does not fit it.
    """
    if "triton" in sys.modules and not is_interpreting():
        raise RuntimeError(
            "the interpreter must be chosen before Triton is imported: it is imported and compiles "
            "for a GPU; call enable() earlier, or set TRITON_INTERPRET=1 in the environment"
        )
    os.environ["TRITON_INTERPRET"] = "1"
    repair()


def is_interpreting() -> bool:
    """Whether kernels decorated in this process are interpreted, not compiled."""
    library = sys.modules.get("triton.language.standard")
    if library is None:
        return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
    return type(library.cdiv).__name__ == "InterpretedFunction"


def repair() -> None:
    """Install the repairs, once; a second call does nothing.

    Raises RuntimeError when this process compiles its kernels, or when a repair does not fit the
    installed Triton.
    """
    if not is_interpreting():
        raise RuntimeError(
            "repair() is for Triton's interpreter, and this process compiles its kernels: call "
            "enable() before Triton is imported"
        )
    import triton
    from triton.runtime import interpreter

    if hasattr(interpreter, "twinlaw_repairs"):
        return
    try:
        for install in _REPAIRS:
            install(interpreter)
    except (AttributeError, ImportError, TypeError) as error:
        raise _unsupported(f"{install.__name__} does not fit: {error}") from error
    # Kernels rewritten before the repairs would keep their old form.
    interpreter.InterpretedFunction.rewritten_fn.clear()
    interpreter.twinlaw_repairs = triton.__version__


def _unsupported(what: str) -> RuntimeError:
    import triton

    return RuntimeError(
        f"Triton {triton.__version__} is not supported by the interpreter repairs: {what}; "
        "interpret with one of Triton 3.6 to 3.9, or run on a GPU"
    )


def _is_bfloat16(handle: Any) -> bool:
    return bool(handle.dtype.scalar.is_bf16())


def _values(handle: Any) -> Any:
    """The numbers in ``handle``. The interpreter keeps a bfloat16 as the uint16 of its bits."""
    import ml_dtypes

    return handle.data.view(ml_dtypes.bfloat16) if _is_bfloat16(handle) else handle.data


def _bits(values: Any) -> Any:
    """The inverse of ``_values``."""
    import ml_dtypes

    return values.view("uint16") if values.dtype == ml_dtypes.bfloat16 else values


def _repair_bfloat16_arithmetic(interpreter: Any) -> None:
    """Compute with the value of a bfloat16, not with its bits: 1 + 1 was 1.7e38 (#10919).

    ml_dtypes rounds each result to nearest even, as a GPU's bfloat16 instructions do. (AMD's
    compiler has truncated bfloat16 products instead, #11217.)
    """
    builder = interpreter.InterpreterBuilder

    def of_values(operand: Any) -> Any:
        if not isinstance(operand, interpreter.TensorHandle):
            return operand
        return interpreter.TensorHandle(_values(operand), operand.dtype)

    def on_values(operation: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(operation)
        def compute(self: Any, operand: Any, *rest: Any) -> Any:
            if not _is_bfloat16(operand):
                return operation(self, operand, *rest)
            result = operation(self, *map(of_values, (operand, *rest)))
            result.data = _bits(result.data)
            return result

        return compute

    builder.binary_op = on_values(builder.binary_op)
    builder.unary_op = on_values(builder.unary_op)


def _repair_half_precision_fma(interpreter: Any) -> None:
    """Round a 16-bit fma once: the product is exact in float64, the sum nearly so.

    A bfloat16 was multiplied as bits, and a float16 product rounded by itself before 3.9.
    """
    builder = interpreter.InterpreterBuilder
    stock = builder.create_fma

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if z.dtype.scalar.primitive_bitwidth > 16:
            return stock(self, x, y, z)
        once = _values(x).astype("float64") * _values(y).astype("float64") + _values(z)
        return interpreter.TensorHandle(_bits(once.astype(_values(z).dtype)), z.dtype.scalar)

    builder.create_fma = create_fma


def _repair_bfloat16_dot(interpreter: Any) -> None:
    """Multiply the values of bfloat16 matrices, exactly, in float32 (#11584)."""
    from triton.language import float32

    builder = interpreter.InterpreterBuilder
    stock = builder.create_dot

    def widened(handle: Any) -> Any:
        if not _is_bfloat16(handle):
            return handle
        return interpreter.TensorHandle(_values(handle).astype("float32"), float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return stock(self, widened(a), widened(b), *rest)

    builder.create_dot = create_dot


def _repair_float_casts(interpreter: Any) -> None:
    """Round casts between float types, and to bfloat16, to nearest even (#8322, #4972).

    The bfloat16 of a float32 was truncated, could not overflow, was wrong for denormals and turned
    some NaNs into infinities; that of an integer was its bits. Rounding toward zero, where a
    kernel asks for it, is the nearest even taken back one step if it went away from zero.
    """
    import ml_dtypes
    import numpy as np
    from triton.language import bfloat16, float16, float32, float64

    builder = interpreter.InterpreterBuilder
    stock_cast, stock_float_to_float = builder.cast_impl, builder.create_fp_to_fp
    toward_zero = interpreter._ir.ROUNDING_MODE.RTZ

    def cast_impl(self: Any, source: Any, target_type: Any) -> Any:
        target = target_type.scalar
        if target == bfloat16:
            values = _values(source).astype(ml_dtypes.bfloat16)
            return interpreter.TensorHandle(_bits(values), target)
        if _is_bfloat16(source):
            values = _values(source).astype(interpreter._get_np_dtype(target))
            return interpreter.TensorHandle(values, target)
        return stock_cast(self, source, target_type)

    def create_fp_to_fp(self: Any, source: Any, target_type: Any, rounding: Any) -> Any:
        ieee = (bfloat16, float16, float32, float64)
        if source.dtype.scalar not in ieee or target_type.scalar not in ieee:
            return stock_float_to_float(self, source, target_type, rounding)
        result = self.cast_impl(source, target_type)
        if rounding == toward_zero:
            exact, nearest = (np.abs(_values(h).astype("float64")) for h in (source, result))
            pattern = result.data.view(f"uint{8 * result.data.itemsize}")
            result.data = (
                (pattern - (nearest > exact)).astype(pattern.dtype).view(result.data.dtype)
            )
        return result

    def get_bf16(self: Any, value: float) -> Any:
        return self.cast_impl(self.get_fp32(value), bfloat16)

    builder.cast_impl = cast_impl
    builder.create_fp_to_fp = create_fp_to_fp
    builder.get_bf16 = get_bf16  # literals; not there before 3.9


def _repair_half_precision_sums(interpreter: Any) -> None:
    """Round a float16 or bfloat16 sum after every addition, as the compiled reduction does.

    NumPy adds float16 in float32 and rounds once, which hides the loss that ``tl.sum`` without a
    cast suffers on a GPU; bfloat16 was added as bits. Which partial sums are formed is the
    compiler's choice; here it is halves upon halves.
    """
    import numpy as np

    stock_sum = interpreter.ReduceOps.sum

    def sum_(self: Any, block: Any) -> Any:
        if not block.dtype.is_floating() or block.dtype.primitive_bitwidth != 16:
            return stock_sum(self, block)
        values = _values(block.handle)
        axis, every = self.axis, tuple(range(values.ndim))
        if axis is None:
            values = values.reshape(-1)
        while values.shape[axis or 0] > 1:  # a power of two
            values = np.add(*np.split(values, 2, axis or 0))
        values = values.squeeze(axis or 0)
        if self.keep_dims:
            values = np.expand_dims(values, every if axis is None else axis)
        return self.to_tensor(_bits(values), block.dtype)

    interpreter.ReduceOps.sum = sum_

    def of_values(scan: Callable[..., Any], accumulate: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(scan)
        def run(self: Any, block: Any) -> Any:
            if not _is_bfloat16(block):
                return scan(self, block)
            sums = accumulate(_values(block.handle), axis=self.axis)
            return [self.to_tensor(_bits(sums), block.dtype)]

        return run

    scans = interpreter.ScanOps
    scans.cumsum = of_values(scans.cumsum, np.add.accumulate)
    scans.cumprod = of_values(scans.cumprod, np.multiply.accumulate)


def _repair_comparison_types(interpreter: Any) -> None:
    """Give a comparison the type int1, whatever it compared.

    The interpreter labelled it with the type of its operands. In 3.9 an int32 scalar's comparison
    therefore became an int32 mask, which loads refuse, as soon as it was broadcast.
    """
    from triton.language import int1

    builder = interpreter.InterpreterBuilder
    stock = builder.binary_op

    def binary_op(self: Any, lhs: Any, rhs: Any, operation: Any) -> Any:
        result = stock(self, lhs, rhs, operation)
        if result.data.dtype == bool:
            result.dtype = int1
        return result

    builder.binary_op = binary_op


def _repair_maximum_of_nan(interpreter: Any) -> None:
    """Let ``tl.maximum``, ``minimum`` and ``clamp`` pass NaN by unless told otherwise.

    So do a GPU and Triton 3.8; before that, the interpreter always let NaN through. A clamped NaN
    is the lower bound here; a GPU may give the upper one when they differ in sign only.
    """
    import numpy as np

    builder = interpreter.InterpreterBuilder
    ignore = interpreter._ir.PROPAGATE_NAN.NONE

    def create_clampf(self: Any, x: Any, low: Any, high: Any, propagate: Any) -> Any:
        larger, smaller = (np.fmax, np.fmin) if propagate == ignore else (np.maximum, np.minimum)
        return self.binary_op(self.binary_op(x, low, larger), high, smaller)

    builder.create_clampf = create_clampf
    builder.create_maxnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax)
    builder.create_minnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin)


def _repair_arguments(interpreter: Any) -> None:
    """Pass Python's floats, ints and bools to a kernel as the compiler's signature has them.

    A float stayed a Python float: ``scale * 3.0`` ran in double precision, and ``x * scale`` in
    bfloat16 instead of float32 when x is bfloat16. An int of 2**31 to 2**32 - 1 was an int64 kept
    in 32 bits: the sum of two such strides wrapped. A bool was refused before 3.8.
    """
    import numpy as np
    import triton.language as tl

    stock = interpreter._implicit_cvt

    def scalar(value: Any, dtype: Any) -> Any:
        data = np.array([value]).astype(interpreter._get_np_dtype(dtype))
        return tl.tensor(interpreter.TensorHandle(data, dtype), dtype)

    def convert(argument: Any) -> Any:
        if isinstance(argument, bool):
            return scalar(argument, tl.int1)
        if isinstance(argument, float):
            return scalar(argument, tl.float32)
        if isinstance(argument, int):
            return scalar(argument, stock(argument).dtype)
        return stock(argument)

    interpreter._implicit_cvt = convert


def _repair_ranges(interpreter: Any) -> None:
    """Let ``range()`` take a scalar tensor: ``for i in range(0, n, BLOCK)`` (#9171).

    It is an array of one element here, of which NumPy 2.4 no longer makes an int for Triton 3.6.
    """
    stock = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        stock(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch


def _repair_logic(interpreter: Any) -> None:
    """Evaluate ``and``, ``or``, ``not`` and conditions on tensors as the compiler does.

    Python takes the truth of the left operand, and a block is always true here: ``(o > 2) and
    (o < 5)`` was ``o < 5`` (Deep-Learning-Profiling-Tools/triton-viz#363). With scalars it skips
    the right operand, where the compiled kernel evaluates it, loads included; only constants cut
    an expression short. What the compiler refuses raises: a block as the condition of ``if``,
    ``while`` or ``... if ... else``, and, before 3.9, the chain ``0 <= o < n``.
    """
    from triton.language import tensor

    def connective(method: str, *operands: Callable[[], Any]) -> Any:
        tensors = []
        for operand in operands:
            value = operand()
            if isinstance(value, tensor):
                tensors.append(value)
            elif bool(value) == (method == "logical_or"):
                return value
        if not tensors:
            return value
        return functools.reduce(lambda rhs, lhs: getattr(lhs, method)(rhs), reversed(tensors))

    def negation(value: Any) -> Any:
        return value.__not__() if isinstance(value, tensor) else not value

    def condition(value: Any) -> Any:
        if isinstance(value, tensor) and value.type.is_block():
            raise TypeError(
                f"a condition must be a scalar: got a block of shape {[*map(int, value.shape)]}; "
                "reduce it first, or select with tl.where"
            )
        return value

    # The rewritten kernel sees whatever the interpreter's module has.
    interpreter._twinlaw_connective = connective
    interpreter._twinlaw_negation = negation
    interpreter._twinlaw_condition = condition
    stock = interpreter.FunctionRewriter.ast_transformer
    ours = _Logic(chains=hasattr(interpreter, "_InterpreterComparison"))

    class BothPasses:
        def visit(self, tree: ast.AST) -> Any:
            return stock.visit(ours.visit(tree))

    interpreter.FunctionRewriter.ast_transformer = BothPasses()


class _Logic(ast.NodeTransformer):
    """Turns ``a and b`` into ``_twinlaw_connective("logical_and", lambda: a, lambda: b)``, ..."""

    def __init__(self, chains: bool) -> None:
        self.chains = chains

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        if any(isinstance(part, ast.NamedExpr) for part in ast.walk(node)):
            raise NotImplementedError(
                f"`and` and `or` must not assign: got {ast.unparse(node)!r}; assign on a line of "
                "its own to have the kernel interpreted"
            )
        self.generic_visit(node)
        method = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        operands = [ast.Lambda(args=nothing, body=value) for value in node.values]
        return self._call("_twinlaw_connective", node, ast.Constant(method), *operands)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return self._call("_twinlaw_negation", node, node.operand)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) > 1 and not self.chains:
            raise NotImplementedError(
                f"comparisons must not be chained before Triton 3.9: got {ast.unparse(node)!r}; "
                "combine two comparisons with &"
            )
        return self.generic_visit(node)

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        node.test = self._call("_twinlaw_condition", node.test, node.test)
        return node

    visit_While = visit_IfExp = visit_If

    @staticmethod
    def _call(function: str, node: ast.expr, *arguments: ast.expr) -> ast.expr:
        name = ast.Name(id=function, ctx=ast.Load())
        return ast.copy_location(ast.Call(func=name, args=[*arguments], keywords=[]), node)


def _repair_libdevice(interpreter: Any) -> None:
    """Compute CUDA's libdevice functions with NumPy, for which there was nothing (#8825).

    The stubs of ``triton.language.extra.libdevice`` returned None, and the functions behind them
    raised. Now the stubs call those, which check types and broadcast as in a compiled kernel and
    then ask the builder for a symbol such as ``__nv_log1pf``. Symbols without a NumPy twin raise
    NotImplementedError. Kernels may bind these functions by name: repair before importing them.
    """
    import inspect

    import numpy as np
    from triton.language.extra import libdevice
    from triton.language.extra.cuda import libdevice as cuda

    twins: dict[str, Callable[..., Any]] = {
        **{name: getattr(np, name) for name in _SAME_IN_NUMPY},
        **{name: getattr(np, twin) for name, twin in _OTHERWISE_IN_NUMPY.items()},
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "exp10": lambda x: np.power(10.0, x),
    }

    def create_extern_elementwise(
        self: Any, library: str, path: str, symbol: str, operands: Any, type_: Any, pure: bool
    ) -> Any:
        name = symbol.removeprefix("__nv_").removeprefix("fast_")
        twin = twins.get(name) or twins.get(name.removesuffix("f"))
        if twin is None:
            raise NotImplementedError(
                f"libdevice's {symbol} has no NumPy twin in the interpreter; use a function of "
                "triton.language, or run on a GPU"
            )
        # In float64, so that the one rounding to float32 is all the error there is.
        result = twin(*(operand.data.astype("float64") for operand in operands))
        dtype = type_.scalar
        return interpreter.TensorHandle(result.astype(interpreter._get_np_dtype(dtype)), dtype)

    interpreter.InterpreterBuilder.create_extern_elementwise = create_extern_elementwise
    semantic = interpreter.interpreter_semantic
    for name, function in inspect.getmembers(cuda, interpreter.tl.core.is_builtin):
        bound = functools.partial(function, _semantic=semantic)
        setattr(cuda, name, bound)
        if hasattr(libdevice, name):
            setattr(libdevice, name, bound)


_SAME_IN_NUMPY = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt", "hypot"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh"),
    *("fabs", "floor", "ceil", "trunc", "rint", "fmod", "fmax", "fmin", "copysign"),
)
_OTHERWISE_IN_NUMPY = {
    **{"pow": "power", "nearbyint": "rint", "atan2": "arctan2"},
    **{"asin": "arcsin", "acos": "arccos", "atan": "arctan"},
    **{"asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh"},
}


def _repair_autotune(interpreter: Any) -> None:
    """Run an autotuned kernel in the first configuration that pruning leaves.

    Tuning asks a driver for a clock ("0 active drivers"), and time means nothing here. Laws that
    care launch every configuration on its own.
    """
    from triton.runtime.autotuner import Autotuner

    stock = Autotuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        every = self.configs
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        self.configs = self.prune_configs(kwargs)[:1]
        try:
            return stock(self, *args, **kwargs)
        finally:
            self.configs = every

    Autotuner.run = run


def _repair_warnings(interpreter: Any) -> None:
    """Keep quiet in a kernel where NumPy warns: overflow, division by zero, all-NaN maxima.

    Kernels meet them on purpose, and under ``-W error`` the warning would be the result. Code
    around the launch keeps its warnings.
    """
    import numpy as np

    launch = interpreter.GridExecutor.__call__

    @functools.wraps(launch)
    def quietly(self: Any, *args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN", RuntimeWarning)
            return launch(self, *args, **kwargs)

    interpreter.GridExecutor.__call__ = quietly


def _repair_repeated_patching(interpreter: Any) -> None:
    """Adapt triton.language once a launch, not at each call of one jitted function in another.

    Nothing but speed: it took a third of the time of a kernel that calls ``tl.sum`` or ``tl.cdiv``.
    """
    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    languages = {id(interpreter.tl), id(interpreter.tl.core)}
    adapted: set[int] = set()

    def patch_once(function: Any) -> Any:
        visible = languages & {id(value) for value in function.__globals__.values()}
        if visible <= adapted:
            return interpreter._LangPatchScope()
        adapted.update(visible)
        return patch(function)

    @functools.wraps(launch)
    def start(self: Any, *args: Any, **kwargs: Any) -> Any:
        adapted.clear()
        return launch(self, *args, **kwargs)

    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = start


_REPAIRS = (
    _repair_bfloat16_arithmetic,
    _repair_half_precision_fma,
    _repair_bfloat16_dot,
    _repair_float_casts,
    _repair_half_precision_sums,
    _repair_comparison_types,
    _repair_maximum_of_nan,
    _repair_arguments,
    _repair_ranges,
    _repair_logic,
    _repair_libdevice,
    _repair_autotune,
    _repair_warnings,
    _repair_repeated_patching,
)


def self_test() -> None:
    """Run a kernel that needs the repairs, and compare with what a GPU gives.

    Raises RuntimeError, with Triton's version, if a repair did not take.
    """
    global tl, libdevice

    import torch
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice

    @triton.jit
    def probe(x, halves, singles, flags, scale, n):  # type: ignore[no-untyped-def]
        o = tl.arange(0, 4)
        v = tl.load(x + o)
        tl.store(halves + o, v + v)
        tl.store(halves + 4 + o, (v.to(tl.float32) * 0.3333).to(tl.bfloat16))
        tl.store(singles + o, v * scale)
        tl.store(singles + 4 + o, libdevice.log1p(v.to(tl.float32) * 0))
        tl.store(singles + 8, tl.sum(v))
        tl.store(flags + o, (v > 0) and not (o < 2), mask=(o < 4) & (n > 3))
        for i in range(0, n, 4):
            tl.store(flags + 4 + i, i)

    x = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.bfloat16)
    halves = torch.zeros(8, dtype=torch.bfloat16)
    singles = torch.zeros(9)
    flags = torch.zeros(9, dtype=torch.int32)
    try:
        probe[(1,)](x, halves, singles, flags, 0.1, 8)
    except Exception as error:
        raise _unsupported(f"a probe failed with {error}") from error
    for what, got, want in (
        ("bfloat16 arithmetic", halves[:4], x + x),
        ("rounding to bfloat16", halves[4:], (x.float() * 0.3333).bfloat16()),
        ("a float argument", singles[:4], x.float() * 0.1),
        ("libdevice", singles[4:8], torch.zeros(4)),
        ("a bfloat16 sum", singles[8:], torch.tensor([2.5])),
        ("comparison, `and`, `not`", flags[:4], torch.tensor([0, 0, 1, 1])),
        ("a loop over a runtime bound", flags[4:], torch.tensor([0, 0, 0, 0, 4])),
    ):
        if not torch.equal(got.double(), want.double()):
            raise _unsupported(f"{what} gave {got.tolist()}, not {want.tolist()}")
