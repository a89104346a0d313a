"""The comparison of runs by `compare`: results, differences between settings, and curves."""
