"""What the weights of a captured model carry: where the outputs of its heads go, and what a loss makes of them."""
