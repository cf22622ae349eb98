"""`chomp eval`, `generate`, `harness`: what each takes. What it does is in the file named for it.

All three take a run or one of its checkpoints, and look at the model with the run's own source.
"""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chomp.cli.config_arguments import Action, Prefix
from chomp.step_options import Overrides

if TYPE_CHECKING:  # for annotations alone
    from chomp.checkpoint.weights_alone import WeightsName
    from chomp.cli.opened_run import GivenRun

# The mark is typer's: it leaves the lines of the paragraph after it as they are.
EVAL_EXAMPLES = """\b
Examples:
  chomp eval runs/mine
  chomp eval runs/mine/checkpoints/step-100 --weights ema
  chomp eval runs/mine --data web/en=english.jsonl.gz --data 'books/*.txt'
  chomp eval runs/mine -o eval.max_eval_batches=null --json
"""
GENERATE_EXAMPLES = """\b
Examples:
  chomp generate runs/mine "Once upon a time" --max-tokens 64
  chomp generate runs/mine --prompt "Once upon a time" --top-k 40 --seed 7
  chomp generate runs/mine < prompt.txt
  printf 'Once\nTwice\n' | chomp generate runs/mine -
  chomp generate runs/mine --interactive
  chomp generate runs/mine --file prompts.txt --temperature 0 --json
  chomp generate runs/mine
"""
HARNESS_EXAMPLES = """\b
Examples:
  chomp harness runs/mine --tasks sums,spelling --include-path tasks
  chomp harness runs/mine --tasks arc_easy --with-defaults --num-fewshot 5 --limit 100
"""

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_CHECKPOINT",
        help="A run folder, its checkpoints folder (both: the newest), or a step-N.",
    ),
]
Trust = Annotated[bool, typer.Option("--trust", help="Run the run's template, whoever wrote it.")]
AllowChanged = Annotated[
    bool,
    typer.Option(
        "--allow-changed",
        help="Go on though the run's config or template is not what the checkpoint was saved with.",
    ),
]
Template = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="A template in the place of the run's own copy."),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="A tokenizer in the place of the run's own copy."),
]
Out = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Where the JSON goes; default: the run's artifacts/."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]


class EvaluatedWeights(StrEnum):
    """Which weights of a checkpoint are evaluated."""

    params = "params"
    ema = "ema"
    both = "both"

    def names(self) -> "tuple[WeightsName, ...]":
        """The weights that are meant."""
        if self is EvaluatedWeights.both:
            return ("params", "ema")
        return ("ema",) if self is EvaluatedWeights.ema else ("params",)


class Weights(StrEnum):
    """Which weights of a checkpoint are asked."""

    params = "params"
    ema = "ema"


OneOfTheWeights = Annotated[
    Weights | None,
    typer.Option(
        help="The weights themselves, or their moving average; default: the average, if any."
    ),
]


# The functions below are long and hold nothing: an option is an argument, and each has its help.


def eval_(
    run: Run,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]PATH",
            help="Data in the place of the run's own: a token store, or files, folders and "
            "patterns of text, JSON lines (.gz, .zst) or Parquet.",
        ),
    ] = None,
    weights: Annotated[
        EvaluatedWeights | None,
        typer.Option(help="Which weights; default: as the run's eval config says."),
    ] = None,
    text_key: Annotated[
        str, typer.Option(metavar="KEY", help="Where a JSON or Parquet record has its text.")
    ] = "text",
    overrides: Overrides = None,
    as_json: Json = False,
    out: Out = None,
    prefix: Prefix = None,
    template: Template = None,
    tokenizer: Tokenizer = None,
    trust: Trust = False,
    allow_changed: AllowChanged = False,
) -> Action:
    """What `chomp eval` does."""
    from chomp.cli.eval_run import eval_run
    from chomp.launch.launching import outputs_folder

    return partial(
        _done,
        eval_run,
        _given(run, overrides, template, tokenizer, trust, allow_changed),
        data=data or [],
        weights=None if weights is None else weights.names(),
        text_key=text_key,
        prefix=outputs_folder(prefix),
        out=out,
        is_json=as_json,
    )


def generate(
    run: Run,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROMPT]...",
            help="Texts to go on from; `-`: the lines of stdin. None: all of a file or pipe on "
            "stdin as one text, or else a piece of a held-out text.",
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="A prompt; may be given often."),
    ] = None,
    file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file with one prompt a line.")
    ] = None,
    interactive: Annotated[
        bool,
        typer.Option("--interactive", "-i", help="Go on from each line that is typed."),
    ] = False,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="New tokens of each text, at most.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(metavar="T", min=0.0, help="0: the likeliest token.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="K", min=1, help="Only the K likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(metavar="P", help="Only the likeliest tokens with this much probability."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="S", min=0, max=2**32 - 1, help="Of the draws.")] = 0,
    num_samples: Annotated[
        int, typer.Option(metavar="K", min=1, help="Texts for each prompt.")
    ] = 1,
    weights: OneOfTheWeights = None,
    overrides: Overrides = None,
    as_json: Json = False,
    template: Template = None,
    tokenizer: Tokenizer = None,
    trust: Trust = False,
    allow_changed: AllowChanged = False,
) -> Action:
    """What `chomp generate` does."""
    from chomp.cli.generate_run import Asked, generate_run

    return partial(
        _done,
        generate_run,
        _given(run, overrides, template, tokenizer, trust, allow_changed),
        Asked(
            prompts=(*(prompts or ()), *(prompt or ())),
            file=file,
            is_interactive=interactive,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            num_samples=num_samples,
        ),
        weights=None if weights is None else weights.value,
        is_json=as_json,
    )


def harness(
    run: Run,
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="Names of tasks and groups; default: those of the run's config."
        ),
    ] = None,
    include_path: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="A folder of task files (YAML).")
    ] = None,
    with_defaults: Annotated[
        bool,
        typer.Option("--with-defaults", help="lm-eval's own tasks too, whose data is on a hub."),
    ] = False,
    num_fewshot: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Examples in each prompt.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Documents of each task, at most.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(metavar="B", min=1, help="Rows of packed requests.")
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(metavar="T", min=1, help="Tokens of a row; default: as in training."),
    ] = None,
    weights: OneOfTheWeights = None,
    allow_code: Annotated[
        bool,
        typer.Option(
            "--allow-code", help="Tasks may bring Python, or run the model's answers as programs."
        ),
    ] = False,
    overrides: Overrides = None,
    as_json: Json = False,
    out: Out = None,
    template: Template = None,
    tokenizer: Tokenizer = None,
    trust: Trust = False,
    allow_changed: AllowChanged = False,
) -> Action:
    """What `chomp harness` does."""
    from chomp.cli.harness_run import harness_run

    # What is not said stays as the run's own config has it.
    asked = {
        "include_path": include_path,
        "include_defaults": with_defaults or None,
        "num_fewshot": num_fewshot,
        "limit": limit,
        "batch_size": batch_size,
        "max_length": max_length,
        "allow_code": allow_code or None,
    }
    return partial(
        _done,
        harness_run,
        _given(run, overrides, template, tokenizer, trust, allow_changed),
        tasks=None if tasks is None else tuple(filter(None, map(str.strip, tasks.split(",")))),
        asked={name: value for name, value in asked.items() if value is not None},
        weights=None if weights is None else weights.value,
        out=out,
        is_json=as_json,
    )


def _done(command: Callable[..., int], *arguments: Any, **options: Any) -> int:
    """The exit code of a command; of several processes, one that fails keeps no other waiting."""
    import jax

    from chomp.mesh import leave_on_error

    try:
        return command(*arguments, **options)
    except BaseException:
        # Only then: asking for the number of processes would look for devices first.
        if jax.distributed.is_initialized():
            with leave_on_error():
                raise
        raise


def _given(
    path: str,
    overrides: list[str] | None,
    template: str | None,
    tokenizer: str | None,
    is_trusted: bool,
    allows_changed: bool,
) -> "GivenRun":
    from chomp.cli.opened_run import GivenRun

    return GivenRun(
        path=path,
        overrides=tuple(overrides or ()),
        template=template,
        tokenizer=tokenizer,
        is_trusted=is_trusted,
        allows_changed=allows_changed,
    )
