"""The engine: one declared state, observed, planned, applied and removed.

`engine.plan` is pure, `apply` is the only writer, and each domain is one module (:mod:`.contract`).
It imports ground, device and probe; what rooms above it do for an action, they hand in
(`apply.Applier`).
"""
