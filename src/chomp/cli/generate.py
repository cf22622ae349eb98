"""`chomp generate`: texts that a checkpoint writes.

Without a prompt and options it writes what the run's own sample of that step is.
"""

import logging
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from rich.console import Console
from rich.text import Text

from chomp.checkpoint import LoadedWeights
from chomp.cli.commands import Generate
from chomp.cli.eval_data import held_out_datasets
from chomp.cli.loaded_run import LoadedRun, leaving_together, load_run
from chomp.cli.output import print_json, progress_bar
from chomp.cli.results import TITLES, about_checkpoint, path_from_here, result_differences
from chomp.data import TrainedTexts
from chomp.errors import ConfigError, require
from chomp.evaluation import TokenChoice, generate_batch
from chomp.launch.console import print_error
from chomp.mesh import is_first
from chomp.storage import read_text
from chomp.storage.printable import PlainConsole, printable
from chomp.tracking.run_files import SAMPLE_MARK
from chomp.training.samples import prompt_of_step

_MAY_CHANGE = ("samples.*", "mesh.*", "model.attention", "data.components.*.validation_store")

_BATCH_SIZE = 32  # texts at once; more would not fit where one text has a cache of gigabytes
_SEEDS = 2**32
_STDIN = "-"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A text, and its ids as the model is given them."""

    text: str
    ids: list[int]


@leaving_together()
def generate(asked: Generate) -> int:
    """Write texts to stdout; the exit code."""
    # A file that is not there shows at once; what is typed is read later, line by line.
    prompts = [*(asked.prompts or ()), *(asked.prompt or ())]
    texts = None if asked.interactive else given_texts(prompts, asked.file)
    run = load_run(asked, may_change=_MAY_CHANGE)
    choice: dict[str, Any] = {}
    for name in ("temperature", "top_k", "top_p"):
        value = getattr(asked, name)
        choice[name] = getattr(run.config.samples, name) if value is None else value
    TokenChoice.of(**choice)  # refuses what cannot be
    require(
        asked.num_samples == 1 or choice["temperature"] > 0,
        f"--num-samples {asked.num_samples} with a temperature of 0",
        allowed="several texts of one prompt where they are drawn",
        fix="pass --temperature 0.7, or leave out --num-samples",
    )
    require(
        not asked.interactive or jax.process_count() == 1,
        f"--interactive in a run of {jax.process_count()} processes",
        allowed="one process: only one has a keyboard",
        fix="pass prompts, or start one process",
    )
    # Where the run writes no samples, they are as long as those it would write by default.
    settings = run.config.samples
    settings = replace(settings, max_tokens=settings.max_tokens or None)
    num_tokens, usual = settings.lengths_for(run.config.model, seq_len=run.config.trainer.seq_len)
    writer = _Writer(run, asked, choice, usual)
    encoded = [] if texts is None else _encoded_prompts(run, texts)
    writer.length_for(encoded)  # what cannot fit shows before weights are read
    read = run.one_model(asked.weights)
    if asked.interactive:
        for text in _typed_texts():
            # A prompt that cannot be is no reason to load the weights again.
            try:
                _show(read, writer.samples(read, _encoded_prompts(run, [text])))
            except ConfigError as error:
                print_error(error)
        return 0
    if texts is None:  # what the run's own sample of that step went on from
        held_out = [dataset for dataset in held_out_datasets(run) if dataset.num_rows > 0]
        if not held_out:
            _log.warning(
                "%s holds out no document: the text goes on from a TRAINING document", run.path
            )
        ids = prompt_of_step(
            held_out[0] if held_out else TrainedTexts(run.config.data, run.tokenizer),
            read.found.metadata.step,
            num_tokens=num_tokens,
            every=run.config.samples.every,
        )
        encoded = [Prompt(text=run.tokenizer.decode(ids), ids=ids)]
    samples = writer.samples(read, encoded)
    if is_first() and asked.as_json:
        (name,) = read.models
        print_json(
            {
                **about_checkpoint(run, read.found, name),
                "differs_from_run": result_differences(run, read.found, ("model",)),
                "how": {**choice, "max_tokens": writer.length_for(encoded)},
                "samples": samples,
            }
        )
    elif is_first():
        _show(read, samples)
    return 0


@dataclass(frozen=True)
class _Writer:
    """How texts are written, whatever the prompt."""

    run: LoadedRun
    asked: Generate
    choice: Mapping[str, Any]
    usual_length: int

    def length_for(self, prompts: Sequence[Prompt]) -> int:
        """New tokens of each text; the run's own number is cut to what fits."""
        longest = max((len(prompt.ids) for prompt in prompts), default=1)
        limit: int = self.run.config.model.max_seq_len
        length = self.asked.max_tokens or min(self.usual_length, max(limit - longest, 1))
        require(
            longest + length <= limit,
            f"a prompt of {longest} tokens and {length} new ones with model.max_seq_len={limit}",
            allowed=f"{limit} tokens together, at most",
            fix=f"pass --max-tokens {limit - longest}" if longest < limit else "shorten the prompt",
        )
        return length

    def samples(self, read: LoadedWeights, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        """The texts, those of one prompt together: sample n of a prompt has the seed n further on.

        Sample 0 has the seed itself: without options that is the run's own sample.
        """
        run, length = self.run, self.length_for(prompts)
        seeds = [(self.asked.seed + number) % _SEEDS for number in range(self.asked.num_samples)]
        wanted = [(prompt, seed) for prompt in prompts for seed in seeds]
        (weights,) = read.models.values()
        model = run.mp.for_compute(weights)  # once, and not at every token
        # Prompts of like length go together: what one has more than the shortest is fed singly.
        order = sorted(range(len(wanted)), key=lambda at: -len(wanted[at][0].ids))
        found: dict[int, list[int]] = {}
        with progress_bar("generating", unit="texts") as on_texts:
            for first in range(0, len(order), _BATCH_SIZE):
                batch = order[first : first + _BATCH_SIZE]
                texts = generate_batch(
                    model,
                    [wanted[at][0].ids for at in batch],
                    mesh=run.mesh,
                    eos_id=run.tokenizer.eos_id,
                    seed=[wanted[at][1] for at in batch],
                    max_tokens=length,
                    **self.choice,
                )
                found |= zip(batch, texts, strict=True)
                on_texts(len(found), len(order))
        return [
            {
                "prompt": prompt.text,
                "text": run.tokenizer.decode(found[at]),
                "seed": seed,
                "num_tokens": len(found[at]),
                "has_ended": len(found[at]) < length,  # by the end of a document
            }
            for at, (prompt, seed) in enumerate(wanted)
        ]


def _show(read: LoadedWeights, samples: Sequence[Mapping[str, Any]]) -> None:
    (weights,) = read.models
    # Notes go to stderr, so that stdout has the text alone.
    notes, console = PlainConsole(stderr=True, soft_wrap=True), Console(soft_wrap=True)
    notes.print(Text(f"{TITLES[weights]} of {path_from_here(read.found.path)}", style="dim"))
    for number, sample in enumerate(samples, start=1):
        if len(samples) > 1:
            notes.print(Text(f"{number} of {len(samples)}, seed {sample['seed']}", style="dim"))
        prompt, text = sample["prompt"], sample["text"]
        # In a pipe every byte stays; a terminal would obey some of what a model writes.
        if console.is_terminal:
            prompt, text = (printable(part, console.encoding) for part in (prompt, text))
        console.print(Text.assemble((prompt, "bold"), SAMPLE_MARK, text))


# --- prompts ------------------------------------------------------------------------------------


def given_texts(prompts: Sequence[str], file: str | None) -> list[str] | None:
    """The texts on a command line, in a file or on stdin; None where none is given.

    Without any of them it is what a file or a pipe on stdin holds, as one text.
    """
    if file is not None:
        return _lines(read_text(file), file)
    if list(prompts) == [_STDIN]:  # among others it is a prompt like any
        return _lines(_stdin_text(), "stdin")
    if prompts:
        return list(prompts)
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, ValueError, OSError):  # none, no file, or closed
        return None
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return None  # a terminal or /dev/null
    # Before it is read: a program that starts this one may never close its pipe.
    print(
        "The prompt is read from standard input, to its end (--prompt gives one, < /dev/null none)",
        file=sys.stderr,
        flush=True,
    )
    text = _stdin_text().removesuffix("\n").removesuffix("\r")
    if not text:
        _log.warning("standard input is empty: the text goes on from one of the run's own")
        return None
    return [text]


def _typed_texts() -> Iterator[str]:
    """The lines that are typed, as they come; ends with the input, or with Ctrl-C."""
    is_seen = sys.stdin.isatty()
    if is_seen:
        print("A line is a prompt; Ctrl-D ends.", file=sys.stderr)
    while True:
        if is_seen:
            print("> ", end="", file=sys.stderr, flush=True)
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            return
        if not line:
            return
        if text := line.rstrip("\r\n"):
            yield text


def _encoded_prompts(run: LoadedRun, texts: Sequence[str]) -> list[Prompt]:
    """The texts as prompts, as lm-eval tasks encode them.

    A text without a token begins with the id that documents begin with, or else end with; where
    the tokenizer has a beginning, so does every text.
    """
    bos_id, eos_id = run.tokenizer.bos_id, run.tokenizer.eos_id
    prefix = eos_id if bos_id is None else bos_id
    encoded = run.tokenizer.encode_batch(list(texts))
    return [
        Prompt(text=text, ids=[prefix, *ids] if bos_id is not None or not ids else list(ids))
        for text, ids in zip(texts, encoded, strict=True)
    ]


def _stdin_text() -> str:
    require(
        sys.stdin is not None,
        "a prompt from standard input, which is closed",
        allowed="a standard input that can be read",
        fix="pass --prompt TEXT, or --file FILE",
    )
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"standard input, which is no text: {error}",
            allowed=f"text in {error.encoding}",
            fix="convert it, or pass --prompt TEXT",
        ) from error


def _lines(text: str, source: str) -> list[str]:
    # Files often end in a blank line, which is no prompt.
    lines = [line for line in text.splitlines() if line]
    require(
        bool(lines),
        f"{source} without a prompt",
        allowed="one prompt a line; blank lines are passed over",
        fix="write some, or leave it out to go on from a text of the run",
    )
    return lines
