"""The widget's traits: their types, what they hold at first, and how a value is checked."""
