"""Attention from an engine that serves: recorded in its workers, brought to the notebook as a capture."""
