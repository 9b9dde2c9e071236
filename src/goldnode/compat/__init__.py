"""Compatibility of hardware, drivers and software: facts with their sources, and the rules that use them."""
