"""The widget that shows two models side by side."""
