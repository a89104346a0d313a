"""What people write, to compare with: programs without this package, and its models without one thing."""
