"""The reference workbench for word-level LSTM language models on Penn Treebank."""
