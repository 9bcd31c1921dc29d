"""What a capture keeps of each layer: records, overviews, decode steps and forward passes."""
