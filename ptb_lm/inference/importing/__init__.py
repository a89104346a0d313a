"""From the weights of a model that another program trained to a run directory."""
