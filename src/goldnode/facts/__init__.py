"""Compatibility facts with their sources (`*.yml`), as typed values, and the audit that checks them."""
