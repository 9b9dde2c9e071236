"""Systemd nodes in containers, for the demo and for tests: engine, base images, nodes, a web server for
archives.

A lab is a named set of nodes on a network of their own. All its objects carry the label
`goldnode.lab=NAME`, so removing a lab needs no state other than the engine's.
"""
