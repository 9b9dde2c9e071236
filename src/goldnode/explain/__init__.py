"""Explanation of kernel logs, output of vendors' tools, job logs and descriptions of a fault.

:func:`goldnode.explain.answer.explain` is the one entry. It hands the lines to the readers of
:mod:`.documents`, :mod:`.tables` and :mod:`.logs` in turn, each of which takes the lines of its form. Other
lines are compared with the messages of `facts/symptoms.yml`, and a text without any message with their descriptions.
:mod:`.here` checks on this node which of the causes holds.
"""
