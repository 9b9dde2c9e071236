"""Disk images: one definition for every node class, built offline from a lock, by the same roles as a node."""
