"""Packed decode of the gated delta rule: held to every law."""

from __future__ import annotations

from twinlaw.properties.subjects import OPS
from twinlaw.properties.suite import laws_of

test_laws = laws_of(OPS["fused_recurrent_gated_delta_rule_packed_decode"].subject())
