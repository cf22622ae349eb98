"""`chomp generate`: texts that a checkpoint writes.

Without a prompt and options it writes what the run's own sample of that step is.
"""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from chomp.cli.opened_run import GivenRun, OpenedRun, opened_run
from chomp.cli.own_results import differences
from chomp.cli.prompts import (
    Prompt,
    encoded_prompts,
    given_texts,
    own_prompt,
    typed_texts,
)
from chomp.cli.result_file import TITLES, about_checkpoint, as_seen_from_here, print_json
from chomp.cli.rows_bar import rows_bar
from chomp.errors import ConfigError, require
from chomp.launch.telling import tell_error

if TYPE_CHECKING:  # for annotations alone
    from chomp.checkpoint.weights_alone import WeightsAlone, WeightsName
    from chomp.training.samples import SampleLengths

MAY_CHANGE = ("samples.*", "mesh.*", "model.attention", "data.components.*.validation_store")
# Texts at once; more would not fit where one text has a cache of gigabytes.
_BATCH_SIZE = 32
_SEEDS = 2**32


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is to be written; None: as the run's samples are."""

    prompts: tuple[str, ...] = ()
    file: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    num_samples: int = 1
    is_interactive: bool = False  # prompts are typed, one after the other


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A text, and what it goes on from."""

    prompt: str
    text: str
    seed: int
    num_tokens: int
    has_ended: bool  # by the end of a document, not by its length


def generate_run(
    given: GivenRun, asked: Asked, *, weights: WeightsName | None, is_json: bool
) -> int:
    """Write the texts to stdout; the exit code."""
    from chomp.checkpoint.weights_alone import best_weights, these_weights
    from chomp.mesh import is_first

    _require_one_way(asked, is_json=is_json)
    # A file that is not there shows at once; what is typed is read later, line by line.
    texts = None if asked.is_interactive else given_texts(asked.prompts, asked.file)
    run = opened_run(given, may_change=MAY_CHANGE)
    how = _how(run, asked)
    prompts = [] if texts is None else encoded_prompts(run, texts)
    _max_tokens(run, asked, prompts)  # what cannot fit shows before weights are read
    choose = best_weights if weights is None else partial(these_weights, names=(weights,))
    read = run.weights(choose)
    if asked.is_interactive:
        return _session(run, read, asked, how)
    if texts is None:
        prompts = [own_prompt(run, read.found.metadata.step, _lengths(run).prompt_tokens)]
    max_tokens = _max_tokens(run, asked, prompts)
    found = _samples(run, read, asked, how, prompts, max_tokens)
    if is_first() and is_json:
        _print_json(run, read, found, {**how, "max_tokens": max_tokens})
    elif is_first():
        _show(read, found)
    return 0


def _require_one_way(asked: Asked, *, is_json: bool) -> None:
    others = {"a prompt": bool(asked.prompts), "--file": asked.file is not None, "--json": is_json}
    for name, is_given in others.items():
        require(
            not (asked.is_interactive and is_given),
            given=f"--interactive with {name}",
            allowed="prompts that are typed, and texts that are shown",
            fix="leave one out",
        )


def _session(run: OpenedRun, read: WeightsAlone, asked: Asked, how: Mapping[str, Any]) -> int:
    """Go on from each line that is typed, until there is no other; the exit code."""
    import jax

    require(
        jax.process_count() == 1,
        given=f"--interactive in a run of {jax.process_count()} processes",
        allowed="one process: only one has a keyboard",
        fix="pass prompts, or start one process",
    )
    for text in typed_texts():
        # A prompt that cannot be is no reason to load the weights again.
        try:
            prompts = encoded_prompts(run, [text])
            max_tokens = _max_tokens(run, asked, prompts)
            found = _samples(run, read, asked, how, prompts, max_tokens)
        except ConfigError as error:
            tell_error(error)
            continue
        _show(read, found)
    return 0


def _how(run: OpenedRun, asked: Asked) -> dict[str, Any]:
    """How tokens are chosen: as it is asked, and else as the run's samples are."""
    from chomp.evaluation import TokenChoice

    require(
        asked.top_p is None or 0.0 < asked.top_p <= 1.0,
        given=f"--top-p {asked.top_p}",
        allowed="above 0 and at most 1",
        fix="0.9 leaves out the least likely tenth; without --top-p it is the run's samples.top_p",
    )
    samples = run.config.samples
    how = {
        name: getattr(samples, name) if getattr(asked, name) is None else getattr(asked, name)
        for name in ("temperature", "top_k", "top_p")
    }
    TokenChoice.of(**how)  # refuses what cannot be
    require(
        asked.num_samples == 1 or how["temperature"] > 0,
        given=f"--num-samples {asked.num_samples} with a temperature of 0",
        allowed="several texts of one prompt where they are drawn",
        fix="pass --temperature 0.7, or leave out --num-samples",
    )
    return how


def _max_tokens(run: OpenedRun, asked: Asked, prompts: Sequence[Prompt]) -> int:
    """New tokens of each text; a number that nobody asked for is cut to what fits."""
    longest = max((len(prompt.ids) for prompt in prompts), default=1)
    limit: int = run.config.model.max_seq_len
    wanted = asked.max_tokens or min(_lengths(run).max_tokens, max(limit - longest, 1))
    require(
        longest + wanted <= limit,
        given=f"a prompt of {longest} tokens and {wanted} new ones with model.max_seq_len={limit}",
        allowed=f"{limit} tokens together, at most",
        fix=f"pass --max-tokens {limit - longest}" if longest < limit else "shorten the prompt",
    )
    return wanted


def _lengths(run: OpenedRun) -> SampleLengths:
    """The lengths of the run's samples; where it writes none, those it would write by default."""
    samples = run.config.samples
    if samples.max_tokens == 0:
        samples = replace(samples, max_tokens=None)
    lengths: SampleLengths = samples.lengths_for(
        run.config.model, seq_len=run.config.trainer.seq_len
    )
    return lengths


def _samples(
    run: OpenedRun,
    read: WeightsAlone,
    asked: Asked,
    how: Mapping[str, Any],
    prompts: Sequence[Prompt],
    max_tokens: int,
) -> list[Sample]:
    """The texts, those of one prompt together: sample n of a prompt has the seed n further on."""
    # Sample 0 has the seed itself: without options that is the run's own sample.
    seeds = [(asked.seed + number) % _SEEDS for number in range(asked.num_samples)]
    wishes = [(prompt, seed) for prompt in prompts for seed in seeds]
    found = _continued(run, read, wishes, {**how, "max_tokens": max_tokens})
    return [
        Sample(
            prompt=prompt.text,
            text=run.tokenizer.decode(found[at]),
            seed=seed,
            num_tokens=len(found[at]),
            has_ended=len(found[at]) < max_tokens,
        )
        for at, (prompt, seed) in enumerate(wishes)
    ]


def _continued(
    run: OpenedRun,
    read: WeightsAlone,
    wishes: Sequence[tuple[Prompt, int]],
    how: Mapping[str, Any],
) -> dict[int, list[int]]:
    """The new tokens of each prompt and seed, by their number."""
    from chomp.evaluation import generate_batch

    (weights,) = read.models.values()
    model = run.mp.for_compute(weights)  # once, and not at every token
    # Prompts of like length go together best: what one has more than the shortest is fed singly.
    order = sorted(range(len(wishes)), key=lambda at: -len(wishes[at][0].ids))
    found: dict[int, list[int]] = {}
    with rows_bar("generating", "texts") as on_texts:
        for first in range(0, len(order), _BATCH_SIZE):
            batch = order[first : first + _BATCH_SIZE]
            texts = generate_batch(
                model,
                [wishes[at][0].ids for at in batch],
                mesh=run.mesh,
                eos_id=run.tokenizer.eos_id,
                seed=[wishes[at][1] for at in batch],
                **how,
            )
            found |= zip(batch, texts, strict=True)
            on_texts(len(found), len(order))
    return found


def _print_json(
    run: OpenedRun, read: WeightsAlone, samples: Sequence[Sample], how: Mapping[str, Any]
) -> None:
    (weights,) = read.models
    content = {
        **about_checkpoint(run, read.found, weights),
        "differs_from_run": differences(run, read.found, ("model",)),
        "how": dict(how),
        "samples": [asdict(sample) for sample in samples],
    }
    print_json(content)


def _show(read: WeightsAlone, samples: Sequence[Sample]) -> None:
    from rich.console import Console
    from rich.text import Text

    from chomp.storage.printable import PlainConsole, printable
    from chomp.tracking.run_files import SAMPLE_MARK

    (weights,) = read.models
    # On stderr: what is asked for is the text.
    notes, console = PlainConsole(stderr=True, soft_wrap=True), Console(soft_wrap=True)
    notes.print(Text(f"{TITLES[weights]} of {as_seen_from_here(read.found.path)}", style="dim"))
    for number, sample in enumerate(samples, start=1):
        if len(samples) > 1:
            notes.print(Text(f"{number} of {len(samples)}, seed {sample.seed}", style="dim"))
        prompt, text = sample.prompt, sample.text
        # In a pipe every byte stays; a terminal would obey some of what a model writes.
        if console.is_terminal:
            prompt, text = (printable(part, console.encoding) for part in (prompt, text))
        console.print(Text.assemble((prompt, "bold"), SAMPLE_MARK, text))
