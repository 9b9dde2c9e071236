"""What `goldnode check` costs. See docs/benchmarks/check.md."""
