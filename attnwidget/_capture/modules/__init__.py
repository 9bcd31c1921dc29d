"""The structure of a model: module order, towers, coverage and advice."""
