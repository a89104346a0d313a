"""What this repository measures and shows beside what the package offers; not installed with it."""
