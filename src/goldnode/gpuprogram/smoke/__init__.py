"""goldnode-smoke: the tests that run inside an image or on a node. `pack` packs them into a single file."""
