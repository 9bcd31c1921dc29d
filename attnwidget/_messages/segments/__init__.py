"""Messages of the segments view."""
