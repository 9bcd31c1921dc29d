"""Interventions: edit attention heads while a model runs, with its fused kernels on."""
