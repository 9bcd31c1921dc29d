"""Hooks that see a model's attention calls, in torch, transformers and custom modules."""
