"""Shared ground of container images: OCI layouts, registries, layers, and the engines that build them."""
