"""Faults that are done to real runs, and their outcomes, from which results/reliability.md is written."""
