"""What others ask a node: metrics, the diagnostics endpoint, and small programs for schedulers.

Everything here reads the cached verdict and the last capture (docs/capture.md), and never the driver: an answer costs the node nothing, and a
driver that hangs cannot hang it.
"""
