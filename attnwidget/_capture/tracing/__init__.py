"""Follow tensors through hand-written attention."""
