"""Commit of accepted draft states: held to every law."""

from __future__ import annotations

from twinlaw.properties.subjects import OPS
from twinlaw.properties.suite import laws_of

test_laws = laws_of(OPS["fused_mamba_state_scatter_with_mask"].subject())
