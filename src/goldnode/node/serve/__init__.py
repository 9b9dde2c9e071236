"""Interfaces to other systems: metrics, and the diagnostics endpoint.

Everything reads the cached verdict and the last capture (docs/reference/capture.md), and never the
driver: an answer costs the node nothing, and a hanging driver cannot hang it.
"""
