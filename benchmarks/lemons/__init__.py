"""Repeat offenders of the report on a published trace of faults."""
