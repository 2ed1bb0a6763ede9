"""Every fused kernel has a twin: a plain PyTorch reference that it must agree with, law by law."""
