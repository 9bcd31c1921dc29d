"""What users call: capture, a forward pass, find_heads and the widgets of a capture."""
