"""Smoke tests of images and nodes.

`pack` packs `runner` into goldnode-smoke, `inside` runs it in a built image, and `record` attaches the
result.
"""
