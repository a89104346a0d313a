"""Uses of a trained model: scores, next words, text, neighbours, a module to export."""
