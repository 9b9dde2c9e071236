"""Channels of published images: histories, and the requirements of a promotion."""
