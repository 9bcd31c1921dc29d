"""What lies between scores and weights: masks and biases, parsed once and asked block by block."""
