"""Pictures of stages, heads and comparisons, in tiles where they are large."""
