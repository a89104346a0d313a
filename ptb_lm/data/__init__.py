"""Text: vocabularies, corpora and the processes that write synthetic ones."""

SPLITS = ("train", "valid", "test")
