"""The parts of a widget: each owns some traits, checks them, and computes what is derived from them."""
