"""A local web page to try a trained model: its surprise at each word, and its continuation of a prompt."""
