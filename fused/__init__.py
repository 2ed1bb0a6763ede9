"""The library: fused Triton ops on recurrent state pools, each below the contract that it keeps.

Needs torch and Triton alone. Importing it starts no CUDA context.
"""

from twinlaw.fused.gdn_packed_decode import fused_recurrent_gated_delta_rule_packed_decode
from twinlaw.fused.mamba_state_scatter import fused_mamba_state_scatter_with_mask

__all__ = [
    "fused_mamba_state_scatter_with_mask",
    "fused_recurrent_gated_delta_rule_packed_decode",
]
