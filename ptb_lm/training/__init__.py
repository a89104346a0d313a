"""The training of a language model, and the files that a run leaves."""
