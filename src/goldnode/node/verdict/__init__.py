"""The rules over a capture and the engine's plan, and the verdict that they give.

Rules are pure and have a row in one table (:mod:`.table`). It imports the rooms up to state, and
acts on nothing.
"""
