"""One attention call, as it was observed, and its rules."""
