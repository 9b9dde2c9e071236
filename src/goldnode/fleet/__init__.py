"""What concerns more than one node."""
