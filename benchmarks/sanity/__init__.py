"""What the on-node health check costs."""
