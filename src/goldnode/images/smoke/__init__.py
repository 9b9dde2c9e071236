"""Smoke tests of images and nodes. `runner` is packed into goldnode-smoke by `pack`; `inside` runs that in a built image; `record` keeps it."""
