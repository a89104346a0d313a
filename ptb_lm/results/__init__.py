"""From finished runs and benchmark rows to tables, curves and records."""
