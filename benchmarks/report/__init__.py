"""The report over 10,000 synthetic nodes."""
