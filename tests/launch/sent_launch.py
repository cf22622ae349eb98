"""A launch file whose steps do as they are told by `wishes`, on whatever runs them."""

from dataclasses import dataclass

from chomp.config import Config
from chomp.executor import ExecutorStep, Resources
from chomp.launch import executor_main
from tests.launch.sent_steps import step


@dataclass(frozen=True, kw_only=True)
class Launch(Config):
    """Words for each step, which is named by them; and how many processes each of them is."""

    wishes: tuple[str, ...] = ("nothing",)
    processes: int = 1
    custom: dict[str, float] | None = None


def steps(launch: Launch) -> list[ExecutorStep]:
    """One step for each wish; those about one of several are of several processes."""
    wanted = Resources(processes=launch.processes, custom=launch.custom or {})
    return [step(wish.replace(" ", "-"), wish, resources=wanted) for wish in launch.wishes]


if __name__ == "__main__":
    executor_main(steps, Launch())
