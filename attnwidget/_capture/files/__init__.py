"""Captures on disk: save, load, and merge the files of several processes."""
