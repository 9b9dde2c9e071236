"""The effects of a verdict: a gate that opens and closes, drains and returns in the scheduler,
tests before a return.

:mod:`gate` decides, :mod:`effects` acts outside the node, and :mod:`handlers` gives up what they
did when the engine asks. It imports the rooms up to verdict.
"""
