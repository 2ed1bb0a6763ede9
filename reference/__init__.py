"""How the fused ops must behave: each one in plain PyTorch, the obvious way.

Nothing here is fast and nothing is clever. An op's module holds the op itself, which runs in
float64 as well; a predicate `legal`, which says whether a call keeps the op's rules of shape,
dtype, layout and aliasing; and, for an op that rounds, `error_bound`, how far a float32
implementation may be from the float64 result. Only torch and the standard library are imported.
"""

from twinlaw.reference.gdn_packed_decode import (
    fused_recurrent_gated_delta_rule_packed_decode,
)
from twinlaw.reference.mamba_state_scatter import fused_mamba_state_scatter_with_mask

__all__ = [
    "fused_mamba_state_scatter_with_mask",
    "fused_recurrent_gated_delta_rule_packed_decode",
]
