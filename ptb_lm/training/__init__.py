"""How a language model is trained, and the files that a run leaves."""
