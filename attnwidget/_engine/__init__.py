"""Exact attention, block by block; torch only."""
