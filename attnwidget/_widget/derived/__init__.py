"""Traits that follow from others, and what computes them."""
