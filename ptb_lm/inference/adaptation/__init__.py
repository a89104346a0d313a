"""Models that learn from the test text while they read it: dynamic evaluation and the neural cache."""
