"""Tokens, labels and padding of captured calls."""
