"""Copy of the metrics for node_exporter's textfile collector: the check writes it, and a removal
takes it away.
"""

NAME = "goldnode.prom"  # in the collector's directory
# Path of the last copy, to remove it when the class names another directory.
MEMORY = "/var/lib/goldnode/textfile"
