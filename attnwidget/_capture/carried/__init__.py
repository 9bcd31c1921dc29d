"""What the weights of a captured model contribute downstream: to the logits, and to a loss."""
