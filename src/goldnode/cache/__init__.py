"""Caches of compiled GPU code on the controller: keys from recorded captures, and the caches that a rollout turns cold.

The keys themselves are made in :mod:`goldnode.node.cachekey`, so that a node and a controller make
the same ones.
"""
