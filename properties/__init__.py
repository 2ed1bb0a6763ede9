"""How we find out whether a fused op is right: strategies, checkers, tolerances and laws."""
