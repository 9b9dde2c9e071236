"""Ingest of synthetic captures: speed on one core, memory, and size of the files."""
