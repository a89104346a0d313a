"""Models that learn from the text while they are tested on it: dynamic evaluation and the neural cache."""
