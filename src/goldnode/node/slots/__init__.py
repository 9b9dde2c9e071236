"""The second root partition of a disk: :mod:`write` fills it, :mod:`trial` finishes its first boot,
:mod:`command` is the command.

The survey of both slots is in state (state/slots.py), because plans go by it. It imports the rooms
up to gate.
"""
