"""Faults that are done to real runs, and their outcomes, from which docs/reliability.md is written."""
