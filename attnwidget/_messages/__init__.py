"""What travels to the front-end, and the answers to its requests; no widget, no traits."""
