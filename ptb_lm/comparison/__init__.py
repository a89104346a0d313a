"""What `compare` shows of runs: what they reached, what differs between them, and their curves."""
