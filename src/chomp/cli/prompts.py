"""What generated text goes on from: texts that are given, or how a text of the run begins."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import io
import logging
import os
import select
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chomp.cli.held_out import held_out_datasets
from chomp.cli.opened_run import OpenedRun
from chomp.errors import require

STDIN = "-"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A text, and its ids as the model is given them."""

    text: str
    ids: list[int]


def given_texts(prompts: Sequence[str], file: str | None) -> list[str] | None:
    """The texts on a command line, in a file or on stdin; None where none is given.

    Without any of them they are the lines of a pipe, if something is in it.
    """
    from chomp.storage import read_text

    require(
        file is None or not prompts,
        given=f"prompts and --file {file}",
        allowed="one of them",
        fix="leave one out",
    )
    if file is not None:
        return _lines(read_text(file), file)
    if list(prompts) == [STDIN]:  # among others it is a prompt like any
        return _lines(sys.stdin.read(), "stdin")
    return list(prompts) or _piped_lines()


def typed_texts() -> Iterator[str]:
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


def encoded_prompts(run: OpenedRun, texts: Sequence[str]) -> list[Prompt]:
    """The texts as prompts, in the way of lm-eval tasks.

    A text without a token begins with the id that documents begin with, or else end with; where
    the tokenizer has a beginning, so does every text.
    """
    bos_id, eos_id = run.tokenizer.bos_id, run.tokenizer.eos_id
    prefix = eos_id if bos_id is None else bos_id
    encoded = run.tokenizer.encode_batch(list(texts))
    return [
        Prompt(text=text, ids=[prefix, *ids] if bos_id is not None or not ids else ids)
        for text, ids in zip(texts, encoded, strict=True)
    ]


def own_prompt(run: OpenedRun, step: int, num_tokens: int) -> Prompt:
    """How the text begins that the run's own sample of a step went on from."""
    from chomp.data import TrainedTexts

    every = run.config.samples.every
    held_out = [dataset for dataset in held_out_datasets(run) if dataset.num_rows > 0]
    if not held_out:
        _log.warning("%s holds out no document: a TRAINING document begins the text", run.path)
    texts = held_out[0] if held_out else TrainedTexts(run.config.data, run.tokenizer)
    # As the samples hook chooses: by the step, so that it is the same text.
    ids = texts.beginning(num_tokens, 0 if every is None else step // every)
    return Prompt(text=run.tokenizer.decode(ids), ids=ids)


def _piped_lines() -> list[str] | None:
    """The lines of stdin where it is a pipe that has some by now; None: it has not."""
    try:
        number = sys.stdin.fileno()
    except (AttributeError, ValueError, io.UnsupportedOperation):  # none, closed, or no file
        return None
    # A pipe that nobody writes to may stay open for ever: what is started by others often has one.
    if not stat.S_ISFIFO(os.fstat(number).st_mode) or not select.select([number], [], [], 0)[0]:
        return None
    return [line for line in sys.stdin.read().splitlines() if line] or None


def _lines(text: str, source: str) -> list[str]:
    # A file ends in a blank line more often than anybody wants text from nothing.
    lines = [line for line in text.splitlines() if line]
    require(
        bool(lines),
        given=f"{source} without a prompt",
        allowed="one prompt a line; blank lines are passed over",
        fix="write some, or leave it out to go on from a text of the run",
    )
    return lines
