"""The widget's traits: their types, defaults and checks."""
