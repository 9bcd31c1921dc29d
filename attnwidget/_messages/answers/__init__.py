"""Answers to the front-end's requests."""
