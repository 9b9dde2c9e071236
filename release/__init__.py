"""Build of a release: wheel, sdist, Ansible collection, SBOM and checksums. `scripts/release` runs it."""
