"""Attention that several processes share: shards of heads and of the context."""
