"""Command line, files, errors, the host, memory, signals: no knowledge of language models."""
