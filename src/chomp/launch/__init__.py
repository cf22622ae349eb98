"""From a launch file to running steps."""

from chomp.launch.main import executor_main

__all__ = ["executor_main"]
