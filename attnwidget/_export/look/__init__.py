"""Colors, numbers and ranges, as the front-end draws them."""
