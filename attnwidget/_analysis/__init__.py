"""Questions about one head, answered exactly."""
