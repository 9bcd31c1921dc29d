"""A page that works without a kernel."""
