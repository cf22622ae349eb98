"""A driver that abandons its step while it runs: `python ray_abandoning.py PREFIX`."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chomp.errors import LaunchError
from chomp.executor import plan_steps
from chomp.executor.status import started_status, write_status
from chomp.launch.ray_runner import ray_runner
from tests.launch.sent_steps import step, wait_for


def abandon_one(prefix: str) -> None:
    """Begin a step that never ends, abandon it, and print what becomes of the call that runs it."""
    [item] = plan_steps([step("one", "never ends")], prefix=prefix)
    Path(item.path).mkdir(parents=True)
    write_status(item.path, started_status(None, item.identity.hash))  # as the executor does
    with ray_runner([item]) as runner, ThreadPoolExecutor() as threads:
        running = threads.submit(runner, item)
        try:
            wait_for(Path(item.path, "ready"))
            while not Path(item.path, "ready").read_text():  # who is there, a moment later
                time.sleep(0.005)
        finally:
            runner.abandon(item)
        error = running.exception()
        print(f"{type(error).__name__}: {error}")
        runner.abandon(item)
        try:
            runner(item)
        except LaunchError as early:
            print(f"before it began: {type(early).__name__}")
        runner.abandon(item)
        Path(item.path, "alone").touch()
        with runner.room(item):  # the other has given up
            runner(item)
        print("tried again")


if __name__ == "__main__":
    abandon_one(sys.argv[1])
