"""One capture while it runs: its options, its recorder and the calls of the model."""
