"""`chomp compare`: did a change help? Paired runs at equal budgets, and a verdict."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from functools import partial

from chomp.cli import compare_arguments as given
from chomp.cli.config_arguments import Action, Prefix
from chomp.errors import require
from chomp.screen import outliving_the_screen

# The mark is typer's: it leaves the lines of the paragraph after it as they are.
EXAMPLES = """\b
Examples:
  chomp compare base moe --seeds 3
  chomp compare base base --set-variant optim.lr=1e-3 --seeds 3 -o train.steps=200
  chomp compare 'outputs/grug/base-*' 'outputs/grug/moe-*' --metric eval/bpb --at flops
  chomp compare base moe --save
"""


def compare(
    base: given.Base,
    variant: given.Variant,
    seeds: given.Seeds = None,
    first_seed: given.FirstSeed = 0,
    metric: given.MetricName = "eval/loss",
    at: given.Deciding = given.At.tokens,
    best: given.BestValue = None,
    smallest: given.Smallest = 0.1,
    other_data: given.OtherData = False,
    both: given.Both = None,
    only_base: given.OnlyBase = None,
    only_variant: given.OnlyVariant = None,
    on: given.On = None,
    max_concurrent: given.MaxConcurrent = None,
    plan: given.Plan = False,
    force: given.Force = False,
    prefix: Prefix = None,
    json: given.Json = None,
    save: given.Save = False,
    note: given.Note = "",
) -> Action:
    """What `chomp compare` does."""
    changed = [*(both or ()), *(only_base or ()), *(only_variant or ())]
    running = {"-o": changed, "--first-seed": first_seed, "--on": on}
    running |= {"--max-concurrent": max_concurrent, "--plan": plan, "--force": force}
    _require_seeds(seeds, running)
    from chomp.cli.compare_run import CompareOptions, SeedOptions, compared

    asked = CompareOptions(
        base=base,
        variant=variant,
        metric=metric,
        at=str(at),
        best=None if best is None else str(best),
        smallest_percent=smallest,
        is_other_data=other_data,
        prefix=prefix,
        json=json,
        is_saved=save,
        note=note,
        seeds=None
        if seeds is None
        else SeedOptions(
            seeds=tuple(range(first_seed, first_seed + seeds)),
            both=tuple(both or ()),
            base=tuple(only_base or ()),
            variant=tuple(only_variant or ()),
            on=on,
            max_concurrent=max_concurrent,
            is_plan=plan,
            is_forced=force,
        ),
    )
    action = partial(compared, asked)
    return action if seeds is None or plan else outliving_the_screen()(action)


def _require_seeds(seeds: int | None, running: dict[str, object]) -> None:
    """Raise `ConfigError` for an option that says how to run, where nothing is run."""
    for option, value in running.items():
        require(
            seeds is not None or not value,
            given=f"{option} without --seeds",
            allowed=f"{option} where runs are started",
            fix="add --seeds N, or leave it out",
        )
