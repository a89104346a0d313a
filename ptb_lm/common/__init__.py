"""What knows nothing of language models: command line, files, errors, the host, memory, signals."""
