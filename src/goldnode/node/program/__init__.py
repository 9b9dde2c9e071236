"""The entry of the program: its command line, the requests of a controller, and a check from
reading to gate.

It may import every room, and no room imports it. :mod:`start` decides what to load, and a quick
answer loads little.
"""
