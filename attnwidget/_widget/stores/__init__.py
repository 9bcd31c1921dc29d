"""What a widget holds: layers, tokens and segments."""
