"""Token strings: read from tokenizers, checked, shown, searched."""
