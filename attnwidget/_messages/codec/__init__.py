"""Arrays and pictures as bytes."""
