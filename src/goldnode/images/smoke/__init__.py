"""Smoke tests of images and nodes.

`inside` runs goldnode-smoke (`goldnode.gpuprogram.smoke`) in a built image, and `record` attaches
the result.
"""
