"""What our benchmarks are measured against."""
