"""What a trained model is used for: scores, next words, text, neighbours, a module to export."""
