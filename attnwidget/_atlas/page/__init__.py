"""An atlas as a widget, and as pages that open without a kernel or a network."""
