"""Channels of published images: histories, moves, requirements of a promotion, and locks of a store."""
