"""`chomp data forecast`: what a run will read, from its config and the sizes of its stores."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from contextlib import closing

from chomp.cli.given_config import GivenConfig
from chomp.cli.run_data import run_data
from chomp.cli.stores import require_built
from chomp.cli.terminal import print_table


def forecast_data(given: GivenConfig) -> int:
    """Print examples, tokens and epochs of every component and stage.

    Opening the data as training does also warns as training does, and refuses the same.
    """
    from chomp.data import forecast_table

    run = run_data(given)
    require_built(run, ["train"])
    with closing(run.dataset(must_last=True)) as dataset:
        print_table(forecast_table(dataset.forecast(run.total_steps)))
    return 0
