"""The widget: traits, selection and what is derived from them."""
