"""One script per claim: `python -m benchmarks.<name> [--quick]`."""
