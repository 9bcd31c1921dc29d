"""A picture without a browser."""
