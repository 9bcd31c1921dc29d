"""Compare a layer's output with the attention that was read from it."""
