"""Hooks that see a model's attention calls, from torch, transformers and modules of one's own."""
