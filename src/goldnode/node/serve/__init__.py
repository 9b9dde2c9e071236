"""Interfaces to other systems: metrics, the diagnostics endpoint, and small programs for schedulers.

All of them read the cached verdict and the last capture (docs/capture.md), never the driver. An answer costs
the node nothing, and a hanging driver cannot block it.
"""
