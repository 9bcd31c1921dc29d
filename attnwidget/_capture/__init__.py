"""Attention calls of a torch model, recorded while its fused kernels stay on."""
