"""Rollouts: one class moves from one state to another, wave by wave, and back by itself if the change is bad.

`model` has the types, `document` the rollout as a person writes it, `state` the state with its
reducer, and `plan` the function that decides. `check` judges a document, `simulate` runs it on
simulated nodes. All of it is pure.
"""
