"""A launch file: the base template, trained by as many processes as CHOMP_TEST_PROCESSES says."""

import os
from dataclasses import replace

from chomp.executor import ExecutorStep, Resources
from chomp.launch import executor_main
from experiments.grug.base import launch as base


def steps(launch: base.GrugBaseLaunchConfig) -> list[ExecutorStep]:
    """Those of base, whose last one is a gang."""
    count = int(os.environ["CHOMP_TEST_PROCESSES"])
    *others, train = base.steps(launch)
    return [*others, replace(train, resources=Resources(processes=count))]


if __name__ == "__main__":
    executor_main(steps, base.GrugBaseLaunchConfig())
