"""What this repository measures beside what the package offers; not installed with it."""
