"""Traits that follow from others, and their computation."""
