"""What an inspection costs. See docs/benchmarks/inspect.md."""
