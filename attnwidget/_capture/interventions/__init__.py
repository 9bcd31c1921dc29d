"""Interventions: a model's attention heads changed while it runs, with its fused kernels left on."""
