"""Work over all heads, done in steps between messages."""
