"""Hypothesis strategies that draw the adversarial inputs."""
