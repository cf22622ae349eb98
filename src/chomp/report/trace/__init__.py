"""A profiler trace of a run, read without JAX and summed up: `summary.summary_of_run`."""
