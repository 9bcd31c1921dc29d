"""Masks and biases: parsed once, and evaluated block by block."""
