"""Float32 arithmetic that carries a bound of its own error, for the `error_bound` of an op.

A running error analysis (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., §3.3):
an `Approx` stands for a float32 number x̂ that some implementation computes. It holds the exact x
and a bound e of |x̂ - x|. With u = 2⁻²⁴, the unit roundoff, and η = 2⁻¹²⁶, the smallest normal
number (an implementation may flush to zero what is smaller), to first order:

    x·y         |x|·e_y + |y|·e_x + e_x·e_y + u·|x·y| + η
    x + y       e_x + e_y + u·(|x| + |y|) + η
    Σ x_j·y_j   the errors of the n products, and (n-1)·(u·Σ|x_j·y_j| + η): adding in any order
    exp(x)      exp(x)·ε + η         with ε = e_x + (5/4·|x| + 4)·u
    sigmoid(x)  sigmoid(x)·(sigmoid(-x)·ε + 6·u) + 2·η
    softplus(x) sigmoid(x)·ε + softplus(x)·8·u + 2·η
    1/√x        1/√x·(e_x/(2·x) + 6·u)

ε is the relative error of exp as a GPU computes it, 2^(x·log₂e) with an approximate power of two:
the rounded log₂e and the rounded product move the exponent by at most 5/4·|x|·u, the power errs by
at most 4·u. The other constants are those of an approximate division (4·u), square root (2·u) and
log1p (8·u), with the additions around them.

Where |x| multiplies u it is the *magnitude* of x: for a sum, the sum of its terms' absolute values,
so that terms which cancel are charged for in whatever order they are added. Where a magnitude may
leave the range of float32 the error is infinite, as what comes then is not specified. An error of
NaN, from inf·0, means the same.
"""

from dataclasses import dataclass

import torch

U = 2.0**-24
ETA = 2.0**-126
LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Approx:
    """A float32 tensor of an implementation: exact value, error bound and magnitude, in float64."""

    value: torch.Tensor
    error: torch.Tensor
    magnitude: torch.Tensor

    def __neg__(self) -> "Approx":
        return Approx(-self.value, self.error, self.magnitude)

    def __add__(self, other: "Approx") -> "Approx":
        magnitude = self.magnitude + other.magnitude
        error = self.error + other.error + U * magnitude + ETA
        return _in_range(self.value + other.value, error, magnitude)

    def __sub__(self, other: "Approx") -> "Approx":
        return self + -other

    def __mul__(self, other: "Approx") -> "Approx":
        value = self.value * other.value
        inherited = (
            self.value.abs() * other.error
            + other.value.abs() * self.error
            + self.error * other.error
        )
        return _in_range(value, inherited + U * value.abs() + ETA)

    def unsqueeze(self, dim: int) -> "Approx":
        """The same numbers with a dim of size 1 put in, as torch.unsqueeze does."""
        return Approx(
            self.value.unsqueeze(dim), self.error.unsqueeze(dim), self.magnitude.unsqueeze(dim)
        )


def loaded(t: torch.Tensor) -> Approx:
    """What a float32 implementation reads from `t`: exact, but for numbers that it flushes."""
    value = t.detach().to(torch.float64)
    magnitude = value.abs()
    return Approx(value, torch.where(magnitude < ETA, magnitude, 0.0), magnitude)


def constant(x: float) -> Approx:
    """A number of the formula, rounded to float32."""
    value = torch.tensor(x, dtype=torch.float64)
    rounded = loaded(value.to(torch.float32))
    return _in_range(value, (value - rounded.value).abs() + rounded.error)


def dot(x: Approx, y: Approx) -> Approx:
    """Σ x·y over the last dim, added in any order."""
    products = x * y
    magnitude = (x.magnitude * y.magnitude).sum(-1)
    additions = products.value.shape[-1] - 1
    error = products.error.sum(-1) + additions * (U * magnitude + ETA)
    return _in_range(products.value.sum(-1), error, magnitude)


def exp(x: Approx) -> Approx:
    """exp(x)."""
    value = x.value.exp()
    return _in_range(value, value * torch.expm1(_exp_relative_error(x)) + ETA)


def sigmoid(x: Approx) -> Approx:
    """1 / (1 + exp(-x)); where exp(-x) leaves the range, both are below η."""
    value = x.value.sigmoid()
    relative = (-x.value).sigmoid() * _exp_relative_error(x) + 6 * U
    return _in_range(value, value * relative + 2 * ETA)


def softplus(x: Approx) -> Approx:
    """log(1 + exp(x)), and x itself above 20 (the step between the two is below u·x)."""
    value = torch.where(x.value > 20, x.value, x.value.exp().log1p())
    error = x.value.sigmoid() * _exp_relative_error(x) + 8 * U * value + 2 * ETA
    return _in_range(value, error)


def rsqrt(x: Approx) -> Approx:
    """1 / √x, for x well above zero."""
    value = x.value.rsqrt()
    return _in_range(value, value * (x.error / (2 * x.value) + 6 * U))


def stored(x: Approx, dtype: torch.dtype) -> torch.Tensor:
    """The bound of `x` after it was rounded once, to `dtype`, when stored.

    Rounding adds half a unit in the last place: u of `dtype` times the number or, below its normal
    range, half its smallest subnormal. The bound is infinite where the number may round to inf.
    """
    info = torch.finfo(dtype)
    unit = info.eps / 2
    reached = x.value.abs() + x.error
    bound = x.error + unit * reached + info.smallest_normal * unit
    rounds_to_inf = reached >= info.max * (1 + unit / 2)  # max is 2ⁿ·(1-u), the tie 2ⁿ·(1-u/2)
    return torch.where(rounds_to_inf, torch.inf, bound).nan_to_num(nan=torch.inf, posinf=torch.inf)


def _exp_relative_error(x: Approx) -> torch.Tensor:
    return x.error + (1.25 * x.value.abs() + 4) * U


def _in_range(
    value: torch.Tensor, error: torch.Tensor, magnitude: torch.Tensor | None = None
) -> Approx:
    """An `Approx` whose error is infinite where its magnitude may exceed float32's range."""
    magnitude = value.abs() if magnitude is None else magnitude
    return Approx(value, torch.where(magnitude + error > LARGEST, torch.inf, error), magnitude)
