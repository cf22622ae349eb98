"""`chomp data build`, `verify`, `inspect` and `forecast`, and the data that a CONFIG means.

A run folder is read, never run: of its config only the data and the few settings of the trainer
that decide which rows a step takes. A launch file or a YAML file is planned, which reads only.
"""

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from chomp.checkpoint import latest_checkpoint
from chomp.cli.commands import DataBuild, DataForecast, DataInspect, DataVerify
from chomp.cli.load_config import GivenConfig, load_launch
from chomp.cli.output import print_json, print_rows, print_table, say, shorten
from chomp.config import config_from_mapping
from chomp.config.messages import did_you_mean, nearest
from chomp.data import (
    MANIFEST,
    BatchSchedule,
    LmDataConfig,
    Split,
    StoreBuildConfig,
    TokenizerBuildConfig,
    TokenStore,
    TrainDataset,
    build_train_dataset,
    contamination_summary,
    forecast_table,
    read_manifest,
    verify_store,
)
from chomp.data.packing import plan_folder
from chomp.errors import ChompError, ConfigError, DataError, require
from chomp.executor import ExecutorStep, plan_steps
from chomp.executor.identity import dependencies_of
from chomp.executor.status import read_info
from chomp.launch.console import print_differences
from chomp.launch.run import run_planned
from chomp.storage import exists, folder_size_bytes, join
from chomp.storage.file_hashes import read_files_again
from chomp.storage.screen import outliving_the_screen
from chomp.tokenize import DESCRIPTION, Tokenizer, load_tokenizer
from chomp.tracking import read_metrics
from chomp.tracking.run_files import (
    CHECKPOINTS,
    RESOLVED_CONFIG,
    reached_path,
    record_of,
    resolved_config,
)

SPLITS: tuple[Split, ...] = ("train", "validation")
SHOWN_TOKENS = 64  # enough for the characters that are shown of a document

_BAR_CELLS = 40
# Parts of a cell: a bar is eight times as fine as its length in characters.
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_ENDS_AT_ONCE = 1 << 20  # ends of documents that are read together: 8 MiB


# --- what a config means ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TrainerFacts:
    """The settings of a trainer that decide which rows a step takes."""

    steps: int
    batch_size: int | tuple[tuple[int, int], ...]
    seq_len: int
    grad_accum: int = 1
    seed: int = 0
    data_seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunData:
    """What a run trains on, with the paths of stores and tokenizer filled in."""

    given: GivenConfig
    data: LmDataConfig
    seq_len: int
    batches: BatchSchedule
    total_steps: int
    seed: int
    completed_steps: int | None = None  # of a run folder; None: nothing has been run

    def dataset(self, *, must_last: bool = False) -> TrainDataset:
        """The examples of the run; with `must_last`, refuses data that does not last for it."""
        return build_train_dataset(
            self.data,
            self.data.tokenizer.load(),
            seq_len=self.seq_len,
            seed=self.seed,
            batches=self.batches,
            total_steps=self.total_steps if must_last else None,
        )


@dataclass(frozen=True, kw_only=True)
class StorePlace:
    """A store of a config; without a component, one that was given by its folder."""

    path: str
    component: str = ""
    split: Split | None = None

    @property
    def title(self) -> str:
        """The store as a person would name it."""
        return f"{self.component}, {self.split} split" if self.component else self.path


def run_data(given: GivenConfig, steps: Sequence[ExecutorStep] | None = None) -> RunData:
    """The data of a CONFIG, whether it is built or not; `steps` are those of a launch file."""
    kind, completed = given.kind(), None
    require(
        kind != "token store",
        f"{given.path}, a token store",
        allowed="a YAML file, a launch file or a run folder",
        fix="pass the config of a run; verify and inspect take stores as well",
    )
    names = [field.name for field in fields(TrainerFacts)]
    if kind == "run folder":
        given.refuse_options()
        data, facts, completed = _recorded_data(given.path, names)
    else:
        steps = load_launch(given).steps() if steps is None else steps
        # Its paths as a plan fills them in.
        last = plan_steps(steps, prefix=given.outputs)[-1]
        section, trainer = (getattr(last.config, name, None) for name in ("data", "trainer"))
        if not isinstance(section, LmDataConfig) or not all(
            hasattr(trainer, each) for each in names
        ):
            raise ConfigError(
                f"{given.path}, whose last step {last.step.name!r} has no data and trainer",
                allowed=f"a config with data, an LmDataConfig, and trainer with {', '.join(names)}",
                fix="name the fields of the launch config so, as in experiments/grug/base",
            )
        data, facts = section, TrainerFacts(**{each: getattr(trainer, each) for each in names})
    return RunData(
        given=given,
        data=data,
        seq_len=facts.seq_len,
        batches=BatchSchedule(facts.batch_size, facts.grad_accum),
        total_steps=facts.steps,
        seed=facts.seed if facts.data_seed is None else facts.data_seed,
        completed_steps=completed,
    )


def _recorded_data(folder: str, names: Sequence[str]) -> tuple[LmDataConfig, TrainerFacts, int]:
    """The data and trainer of a run folder, and how many steps it has completed."""
    location, sections = join(folder, RESOLVED_CONFIG), resolved_config(folder)
    trainer = sections.get("trainer")
    # Sections and fields that only the run's own template knows are of no use here.
    known = trainer if isinstance(trainer, Mapping) else {}
    known = {name: known[name] for name in names if name in known}
    facts = config_from_mapping(TrainerFacts, known, source=f"{location}, trainer")
    data = config_from_mapping(LmDataConfig, sections.get("data", {}), source=f"{location}, data")
    copy = join(folder, "tokenizer")
    if exists(join(copy, DESCRIPTION)):  # it outlives the tokenizer that it was copied from
        data = replace(data, tokenizer=replace(data.tokenizer, path=copy))
    moved: dict[str, str] = {}

    def reached(path: str | None) -> str | None:
        """A path that is not below the current folder is looked for from above the run, loudly."""
        place = None if path is None else reached_path(path, folder)
        if path is not None and place is not None and place != path:
            moved[path] = place
        return place

    components = {
        name: replace(
            component,
            train_store=reached(component.train_store),
            validation_store=reached(component.validation_store),
        )
        for name, component in data.components.items()
    }
    tokenizer = replace(data.tokenizer, path=reached(data.tokenizer.path))
    for path, place in moved.items():
        say(f"{path} is not in this folder, but above the run: {place}", style="yellow")
    newest = latest_checkpoint(join(folder, CHECKPOINTS))
    record = record_of(folder)
    rows = read_metrics(record) if exists(record) else []
    # A row has the index of a completed step. Record and checkpoints may be ahead of each other.
    logged = [row["step"] + 1 for row in rows if isinstance(row.get("step"), int)]
    completed = max([0 if newest is None else newest.metadata.step, *logged])
    return replace(data, components=components, tokenizer=tokenizer), facts, completed


def store_places(data: LmDataConfig, splits: Sequence[Split] = SPLITS) -> list[StorePlace]:
    """The stores of a data config, by component and split.

    A component that is never trained on and a stream have no train store.
    """
    places = []
    for name, component in data.components.items():
        paths = {"train": component.train_store, "validation": component.validation_store}
        for split in splits:
            path = paths[split]
            if path is not None:
                places.append(StorePlace(path=path, component=name, split=split))
    return places


def require_built(run: RunData, splits: Sequence[Split] = SPLITS) -> None:
    """Raise `DataError` unless the tokenizer and the stores of those splits are built."""
    missing = [
        f"{place.title} ({place.path})"
        for place in store_places(run.data, splits)
        if not exists(join(place.path, MANIFEST))
    ]
    tokenizer = run.data.tokenizer.path
    if tokenizer is None or not exists(join(tokenizer, DESCRIPTION)):
        missing.insert(0, f"the tokenizer ({tokenizer})")
    if missing:
        raise DataError(
            "not built:\n" + "".join(f"  {item}\n" for item in missing),
            allowed="a config whose tokenizer and token stores are built",
            fix=f"build them with `{run.given.command('build')}`"
            if run.completed_steps is None
            else "run this command in the folder the run was started from, if paths are relative "
            "to it; else `chomp data build` with the config that made the run builds them again",
        )


def _places_of(given: GivenConfig) -> tuple[list[StorePlace], RunData | None]:
    """The stores of a CONFIG, which must all be built; or the one store that was given itself."""
    if given.kind() == "token store":
        given.refuse_options()
        return [StorePlace(path=given.path)], None
    run = run_data(given)
    require_built(run)
    return store_places(run.data), run


# --- build --------------------------------------------------------------------------------------


def build_data(asked: DataBuild) -> int:
    """Build what is not there yet, then list the stores; the exit code."""
    given, only = GivenConfig.of(asked.config, asked), asked.only or []
    # Of a run or a store the sources may have changed since; what it uses is there or it is not.
    is_file = given.is_file
    require(
        is_file or not asked.verify_sources,
        f"--verify-sources with {given.path}, a {given.kind()}",
        allowed="--verify-sources with a YAML file or a launch file, which name sources",
        fix="leave it out, or pass the config that made it",
    )
    with read_files_again(asked.verify_sources):
        steps = load_launch(given).steps() if is_file else []
    run = run_data(given, steps)
    known = run.data.components
    for name in only:
        require(
            name in known,
            f"--only {name}{did_you_mean(nearest(name, known))}",
            allowed=f"the components of {given.path}: {', '.join(known)}",
            fix="correct the name",
        )
    if not is_file:
        require_built(run)
    # What the steps need of data, whether they are done themselves or not.
    needed = dict.fromkeys(each for step in steps for each in dependencies_of(step))
    planned = [
        item
        for item in plan_steps(needed, prefix=given.outputs)
        if isinstance(item.config, TokenizerBuildConfig)
        or (isinstance(item.config, StoreBuildConfig) and (not only or item.config.name in only))
    ]
    with outliving_the_screen(), contextlib.ExitStack() as stack:
        if asked.as_json:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        if planned:
            print_differences(planned)
            if code := run_planned(planned, prefix=given.outputs):
                return code
        # Plans of packed rows beside the tokens: a store that is read-only later has its own.
        for place in store_places(run.data, ["train"]):
            if run.data.packing_mode != "packed" or (only and place.component not in only):
                continue
            if not os.access(place.path, os.W_OK):
                say(f"No packing plan is kept in {place.path}, which cannot be written.")
                continue
            plan_folder(TokenStore.open(place.path), run.data.packing_rule(run.seq_len))
    rows: list[dict[str, Any]] = []
    for place in store_places(run.data):
        if not only or place.component in only:
            manifest = read_manifest(place.path)
            rows.append(
                {
                    "component": manifest.identity.name,
                    "split": manifest.identity.split,
                    "documents": manifest.num_documents,
                    "tokens": manifest.num_tokens,
                    "dtype": manifest.dtype,
                    "size": folder_size_bytes(place.path),
                    "folder": place.path,
                }
            )
    if asked.as_json:
        print_json(rows)
    else:
        print_rows([{**row, "size": decimal(row["size"])} for row in rows], right=("dtype", "size"))
    return 0


# --- verify -------------------------------------------------------------------------------------


def verify_data(asked: DataVerify) -> int:
    """Verify all stores of all targets; `DataError` at the end if any is damaged."""
    targets = [GivenConfig.of(path, asked) for path in asked.targets]
    found = {place.path: place for given in targets for place in _places_of(given)[0]}
    damaged = []
    for path, place in found.items():
        problems = verify_store(path)
        where = f"{place.title} ({path})" if place.component else path
        if problems:
            damaged.append(path)
            say(f"damaged: {where}", style="red")
            for problem in problems:
                say(f"  {problem}")
        else:
            manifest = read_manifest(path)
            counts = f"{manifest.num_documents:,} documents, {manifest.num_tokens:,} tokens"
            say(f"whole: {where}, {counts}")
    if damaged:
        build = next((each.command("build") for each in targets if each.is_file), None)
        build = f"`{build}`" if build else "`chomp data build` with the config they are of"
        raise DataError(
            f"{len(damaged)} of {len(found)} stores damaged: {', '.join(damaged)}",
            allowed="stores whose files are as they were written",
            fix="bring back the files that are named, or move these folders away, then run "
            f"{build} to build them again (the next run makes a plan in packing/ again by itself)",
        )
    return 0


# --- inspect ------------------------------------------------------------------------------------


def inspect_data(asked: DataInspect) -> int:
    """Print what each store of a CONFIG holds, or the store that was given."""
    places, run = _places_of(GivenConfig.of(asked.target, asked))
    contents = []
    for place in places:
        store = TokenStore.open(place.path)
        facts, bins = _facts(store), length_bins(store)
        tokenizer = _tokenizer_of(store, run) if asked.documents else None
        documents = []
        for document in range(min(asked.documents, len(store.documents))):
            begin, end = store.documents.span(document)
            length = min(end - begin, SHOWN_TOKENS)
            ids = store.read(np.asarray([begin]), np.asarray([length])).tolist()
            text = tokenizer.decode(ids) if tokenizer else " ".join(map(str, ids))
            documents.append(
                {
                    "document": store.locations.document_id(document),
                    "tokens": end - begin,
                    "begins with" if tokenizer else "begins with the ids": shorten(text),
                }
            )
        contents.append({**facts, "lengths": bins, "first_documents": documents})
        if asked.as_json:
            continue
        table = Table(show_header=False)
        for name, value in facts.items():
            table.add_row(name, Text(value))
        print_table(table)
        for line in histogram_lines(bins):
            say(line)
        if documents:
            print_rows(documents)
    if asked.as_json:
        print_json(contents)
    return 0


def length_bins(store: TokenStore) -> list[dict[str, int]]:
    """Documents by length, in bins that double: 1, 2 to 3, 4 to 7 and so on, without empty ends."""
    counts, before = np.zeros(64, np.int64), 0
    for first in range(0, len(store.documents), _ENDS_AT_ONCE):
        ends = store.documents.ends(first, min(first + _ENDS_AT_ONCE, len(store.documents)))
        # The exponent of a number is exact, where a logarithm next to a power of two is not.
        _, exponents = np.frexp(np.diff(ends, prepend=before))
        counts += np.bincount(exponents - 1, minlength=64)
        before = int(ends[-1])
    used = np.flatnonzero(counts)
    return [
        {"low": 1 << i, "high": (2 << i) - 1, "documents": int(counts[i])}
        for i in range(int(used[0]), int(used[-1]) + 1)
    ]


def histogram_lines(bins: Sequence[Mapping[str, int]]) -> list[str]:
    """A bar for each bin, as long as its count."""
    ranges = [f"{bin['low']:,} to {bin['high']:,}" if bin["low"] > 1 else "1" for bin in bins]
    width, most = max(map(len, ranges)), max(bin["documents"] for bin in bins)
    lines = []
    for label, bin in zip(ranges, bins, strict=True):
        eighths = round(bin["documents"] / most * _BAR_CELLS * 8)
        # What is there at all is seen, however little it is.
        eighths = max(eighths, 1) if bin["documents"] else 0
        bar = _EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        lines.append(f"{label:>{width}} tokens {bar} {bin['documents']:,}")
    return lines


def _facts(store: TokenStore) -> dict[str, str]:
    """The manifest, and what follows from it, in words."""
    manifest, identity = store.manifest, store.manifest.identity
    fraction = identity.validation_fraction
    held_out = "all" if fraction == 1.0 else f"{fraction:g} of"
    mean_length = manifest.num_tokens / max(manifest.num_documents, 1)
    limit = "" if identity.max_documents is None else f", at most {identity.max_documents:,}"
    return {
        "folder": store.path,
        "component": identity.name,
        "split": f"{identity.split} ({held_out} documents are held out)",
        "documents": f"{manifest.num_documents:,}{limit}",
        "tokens": f"{manifest.num_tokens:,}, {mean_length:,.0f} a document",
        "dtype": manifest.dtype,
        "loss weights": "one for each token" if manifest.has_loss_weights else "none: all count",
        "end of document": f"id {manifest.eos_id}",
        "size": decimal(folder_size_bytes(store.path)),
        "shards": f"{len(manifest.checksums['tokens']):,} of tokens",
        "tokenizer": identity.tokenizer_hash[:12],
        "source": identity.source_fingerprint[:12],
        **({"contamination": found} if (found := contamination_summary(store.path)) else {}),
        "format": f"{identity.format_fingerprint[:12]}, store format {manifest.format_version}",
    }


def _tokenizer_of(store: TokenStore, run: RunData | None) -> Tokenizer | None:
    """The tokenizer a store was made with, if it can be found; never another one."""
    info = read_info(store.path)
    config = info.config if info is not None and isinstance(info.config, dict) else {}
    for folder in (run.data.tokenizer.path if run else None, config.get("tokenizer_path")):
        if folder is None:
            continue
        try:
            tokenizer = load_tokenizer(folder)
        except ChompError:
            continue  # it is gone or another; ids are shown instead of its text
        if tokenizer.content_hash == store.manifest.identity.tokenizer_hash:
            return tokenizer
    return None


# --- forecast -----------------------------------------------------------------------------------


def forecast_data(asked: DataForecast) -> int:
    """Print examples, tokens and epochs of every component and stage.

    Opening the data as training does also warns as training does, and refuses the same.
    """
    run = run_data(GivenConfig.of(asked.config, asked))
    require_built(run, ["train"])
    with closing(run.dataset(must_last=True)) as dataset:
        forecast = dataset.forecast(run.total_steps)
    if asked.as_json:
        print_json(asdict(forecast))
    else:
        print_table(forecast_table(forecast))
    return 0
