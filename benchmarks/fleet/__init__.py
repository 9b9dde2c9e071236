"""The store of a fleet and its lock service under load."""
