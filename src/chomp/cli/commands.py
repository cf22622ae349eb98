"""The commands: what each takes, and its help. What a command does is in the file of its group.

That file is imported once the command starts: `chomp --help` must answer at once.
"""

# ruff: noqa: PLC0415

from contextlib import nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from chomp import __version__
from chomp.cli.options import (
    AllowChanged,
    ConfigFile,
    Json,
    OneOfTheWeights,
    Out,
    Prefix,
    Run,
    RunFolder,
    RunTemplate,
    Template,
    Tokenizer,
    Trust,
    config_of,
    examples,
    group,
    later,
)
from chomp.cli.subcommands import (
    checkpoint_app,
    config_app,
    data_app,
    metrics_app,
    variant_app,
)
from chomp.errors import require
from chomp.screen import outliving_the_screen
from chomp.step_options import Allow, Force, MaxConcurrent, On, Overrides, Restarts

if TYPE_CHECKING:  # they are imported once a command starts
    from chomp.checkpoint import WeightsName
    from chomp.cli.loaded_run import GivenRun


app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode=None,  # boxes around help take 0.55 s instead of 0.4
)
launch_app = group("Processes that train together.")


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"chomp {__version__}")
        raise typer.Exit


@app.callback(help="Language-model pretraining in JAX.")
def _top(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


# --- training -----------------------------------------------------------------------------------


@app.command(
    help="Train a config, or continue its run.",
    epilog=examples(
        "chomp train configs/debug_smoke.yaml",
        "chomp train configs/base_smoke.yaml --dry-run",
        "chomp train configs/base_smoke.yaml -o train.steps=50 --run-dir runs/longer",
        "chomp train configs/base_smoke.yaml -o train.steps=80 --allow train.steps "
        "--run-dir runs/longer",
        "chomp train configs/base_smoke.yaml --run-dir runs/longer --resume 10",
        "chomp train configs/base_smoke.yaml --max-steps 5",
        "chomp train configs/base_smoke.yaml --restarts 10",
        "chomp train configs/base_smoke.yaml --on process --max-concurrent 2",
        "chomp train experiments/grug/base/launch.py",
    ),
)
@later
def train(
    config: ConfigFile,
    overrides: Overrides = None,
    run_dir: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="The run folder; default: runs/<project>/<name of CONFIG>-<hash of the run>.",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="none|latest|STEP",
            help="none: start fresh, an error if there are checkpoints. latest: an error if there "
            "are none. STEP: go back to that checkpoint, and move newer ones aside; the same "
            "command then continues. Default: continue from the newest checkpoint, if any.",
        ),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Save and end after at most N more steps; the schedule stays that of the whole "
            "run, and the same command continues.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check the config and show what a run would take; write nothing."
        ),
    ] = False,
    force: Force = None,
    allow: Allow = None,
    on: On = None,
    max_concurrent: MaxConcurrent = None,
    restarts: Restarts = 0,
    prefix: Prefix = None,
    template: Template = None,
) -> int:
    """Train, or start and watch the process that trains."""
    from chomp.launch.signals import require_restartable, run_with_restarts, this_command

    require_restartable(restarts, force or [])
    require(
        not restarts or resume != "none",
        given=f"--restarts {restarts} with --resume none",
        allowed="one of them: a restart would be refused for what the run has saved",
        fix="leave out --resume none: a new --run-dir has no checkpoints",
    )
    if restarts and not dry_run:
        return run_with_restarts(this_command("-m", "chomp"), restarts)
    from chomp.cli.train import train

    return train(
        config_of(config, overrides, prefix, template),
        run_dir=run_dir,
        resume=resume,
        max_steps=max_steps,
        is_dry_run=dry_run,
        force=force or [],
        allow=allow or [],
        on=on,
        max_concurrent=max_concurrent,
    )


@app.command(
    "verify-resume",
    help="Kill a run at random, resume it, and compare it with one that was not killed.",
    epilog=examples(
        "chomp verify-resume configs/debug_smoke.yaml",
        "chomp verify-resume configs/debug_smoke.yaml --kills 20 --seed 7",
        "chomp verify-resume configs/base_smoke.yaml --devices 1,2,4 --keep runs/verified",
        "chomp verify-resume experiments/grug/base/launch.py --steps 60",
    ),
)
@later
def verify_resume(
    config: ConfigFile,
    overrides: Overrides = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Steps to run; default: the config's.")
    ] = None,
    kills: Annotated[int, typer.Option(metavar="K", min=1, help="How often to kill the run.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the instants at which it is killed.")] = 0,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Move the run between these numbers of CPU devices, another one after each kill.",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Run there and keep it all; default: a temporary folder, kept if runs differ.",
        ),
    ] = None,
    prefix: Prefix = None,
    template: Template = None,
    as_json: Json = False,
) -> int:
    """Compare a killed run with an unbroken one."""
    from chomp.cli.verify_resume import verify_resume

    numbers = [] if devices is None else [part.strip() for part in devices.split(",")]
    are_right = all(part.isdecimal() and int(part) > 0 for part in numbers)
    require(
        devices is None or (are_right and len(set(numbers)) == len(numbers) > 1),
        given=f"--devices {devices}",
        allowed="at least two different numbers of devices, such as 1,2,4",
        fix="correct the list, or leave it out to stay on the devices of this machine",
    )
    with outliving_the_screen():
        return verify_resume(
            config_of(config, overrides, prefix, template),
            steps=steps,
            kills=kills,
            seed=seed,
            devices=tuple(map(int, numbers)),
            keep=keep,
            is_json=as_json,
        )


@launch_app.callback()
def _launch() -> None:
    """Keeps `local` a command of its own: typer would make the only one the whole."""


@launch_app.command(
    help="Start a command several times on this machine, as processes that train together.",
    epilog=examples(
        "chomp launch local --processes 2 -- python experiments/grug/base/launch.py",
        "chomp launch local --processes 2 --devices-per-process 4 -- "
        "chomp train configs/debug_smoke.yaml",
    ),
)
@later
def local(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="A launch file, or `chomp train CONFIG`."),
    ] = None,
    processes: Annotated[
        int, typer.Option(metavar="N", help="How many processes train together.")
    ] = 2,
    devices_per_process: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="GPUs of each process (default: all of them shared out); CPU devices of each "
            "where there is no GPU (default: 1).",
        ),
    ] = None,
    restarts: Annotated[
        int,
        typer.Option(metavar="N", help="Start all of them again up to N times after one was lost."),
    ] = 0,
) -> int:
    """Run the processes to their end."""
    from chomp.launch.multi_process import launch_locally

    return launch_locally(
        command or [],
        processes=processes,
        devices_per_process=devices_per_process,
        restarts=restarts,
    )


# --- a trained model ----------------------------------------------------------------------------


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


def _run(
    path: str,
    overrides: list[str] | None,
    template: str | None,
    tokenizer: str | None,
    is_trusted: bool,
    allows_changed: bool,
) -> "GivenRun":
    from chomp.cli.loaded_run import GivenRun

    return GivenRun(
        path=path,
        overrides=tuple(overrides or ()),
        template=template,
        tokenizer=tokenizer,
        is_trusted=is_trusted,
        allows_changed=allows_changed,
    )


@app.command(
    "eval",
    help="Evaluate a checkpoint: held-out loss and bits per byte, on its run's data or other data.",
    epilog=examples(
        "chomp eval runs/mine",
        "chomp eval runs/mine/checkpoints/step-100 --weights ema",
        "chomp eval runs/mine --data web/en=english.jsonl.gz --data 'books/*.txt'",
        "chomp eval runs/mine -o eval.max_eval_batches=null --json",
    ),
)
@later
def eval_(
    run: Run,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]PATH",
            help="Data instead of the run's own: a token store, or files, folders and patterns of "
            "text, JSON lines (.gz, .zst) or Parquet.",
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
    template: RunTemplate = None,
    tokenizer: Tokenizer = None,
    trust: Trust = False,
    allow_changed: AllowChanged = False,
) -> int:
    """Evaluate a checkpoint."""
    from chomp.cli.evaluate import evaluate
    from chomp.cli.loaded_run import leaving_together
    from chomp.launch.run import outputs_folder

    with leaving_together():
        return evaluate(
            _run(run, overrides, template, tokenizer, trust, allow_changed),
            data=data or [],
            weights=None if weights is None else weights.names(),
            text_key=text_key,
            prefix=outputs_folder(prefix),
            out=out,
            is_json=as_json,
        )


@app.command(
    help="Generate text from a checkpoint.",
    epilog=examples(
        'chomp generate runs/mine "Once upon a time" --max-tokens 64',
        'chomp generate runs/mine --prompt "Once upon a time" --top-k 40 --seed 7',
        "chomp generate runs/mine < prompt.txt",
        r"printf 'Once\nTwice\n' | chomp generate runs/mine -",
        "chomp generate runs/mine --interactive",
        "chomp generate runs/mine --file prompts.txt --temperature 0 --json",
        "chomp generate runs/mine",
    ),
)
@later
def generate(
    run: Run,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROMPT]...",
            help="Texts to continue; `-`: the lines of stdin. Without any: all of a file or pipe "
            "on stdin as one text, or else a piece of a held-out text.",
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="A prompt; repeatable."),
    ] = None,
    file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file with one prompt a line.")
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Continue each line that is typed.")
    ] = False,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="New tokens of each text, at most.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(metavar="T", min=0.0, help="0 takes the likeliest token.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="K", min=1, help="Only the K likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(metavar="P", help="Only the likeliest tokens with this much probability."),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="S", min=0, max=2**32 - 1, help="Seed of the draws.")
    ] = 0,
    num_samples: Annotated[
        int, typer.Option(metavar="K", min=1, help="Texts for each prompt.")
    ] = 1,
    weights: OneOfTheWeights = None,
    overrides: Overrides = None,
    as_json: Json = False,
    template: RunTemplate = None,
    tokenizer: Tokenizer = None,
    trust: Trust = False,
    allow_changed: AllowChanged = False,
) -> int:
    """Write texts."""
    from chomp.cli.generate import generate
    from chomp.cli.loaded_run import leaving_together

    with leaving_together():
        return generate(
            _run(run, overrides, template, tokenizer, trust, allow_changed),
            [*(prompts or ()), *(prompt or ())],
            file=file,
            is_interactive=interactive,
            max_tokens=max_tokens,
            choice={"temperature": temperature, "top_k": top_k, "top_p": top_p},
            seed=seed,
            num_samples=num_samples,
            weights=None if weights is None else weights.value,
            is_json=as_json,
        )


@app.command(
    help="Run lm-eval tasks on a checkpoint (extra `harness`).",
    epilog=examples(
        "chomp harness runs/mine --tasks sums,spelling --include-path tasks",
        "chomp harness runs/mine --tasks arc_easy --with-defaults --num-fewshot 5 --limit 100",
    ),
)
@later
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
    template: RunTemplate = None,
    tokenizer: Tokenizer = None,
    trust: Trust = False,
    allow_changed: AllowChanged = False,
) -> int:
    """Run tasks."""
    from chomp.cli.harness import harness
    from chomp.cli.loaded_run import leaving_together

    asked = {
        "include_path": include_path,
        "include_defaults": with_defaults or None,
        "num_fewshot": num_fewshot,
        "limit": limit,
        "batch_size": batch_size,
        "max_length": max_length,
        "allow_code": allow_code or None,
    }
    with leaving_together():
        return harness(
            _run(run, overrides, template, tokenizer, trust, allow_changed),
            tasks=None if tasks is None else tuple(filter(None, map(str.strip, tasks.split(",")))),
            # What is not given stays as the run's own config has it.
            asked={name: value for name, value in asked.items() if value is not None},
            weights=None if weights is None else weights.value,
            out=out,
            is_json=as_json,
        )


# --- runs ---------------------------------------------------------------------------------------


@app.command(
    help="Write a page about runs: curves, evaluations, samples, time, config.",
    epilog=examples(
        "chomp report runs/chomp/base_smoke-0123abcd",
        "chomp report runs/chomp/* --out report",
        "chomp report runs/longer --against runs/chomp/base_smoke-0123abcd",
        "chomp report runs/longer --profile",
    ),
)
@later
def report(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Run folders, or their metrics files.")
    ],
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where index.html goes; default: report/ in the run, or here for several runs.",
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="RUN", help="Also compare configs with this run's.")
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also summarize each run's newest trace.")
    ] = False,
    is_opened: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    as_json: Json = False,
) -> int:
    """Write the page."""
    from chomp.cli.report import write_report

    return write_report(
        runs, out, against, with_profile=profile, is_opened=is_opened, is_json=as_json
    )


@app.command(
    help="Show a run in the terminal while it trains: curves, evaluations, time left, last sample.",
    epilog=examples(
        "chomp watch outputs/grug/base-<hash>",
        "chomp watch outputs/grug/base-<hash> --once --metric train/loss --metric grad/norm/total",
    ),
)
@later
def watch(
    run: RunFolder,
    every: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=3600,
            metavar="SECONDS",
            help="How often to look (default: 2). Without a terminal: print a line at each change.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one view and end.")] = False,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Draw this metric instead of train/loss; repeatable."),
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, metavar="STEPS", help="Draw only the last steps.")
    ] = None,
) -> int:
    """Show the run."""
    from chomp.cli.report import watch_run

    require(
        not once or every is None,
        given=f"--once with --every {every:g}" if every is not None else "--once",
        allowed="one view (--once), or a look every so often (--every)",
        fix="leave one of them out",
    )
    return watch_run(run, metric or [], every_s=every, is_once=once, last_steps=last)


class At(StrEnum):
    """What both sides have spent where the verdict is given."""

    tokens = "tokens"
    flops = "flops"
    time = "time"


class Best(StrEnum):
    """Which value of a metric is the best."""

    lowest = "lowest"
    highest = "highest"


_FIELD = "KEY=VALUE"


@app.command(
    help="Measure whether a change helped: paired runs at equal tokens, FLOPs and time.",
    epilog=examples(
        "chomp compare base moe --seeds 3",
        "chomp compare base base --set-variant optim.lr=1e-3 --seeds 3 -o train.steps=200",
        "chomp compare 'outputs/grug/base-*' 'outputs/grug/moe-*' --metric eval/bpb --at flops",
        "chomp compare base moe --save",
    ),
)
@later
def compare(
    base: Annotated[
        str,
        typer.Argument(
            metavar="BASE",
            help="A variant, a launch file, a YAML file, a run folder, a folder of runs or a "
            "pattern.",
        ),
    ],
    variant: Annotated[str, typer.Argument(metavar="VARIANT", help="Likewise: what was changed.")],
    seeds: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="First run the missing ones of N seeds of both."),
    ] = None,
    first_seed: Annotated[
        int, typer.Option(min=0, metavar="K", help="With --seeds: the first of them.")
    ] = 0,
    metric: Annotated[str, typer.Option(metavar="NAME", help="What is compared.")] = "eval/loss",
    at: Annotated[
        At, typer.Option(help="The budget that decides; the others are shown.")
    ] = At.tokens,
    best: Annotated[
        Best | None,
        typer.Option(
            help="Which value of the metric is better; of a loss, bpb or perplexity the lowest is."
        ),
    ] = None,
    smallest: Annotated[
        float, typer.Option(min=0, metavar="PERCENT", help="Smaller differences count as none.")
    ] = 0.1,
    other_data: Annotated[
        bool, typer.Option("--other-data", help="Allow other data: the data is the change.")
    ] = False,
    both: Annotated[
        list[str] | None,
        typer.Option(
            "--override",
            "--set",
            "-o",
            metavar=_FIELD,
            help="With --seeds: change a field of both.",
        ),
    ] = None,
    only_base: Annotated[
        list[str] | None, typer.Option("--set-base", metavar=_FIELD, help="The same for BASE.")
    ] = None,
    only_variant: Annotated[
        list[str] | None,
        typer.Option("--set-variant", metavar=_FIELD, help="The same for VARIANT."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="With --seeds: local (default), process or ray."),
    ] = None,
    max_concurrent: Annotated[
        int | None, typer.Option(metavar="N", help="With --seeds: runs at the same time.")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="With --seeds: show the runs, start none.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --seeds: run all of them again.")
    ] = False,
    prefix: Prefix = None,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Also write the result there.")
    ] = None,
    save: Annotated[
        bool, typer.Option("--save", help="Keep the result for `chomp variant ledger`.")
    ] = False,
    note: Annotated[str, typer.Option(help="With --save: what a reader should know.")] = "",
) -> int:
    """Compare two sides."""
    changed = [*(both or ()), *(only_base or ()), *(only_variant or ())]
    running = {"-o": changed, "--first-seed": first_seed, "--on": on}
    running |= {"--max-concurrent": max_concurrent, "--plan": plan, "--force": force}
    for option, value in running.items():
        require(
            seeds is not None or not value,
            given=f"{option} without --seeds",
            allowed=f"{option} where runs are started",
            fix="add --seeds N, or leave it out",
        )
    from chomp.cli.compare import compare

    does_run = seeds is not None and not plan
    with outliving_the_screen() if does_run else nullcontext():
        return compare(
            base,
            variant,
            metric=metric,
            at=at.value,
            best=None if best is None else best.value,
            smallest_percent=smallest,
            is_other_data=other_data,
            seeds=range(first_seed, first_seed + (seeds or 0)),
            both=both or (),
            only_base=only_base or (),
            only_variant=only_variant or (),
            on=on,
            max_concurrent=max_concurrent,
            is_plan=plan,
            is_forced=force,
            prefix=prefix,
            json=json,
            is_saved=save,
            note=note,
        )


@app.command(
    help="Let one version of a step count as another, and reuse its result.",
    epilog=examples(
        "chomp pin outputs/grug/base-<hash that is done> "
        "outputs/grug/base-<hash that --plan shows>",
        "chomp pin --list",
        "chomp pin --remove grug/base-<hash>",
    ),
)
@later
def pin(
    kept: Annotated[
        str | None,
        typer.Argument(metavar="A", help="The result to reuse: NAME-HASH or its folder."),
    ] = None,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="B", help="The version that counts as A from then on, written likewise."
        ),
    ] = None,
    is_list: Annotated[bool, typer.Option("--list", help="Show what is pinned.")] = False,
    remove: Annotated[
        str | None, typer.Option(metavar="B", help="Let B count as itself again.")
    ] = None,
    prefix: Prefix = None,
) -> int:
    """Add, list or remove pins."""
    from chomp.cli.output import say
    from chomp.executor.pins import add_pin, read_pins, remove_pin
    from chomp.launch.run import outputs_folder

    pair = [text for text in (kept, other) if text is not None]
    words = [*pair, *["--list"] * is_list, *([remove] if remove else [])]
    require(
        [bool(pair), is_list, remove is not None].count(True) == 1 and len(pair) in (0, 2),
        given=f"chomp pin with {' '.join(words) or 'nothing'}",
        allowed="chomp pin A B, chomp pin --list, or chomp pin --remove B",
        fix="give one of them; A is the result that is kept",
    )
    folder = outputs_folder(prefix)
    if is_list:
        pins = read_pins(folder)
        for name, kept_name in sorted(pins.items()):
            say(f"{name} counts as {kept_name}")
        if not pins:
            say(f"Nothing is pinned in {folder}.")
    elif remove is not None:
        say(f"{remove_pin(folder, remove)} counts as itself again.")
    else:
        kept_name, name = add_pin(folder, *pair)
        say(f"{name} counts as {kept_name} from now on. Undo: chomp pin --remove {name}")
    return 0


for _name, _inner in (
    ("launch", launch_app),
    ("config", config_app),
    ("data", data_app),
    ("metrics", metrics_app),
    ("checkpoint", checkpoint_app),
    ("variant", variant_app),
):
    app.add_typer(_inner, name=_name)
