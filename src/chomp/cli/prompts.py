"""What generated text goes on from: texts that are given, or a piece of a text of the run."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chomp.cli.held_out import held_out_datasets
from chomp.cli.opened_run import OpenedRun
from chomp.errors import ConfigError, message, require

STDIN = "-"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A text, and its ids as the model is given them."""

    text: str
    ids: list[int]


def given_texts(prompts: Sequence[str], file: str | None) -> list[str] | None:
    """The texts on a command line, in a file or on stdin; None where none is given.

    Without any of them it is what a file or a pipe on stdin holds, as one text.
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
        return _lines(_stdin_text(), "stdin")
    return list(prompts) or _piped_text()


def typed_texts() -> Iterator[str]:
    """The lines that are typed, as they come; ends with the input, or with Ctrl-C."""
    is_seen = sys.stdin.isatty()
    if is_seen:
        _tell("A line is a prompt; Ctrl-D ends.")
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
        Prompt(text=text, ids=[prefix, *ids] if bos_id is not None or not ids else list(ids))
        for text, ids in zip(texts, encoded, strict=True)
    ]


def own_prompt(run: OpenedRun, step: int, num_tokens: int) -> Prompt:
    """What the run's own sample of a step went on from."""
    from chomp.data import TrainedTexts
    from chomp.training.samples import prompt_of_step

    every = run.config.samples.every
    held_out = [dataset for dataset in held_out_datasets(run) if dataset.num_rows > 0]
    if not held_out:
        _log.warning(
            "%s holds out no document: the text goes on from a TRAINING document", run.path
        )
    texts = held_out[0] if held_out else TrainedTexts(run.config.data, run.tokenizer)
    ids = prompt_of_step(texts, step, num_tokens=num_tokens, every=every)
    return Prompt(text=run.tokenizer.decode(ids), ids=ids)


def _piped_text() -> list[str] | None:
    """The whole of stdin as one text, less the end of its last line; None: there is nothing."""
    if not _is_stdin_given():
        return None
    # Before it is read: what is started by others may have a pipe that nobody ever closes.
    _tell(
        "The prompt is read from standard input, to its end (--prompt gives one, < /dev/null none)"
    )
    text = _stdin_text().removesuffix("\n").removesuffix("\r")
    if not text:
        _log.warning("standard input is empty: the text goes on from one of the run's own")
        return None
    return [text]


def _is_stdin_given() -> bool:
    """Whether somebody has put a file or a pipe there; a terminal and /dev/null are nothing."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, ValueError, OSError):  # none, no file, or closed
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _stdin_text() -> str:
    require(
        sys.stdin is not None,
        given="a prompt from standard input, which is closed",
        allowed="a standard input that can be read",
        fix="pass --prompt TEXT, or --file FILE",
    )
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigError(
            message(
                given=f"standard input, which is no text: {error}",
                allowed=f"text in {error.encoding}",
                fix="convert it, or pass --prompt TEXT",
            )
        ) from error


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


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
