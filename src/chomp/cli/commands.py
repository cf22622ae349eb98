"""Every command, with its options and its help; the function that does it is named beside it."""

from typing import Literal

from chomp.cli.options import (
    AllowChanged,
    Command,
    Config,
    ConfigFile,
    ConfigOptions,
    GivenRun,
    Json,
    OneOfTheWeights,
    Out,
    Place,
    Prefix,
    RunFolder,
    Template,
    Trust,
    Variant,
    WeightsName,
    argument,
    command,
    flag,
    option,
)
from chomp.errors import require
from chomp.step_options import (
    Allow,
    Force,
    MaxConcurrent,
    On,
    Overrides,
    Restarts,
    VerifySources,
)

# --- training -----------------------------------------------------------------------------------


@command(
    "train",
    "train:train",
    "chomp train configs/debug_smoke.yaml",
    "chomp train configs/base_smoke.yaml --dry-run",
    "chomp train configs/base_smoke.yaml -o train.steps=50 --run-dir runs/mine",
    "chomp train configs/base_smoke.yaml -o train.steps=80 \\",
    "    --allow train.steps --run-dir runs/mine",
    "chomp train configs/base_smoke.yaml --run-dir runs/mine --resume 10",
    "chomp train configs/base_smoke.yaml --max-steps 5",
    "chomp train configs/base_smoke.yaml --restarts 10",
    "chomp train configs/base_smoke.yaml --on process --max-concurrent 2",
    "chomp train experiments/grug/base/launch.py",
)
class Train(ConfigOptions):
    """Train a config, or continue its run."""

    config: ConfigFile
    run_dir: str | None = option(
        "The run folder; default: runs/<project>/<name of CONFIG>-<hash of the run>.",
        metavar="FOLDER",
    )
    resume: str | None = option(
        "none: start fresh, an error if there are checkpoints. latest: an error if there "
        "are none. STEP: go back to that checkpoint, and move newer ones aside; the same "
        "command then continues. Default: continue from the newest checkpoint, if any.",
        metavar="none|latest|STEP",
    )
    max_steps: int | None = option(
        "Save and end after at most N more steps; the schedule stays that of the whole "
        "run, and the same command continues.",
        metavar="N",
        min=1,
    )
    dry_run: bool = flag(
        "Check the config and show what a run would take; write nothing.", "--dry-run"
    )
    force: Force = None
    allow: Allow = None
    on: On = None
    max_concurrent: MaxConcurrent = None
    restarts: Restarts = 0
    verify_sources: VerifySources = False

    def __post_init__(self) -> None:
        require(
            not self.restarts or self.resume != "none",
            f"--restarts {self.restarts} with --resume none",
            allowed="one of them: a restart would be refused for what the run has saved",
            fix="leave out --resume none: a new --run-dir has no checkpoints",
        )


@command(
    "verify-resume",
    "verify_resume:verify_resume",
    "chomp verify-resume configs/debug_smoke.yaml",
    "chomp verify-resume configs/debug_smoke.yaml --kills 20 --seed 7",
    "chomp verify-resume configs/base_smoke.yaml --devices 1,2,4 --keep kept",
    "chomp verify-resume experiments/grug/base/launch.py --steps 60",
)
class VerifyResume(ConfigOptions):
    """Kill a run at random, resume it, and compare.

    It is compared with the same run that was not killed: every loss, and the final state.
    """

    config: ConfigFile
    steps: int | None = option("Steps to run; default: the config's.", metavar="N", min=1)
    kills: int = option("How often to kill the run.", default=5, metavar="K", min=1)
    seed: int = option("Seed of the instants at which it is killed.", default=0)
    devices: str | None = option(
        "Move the run between these numbers of CPU devices, another one after each kill.",
        metavar="N,N,...",
    )
    keep: str | None = option(
        "Run there and keep it all; default: a temporary folder, kept if runs differ.",
        metavar="FOLDER",
    )
    as_json: Json = False

    @property
    def device_counts(self) -> tuple[int, ...]:
        """The numbers of devices to move between; none: whatever is there."""
        numbers = [] if self.devices is None else [part.strip() for part in self.devices.split(",")]
        are_right = all(part.isdecimal() and int(part) > 0 for part in numbers)
        require(
            self.devices is None or (are_right and len(set(numbers)) == len(numbers) > 1),
            f"--devices {self.devices}",
            allowed="at least two different numbers of devices, such as 1,2,4",
            fix="correct the list, or leave it out to stay on the devices of this machine",
        )
        return tuple(map(int, numbers))

    def __post_init__(self) -> None:
        _ = self.device_counts


@command(
    "launch local",
    "main:launch_local",
    "chomp launch local --processes 2 -- python experiments/grug/base/launch.py",
    "chomp launch local --processes 2 --devices-per-process 4 -- \\",
    "    chomp train configs/debug_smoke.yaml",
)
class LaunchLocal(Command):
    """Start a command several times on this machine.

    The processes train together, under jax.distributed.
    """

    command: list[str] | None = argument(
        "A launch file, or `chomp train CONFIG`.", metavar="-- COMMAND...", default=None
    )
    processes: int = option("How many processes train together.", default=2, metavar="N")
    devices_per_process: int | None = option(
        "GPUs of each process (default: all of them shared out); CPU devices of each "
        "where there is no GPU (default: 1).",
        metavar="N",
    )
    restarts: int = option(
        "Start all of them again up to N times after one was lost.", default=0, metavar="N"
    )


# --- a trained model ----------------------------------------------------------------------------


@command(
    "eval",
    "evaluate:evaluate",
    "chomp eval runs/mine",
    "chomp eval runs/mine/checkpoints/step-100 --weights ema",
    "chomp eval runs/mine --data web/en=english.jsonl.gz --data 'books/*.txt'",
    "chomp eval runs/mine -o eval.max_eval_batches=null --json",
)
class Evaluate(GivenRun):
    """Evaluate a checkpoint: held-out loss and bits per byte.

    On its run's own data, or on other data.
    """

    data: list[str] | None = option(
        "Data instead of the run's own: a token store, or files, folders and patterns of "
        "text, JSON lines (.gz, .zst) or Parquet.",
        metavar="[NAME=]PATH",
    )
    weights: Literal["params", "ema", "both"] | None = option(
        "Which weights; default: as the run's eval config says."
    )
    text_key: str = option(
        "Where a JSON or Parquet record has its text.", default="text", metavar="KEY"
    )
    as_json: Json = False
    out: Out = None
    prefix: Prefix = None


@command(
    "generate",
    "generate:generate",
    'chomp generate runs/mine "Once upon a time" --max-tokens 64',
    'chomp generate runs/mine --prompt "Once upon a time" --top-k 40 --seed 7',
    "chomp generate runs/mine < prompt.txt",
    r"printf 'Once\nTwice\n' | chomp generate runs/mine -",
    "chomp generate runs/mine --interactive",
    "chomp generate runs/mine --file prompts.txt --temperature 0 --json",
    "chomp generate runs/mine",
)
class Generate(GivenRun):
    """Generate text from a checkpoint."""

    prompts: list[str] | None = argument(
        "Texts to continue; `-`: the lines of stdin. Without any: all of a file or pipe "
        "on stdin as one text, or else a piece of a held-out text.",
        metavar="PROMPT",
        default=None,
    )
    prompt: list[str] | None = option("A prompt; repeatable.", "--prompt", "-p", metavar="TEXT")
    file: str | None = option("A file with one prompt a line.", metavar="FILE")
    interactive: bool = option(
        "Continue each line that is typed.", "--interactive", "-i", default=False
    )
    max_tokens: int | None = option("New tokens of each text, at most.", metavar="N", min=1)
    temperature: float | None = option("0 takes the likeliest token.", metavar="T", min=0.0)
    top_k: int | None = option("Only the K likeliest tokens.", metavar="K", min=1)
    top_p: float | None = option(
        "Only the likeliest tokens with this much probability.", metavar="P"
    )
    seed: int = option("Seed of the draws.", default=0, metavar="S", min=0, max=2**32 - 1)
    num_samples: int = option("Texts for each prompt.", default=1, metavar="K", min=1)
    weights: OneOfTheWeights = None
    as_json: Json = False

    def __post_init__(self) -> None:
        has_prompts = bool(self.prompts or self.prompt)
        others = {"a prompt": has_prompts, "--file": self.file is not None, "--json": self.as_json}
        for name, is_given in others.items():
            require(
                not (self.interactive and is_given),
                f"--interactive with {name}",
                allowed="prompts that are typed, and texts that are shown",
                fix="leave one out",
            )
        require(
            self.file is None or not has_prompts,
            f"prompts and --file {self.file}",
            allowed="one of them",
            fix="leave one out",
        )
        require(
            self.top_p is None or 0.0 < self.top_p <= 1.0,
            f"--top-p {self.top_p}",
            allowed="above 0 and at most 1",
            fix="0.9 leaves out the least likely tenth; without --top-p it is the run's "
            "samples.top_p",
        )


@command(
    "harness",
    "harness:harness",
    "chomp harness runs/mine --tasks sums,spelling --include-path tasks",
    "chomp harness runs/mine --tasks arc_easy --with-defaults --num-fewshot 5",
)
class HarnessTasks(GivenRun):
    """Run lm-eval tasks on a checkpoint (extra `harness`)."""

    tasks: str | None = option(
        "Names of tasks and groups; default: those of the run's config.", metavar="A,B"
    )
    include_path: str | None = option("A folder of task files (YAML).", metavar="FOLDER")
    with_defaults: bool = flag(
        "lm-eval's own tasks too, whose data is on a hub.", "--with-defaults"
    )
    num_fewshot: int | None = option("Examples in each prompt.", metavar="N", min=0)
    limit: int | None = option("Documents of each task, at most.", metavar="N", min=1)
    batch_size: int | None = option("Rows of packed requests.", metavar="B", min=1)
    max_length: int | None = option("Tokens of a row; default: as in training.", metavar="T", min=1)
    weights: OneOfTheWeights = None
    allow_code: bool = flag(
        "Tasks may bring Python, or run the model's answers as programs.", "--allow-code"
    )
    as_json: Json = False
    out: Out = None


# --- runs ---------------------------------------------------------------------------------------


@command(
    "report",
    "report:write_report",
    "chomp report runs/chomp/base_smoke-0123abcd",
    "chomp report runs/chomp/* --out report",
    "chomp report runs/longer --against runs/chomp/base_smoke-0123abcd",
    "chomp report runs/longer --profile",
)
class Report(Command):
    """Write a page about runs: curves, samples, time, config."""

    runs: list[str] = argument("Run folders, or their metrics files.", metavar="RUN")
    out: str | None = option(
        "Where index.html goes; default: report/ in the run, or here for several runs.",
        metavar="DIR",
    )
    against: str | None = option("Also compare configs with this run's.", metavar="RUN")
    profile: bool = flag("Also summarize each run's newest trace.", "--profile")
    is_opened: bool = flag("Open it in a browser.", "--open")
    as_json: Json = False


@command(
    "watch",
    "report:watch_run",
    "chomp watch outputs/grug/base-<hash>",
    "chomp watch outputs/grug/base-<hash> --once --metric train/loss --metric lr",
)
class Watch(Command):
    """Show a run in the terminal while it trains.

    Curves, evaluations, time left, last sample.
    """

    run: RunFolder
    every: float | None = option(
        "How often to look (default: 2). Without a terminal: print a line at each change.",
        min=0.1,
        max=3600,
        metavar="SECONDS",
        show_default=False,
    )
    once: bool = flag("Print one view and end.", "--once")
    metric: list[str] | None = option(
        "Draw this metric instead of train/loss; repeatable.", metavar="NAME"
    )
    last: int | None = option("Draw only the last steps.", min=1, metavar="STEPS")

    def __post_init__(self) -> None:
        require(
            not self.once or self.every is None,
            f"--once with --every {self.every or 0:g}",
            allowed="one view (--once), or a look every so often (--every)",
            fix="leave one of them out",
        )


@command(
    "compare",
    "compare:compare",
    "chomp compare base moe --seeds 3",
    "chomp compare base base --set-variant optim.lr=1e-3 --seeds 3",
    "chomp compare 'outputs/grug/base-*' 'outputs/grug/moe-*' --at flops",
    "chomp compare base moe --metric eval/bpb --save",
)
class Compare(Command):
    """Measure whether a change helped.

    Paired runs are compared at equal tokens, FLOPs and time.
    """

    base: str = argument(
        "A variant, a launch file, a YAML file, a run folder, a folder of runs or a pattern.",
        metavar="BASE",
    )
    variant: str = argument("Likewise: what was changed.", metavar="VARIANT")
    seeds: int | None = option("First run the missing ones of N seeds of both.", min=1, metavar="N")
    first_seed: int = option("With --seeds: the first of them.", default=0, min=0, metavar="K")
    metric: str = option("What is compared.", default="eval/loss", metavar="NAME")
    at: Literal["tokens", "flops", "time"] = option(
        "The budget that decides; the others are shown.", default="tokens"
    )
    best: Literal["lowest", "highest"] | None = option(
        "Which value of the metric is better; of a loss, bpb or perplexity the lowest is."
    )
    smallest: float = option(
        "Smaller differences count as none.", default=0.1, min=0, metavar="PERCENT"
    )
    other_data: bool = flag("Allow other data: the data is the change.", "--other-data")
    both: list[str] | None = option(
        "With --seeds: change a field of both.", "--override", "--set", "-o", metavar="KEY=VALUE"
    )
    only_base: list[str] | None = option("The same for BASE.", "--set-base", metavar="KEY=VALUE")
    only_variant: list[str] | None = option(
        "The same for VARIANT.", "--set-variant", metavar="KEY=VALUE"
    )
    on: str | None = option("With --seeds: local (default), process or ray.", metavar="WHERE")
    max_concurrent: int | None = option("With --seeds: runs at the same time.", metavar="N")
    plan: bool = flag("With --seeds: show the runs, start none.", "--plan")
    force: bool = flag("With --seeds: run all of them again.", "--force")
    prefix: Prefix = None
    json: str | None = option("Also write the result there.", "--json", metavar="FILE")
    save: bool = flag("Keep the result for `chomp variant ledger`.", "--save")
    note: str = option("With --save: what a reader should know.", default="")

    def __post_init__(self) -> None:
        changed = bool(self.both or self.only_base or self.only_variant)
        of_runs = {"-o": changed, "--first-seed": self.first_seed, "--on": self.on}
        of_runs |= {"--max-concurrent": self.max_concurrent}
        of_runs |= {"--plan": self.plan, "--force": self.force}
        for name, value in of_runs.items():
            require(
                self.seeds is not None or not value,
                f"{name} without --seeds",
                allowed=f"{name} where runs are started",
                fix="add --seeds N, or leave it out",
            )


@command(
    "pin",
    "main:pin",
    "chomp pin outputs/grug/base-<done> outputs/grug/base-<that --plan shows>",
    "chomp pin --list",
    "chomp pin --remove grug/base-<hash>",
)
class Pin(Command):
    """Reuse the result of another version of a step."""

    kept: str | None = argument(
        "The result to reuse: NAME-HASH or its folder.", metavar="A", default=None
    )
    other: str | None = argument(
        "The version that counts as A from then on, written likewise.", metavar="B", default=None
    )
    is_list: bool = flag("Show what is pinned.", "--list")
    remove: str | None = option("Let B count as itself again.", metavar="B")
    prefix: Prefix = None

    def __post_init__(self) -> None:
        pair = [text for text in (self.kept, self.other) if text is not None]
        words = [*pair, *["--list"] * self.is_list, *([self.remove] if self.remove else [])]
        kinds = [bool(pair), self.is_list, self.remove is not None]
        require(
            kinds.count(True) == 1 and len(pair) in (0, 2),
            f"chomp pin with {' '.join(words) or 'nothing'}",
            allowed="chomp pin A B, chomp pin --list, or chomp pin --remove B",
            fix="give one of them; A is the result that is kept",
        )


@command("metrics replay", "report:replay_metrics")
class MetricsReplay(Command):
    """Send every row of a run's record to W&B or TensorBoard."""

    run: RunFolder
    to: Literal["wandb", "tensorboard"] = option(
        "Where to.", "--to", default=..., show_default=False
    )
    id: str | None = option("W&B only: the run to write to; default: a new one.", metavar="ID")

    def __post_init__(self) -> None:
        require(
            self.id is None or self.to == "wandb",
            f"--id {self.id} with --to {self.to}",
            allowed="--id with --to wandb",
            fix="leave it out",
        )


@command("metrics show", "report:show_metrics")
class MetricsShow(Command):
    """Show the newest values of a run's record, and its summary."""

    run: RunFolder
    rows: int = option("How many steps to show.", default=5, min=1)
    as_json: Json = False


# --- configs ------------------------------------------------------------------------------------


@command(
    "config show",
    "config:show_config",
    "chomp config show configs/base_smoke.yaml",
    "chomp config show configs/base_smoke.yaml -o train.steps=50 > mine.yaml",
    "chomp config show runs/mine",
)
class ConfigShow(Command):
    """Print a config as YAML, with every field of it."""

    config: Config
    overrides: Overrides = None
    template: Template = None


_SIDE = "A YAML file, a launch file or a run folder."


@command(
    "config diff",
    "config:diff_configs",
    "chomp config diff configs/debug_smoke.yaml configs/base_smoke.yaml",
    "chomp config diff runs/mine configs/mine.yaml",
    "chomp config diff runs/mine runs/other",
)
class ConfigDiff(Command):
    """Show the fields that differ between two configs.

    Or between two runs, or a config and a run; and what each change means for a run.
    """

    before: str = argument(_SIDE, metavar="A")
    after: str = argument(_SIDE, metavar="B")
    template: Template = None
    trust: Trust = False
    as_json: Json = False


@command(
    "config schema",
    "config:show_schema",
    "chomp config schema",
    "chomp config schema --template base > base.schema.json",
)
class ConfigSchema(Command):
    """Print the JSON schema of YAML files for a template."""

    template: str | None = option(
        "A template, by its name under experiments/grug or its folder; default: megalodon.",
        metavar="NAME",
    )


# --- data ---------------------------------------------------------------------------------------


@command("data build", "data:build_data")
class DataBuild(ConfigOptions):
    """Build the tokenizer and the token stores of a config.

    What is finished stays as it is.
    """

    config: Config
    only: list[str] | None = option("Only this component; repeatable.", metavar="NAME")
    as_json: Json = False
    verify_sources: VerifySources = False


@command("data verify", "data:verify_data")
class DataVerify(ConfigOptions):
    """Read stores completely and check what they hold.

    Against their checksums and counts.
    """

    targets: list[str] = argument("Configs, or folders of token stores.", metavar="CONFIG|STORE")


@command("data inspect", "data:inspect_data")
class DataInspect(ConfigOptions):
    """Show what stores hold: counts, lengths, first documents."""

    target: str = argument("A config, or the folder of a store.", metavar="CONFIG|STORE")
    documents: int = option("How many documents to show.", default=3, min=0)
    as_json: Json = False


@command("data where", "data_where:where")
class DataWhere(ConfigOptions):
    """Show the documents of a batch, or the steps of a document."""

    config: Config
    step: int | None = option("Show the batch of this step.")
    row: int | None = option("Only this row of the batch.")
    doc: str | None = option("Show when this document is seen.", metavar="ID")
    text: bool = flag("With --step: also how each piece begins.", "--text")
    as_json: Json = False

    def __post_init__(self) -> None:
        has_doc = self.doc is not None
        require(
            (self.step is None) == has_doc,
            "both --step and --doc" if has_doc else "neither --step nor --doc",
            allowed="one of them: --step N asks what a batch is made of, --doc ID when it is seen",
            fix="leave one out" if has_doc else "add --step 0, for example",
        )
        require(
            not has_doc or (self.row is None and not self.text),
            "--doc with --row or --text",
            allowed="--row and --text with --step only",
            fix="leave them out",
        )


@command("data forecast", "data:forecast_data")
class DataForecast(ConfigOptions):
    """Show how often a run will read each component.

    And how many of its tokens.
    """

    config: Config
    as_json: Json = False


# --- checkpoints --------------------------------------------------------------------------------


@command("checkpoint list", "checkpoint:list_checkpoints", "chomp checkpoint list runs/mine")
class CheckpointList(Command):
    """Show what checkpoints there are.

    From their metadata alone: no array is read.
    """

    place: Place
    as_json: Json = False


@command(
    "checkpoint verify",
    "checkpoint:verify_checkpoints",
    "chomp checkpoint verify runs/mine",
    "chomp checkpoint verify runs/mine --all",
)
class CheckpointVerify(Command):
    """Read the arrays and compare them with their receipt."""

    place: Place
    every: bool = flag("All checkpoints of the place, not only the newest.", "--all")


@command(
    "checkpoint diff",
    "checkpoint:diff_checkpoints",
    "chomp checkpoint diff runs/mine/checkpoints/step-100 runs/mine",
    "chomp checkpoint diff runs/mine runs/other --all",
)
class CheckpointDiff(Command):
    """Compare two checkpoints: arrays, config, progress."""

    before: str = argument("A run folder or a step-N.", metavar="A")
    after: str = argument("The one to compare with it.", metavar="B")
    every: bool = flag("Show equal arrays too.", "--all")
    as_json: Json = False


@command(
    "checkpoint export",
    "checkpoint:export_checkpoint",
    "chomp checkpoint export runs/mine --out exported",
    "chomp checkpoint export runs/mine/checkpoints/step-100 --out exported \\",
    "    --dtype bfloat16",
)
class CheckpointExport(Command):
    """Write the weights to safetensors.

    With the config, the tokenizer and the template.
    """

    place: Place
    out: str = option("A new folder.", default=..., metavar="FOLDER", show_default=False)
    weights: WeightsName = option(
        "The weights themselves, or their moving average.", default="params"
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = option(
        "Round floating-point weights to this; default: as they were saved."
    )
    allow_changed: AllowChanged = False


# --- variants -----------------------------------------------------------------------------------


@command(
    "variant new",
    "variants:new_variant",
    'chomp variant new wide_mlp --from base --purpose "A wider MLP"',
)
class VariantNew(Command):
    """Copy a variant under a new name, list it, and check it."""

    name: str = argument("The name of the copy.", metavar="NAME")
    origin: str = option("What to copy.", "--from", default="base", metavar="NAME")
    purpose: str = option("What it is for, in one sentence.", default="")
    check: bool = option("Run its contracts.", default=True)


@command("variant diff", "variants:diff_variant", "chomp variant diff wide_mlp")
class VariantDiff(Command):
    """Show what a variant changes, and write a page of it."""

    name: Variant
    against: str | None = option("What it differs from; default: its origin.", metavar="NAME")
    out: str | None = option(
        "Where the report goes; default: grug-diff/NAME among the outputs.", metavar="DIR"
    )
    as_json: Json = False


@command("variant list", "variants:list_variants", "chomp variant list --all")
class VariantList(Command):
    """Show the variants, what each changes and its result."""

    all: bool = flag("Also those whose folder is gone.", "--all")
    prefix: Prefix = None
    as_json: Json = False


@command(
    "variant retire",
    "variants:retire_variant",
    "chomp variant retire wide_mlp --status superseded --superseded-by base",
)
class VariantRetire(Command):
    """Delete a variant's folder; its entry in the archive stays."""

    name: Variant
    status: Literal["superseded", "deleted"] = option(
        "Why it is retired.", default=..., show_default=False
    )
    superseded_by: str = option("The variant that took its place.", default="", metavar="NAME")
    reason: str = option("What was tried, and what came of it.", default="")
    force: bool = flag("Delete uncommitted changes too.", "--force")


@command(
    "variant ledger",
    "variants:write_ledger_pages",
    "chomp compare base moe --seeds 5 --save",
    "chomp variant ledger",
    "chomp variant ledger --check",
)
class VariantLedger(Command):
    """Write docs/reports/ledger: whether each variant is better."""

    check: bool = flag("Write nothing; fail if a page is out of date.", "--check")
    as_json: Json = False
