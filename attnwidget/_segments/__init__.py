"""Segments of a text: turns, documents, sentences, the answer, as ranges of tokens."""
