"""A local page on which a trained model is tried: how surprised it is by each word, and how it goes on."""
