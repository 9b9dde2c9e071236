"""Where a node has its class and its last verdict, for how long a verdict counts, and its report.

Shell programs that the engine installs go by these, too: they work without Python.
"""

from __future__ import annotations

CLASS = "/etc/goldnode/class.json"
VERDICT = "/run/goldnode/verdict.json"
# The verdict for shell programs: one line, "UPTIME EXIT_CODE STATUS CLASS".
STATUS = "/run/goldnode/status"
# The boot, uptime and exit code of the verdict, and checksums of it and of the class that it is of: what a cached
# answer needs of both, without a parser of JSON. One line; without it the answer is read from the verdict.
SEAL = "/run/goldnode/verdict.seal"
# Copy of the metrics for node_exporter's textfile collector: its name in the collector's directory, and where the path of the
# last copy stands, to remove it when the class names another directory.
TEXTFILE = "goldnode.prom"
LAST_TEXTFILE = "/var/lib/goldnode/textfile"
PERIOD = 300  # seconds between two passive checks (goldnode-watch.timer)
LIMIT = 3 * PERIOD  # two checks may be missed or late; after the third the node's state is unknown
# A controller reads these with nothing else of the program: the start of Ansible imports them.
REPORT = "goldnode.node-report/1"  # schema of the report: capture and verdict of the last check
LARGEST_REPORT = 4 << 20  # bytes that a controller takes; a capture of an 8-way node has 0.1 MB
