"""Everything that may be declared, as data: stacks, platforms, node classes and archives."""
