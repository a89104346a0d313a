"""Programs to compare with: other people's frameworks, and this package earlier or without a part."""
