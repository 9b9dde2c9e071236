"""Interfaces to other systems: metrics, the diagnostics endpoint, and small programs for schedulers.

Everything reads the cached verdict and the last capture (docs/reference/capture.md), and never the driver: an answer
costs the node nothing, and a hanging driver cannot hang it.
"""
