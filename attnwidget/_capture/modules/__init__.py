"""What a model's modules tell: their order, towers, coverage and advice."""
