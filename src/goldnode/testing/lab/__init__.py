"""Systemd nodes in containers, for the demo and for the tests: engine, base images, nodes, a web server for archives.

A lab is a named set of nodes on a network of their own. Everything it makes carries the label `goldnode.testing.lab=NAME`, so
that taking it down needs no memory but the engine's own.
"""
