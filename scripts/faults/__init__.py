"""What befalls a run, done to real runs, and what comes of it: docs/reliability.md is written from it."""
