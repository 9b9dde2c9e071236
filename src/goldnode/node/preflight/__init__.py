"""`goldnode-node preflight`: checks right before a job starts, from files alone and in milliseconds.

:mod:`checks` judges (pure), :mod:`cohort` exchanges what the nodes of a job have in common, and :mod:`command` collects
and prints. Nothing calls the driver, systemd or a network.
"""
