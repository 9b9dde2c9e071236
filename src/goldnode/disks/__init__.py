"""Disk images: one definition for every node class, built offline from a lock by the roles that configure
live nodes.
"""
