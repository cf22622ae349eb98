"""The model as lm-eval sees it: texts in, log-likelihoods and texts out.

Process 0 alone runs lm-eval. It broadcasts what it is about to compute, and all processes compute
it: a message is a kind and what the kind needs. The last message is the results, or the failure.
"""

import json
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable
from zlib import crc32

import jax
import numpy as np
from jax.sharding import Mesh
from lm_eval.api.model import LM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from chomp.config.messages import did_you_mean, nearest
from chomp.errors import ConfigError, LaunchError, require
from chomp.evaluation.generation import Generation, TokenChoice
from chomp.evaluation.request_scores import (
    Request,
    RequestScorer,
    Score,
    TruncationCounts,
    encoded_pairs,
    fitting,
)
from chomp.mesh import broadcast, wait_for_all
from chomp.tokenize import Tokenizer

# Kinds of messages.
SCORE, GENERATE, END, FAILED = "score", "generate", "end", "failed"

# A task's data may have to be fetched before there is anything to compute.
TIMEOUT_S = 3600.0
# The key-value store is for small values: longer ones go in pieces. All processes meet after some
# of them, because process 0 may only be so far ahead.
PIECE_CHARACTERS = 1 << 20
PIECES_AHEAD = 16
DEFAULT_MAX_TOKENS = 256  # lm-eval's own
KNOWN = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p")
log = logging.getLogger(__name__)
# Tokens between two looks at the texts: a look costs a trip to the host, a text that has ended
# costs on average half of these.
LOOK_EVERY = 16


def broadcast_message(word: Any) -> Any:
    """Process 0's `word` (plain JSON) in every process; what the others pass is ignored."""
    if jax.process_count() == 1:
        return word
    text = json.dumps(word)
    count = broadcast("harness/count", -(-len(text) // PIECE_CHARACTERS), timeout_s=TIMEOUT_S)
    pieces = []
    for index in range(count):
        if index % PIECES_AHEAD == PIECES_AHEAD - 1:
            wait_for_all("harness/pieces")
        first = index * PIECE_CHARACTERS
        piece = text[first : first + PIECE_CHARACTERS]
        pieces.append(broadcast("harness/piece", piece))
    return json.loads("".join(pieces))


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """How to continue a prompt. Temperature 0 takes the likeliest token."""

    max_tokens: int = DEFAULT_MAX_TOKENS
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    until: tuple[str, ...] = ()  # the text ends before the first of them

    @staticmethod
    def from_request(asked: Mapping[str, Any]) -> "GenerationSettings":
        """The settings of a task's `generation_kwargs`; one that is not known is refused.

        Without `do_sample` a temperature above 0 samples; with `do_sample: false` none does.
        """
        for name in asked:
            require(
                name in KNOWN,
                f"the generation setting {name}{did_you_mean(nearest(name, KNOWN))}",
                allowed=", ".join(KNOWN),
                fix="remove it from the task's generation_kwargs",
            )
        until = asked.get("until") or ()
        samples = asked.get("do_sample") is not False
        settings = GenerationSettings(
            max_tokens=int(asked.get("max_gen_toks", DEFAULT_MAX_TOKENS)),
            temperature=float(asked.get("temperature") or 0.0) if samples else 0.0,
            top_k=asked.get("top_k"),
            top_p=asked.get("top_p"),
            until=(until,) if isinstance(until, str) else tuple(until),
        )
        require(
            settings.max_tokens > 0 and settings.temperature >= 0.0,
            f"max_gen_toks={settings.max_tokens} and temperature={settings.temperature}",
            allowed="at least one token, and a temperature of 0 or more",
            fix="correct the task's generation_kwargs",
        )
        require(
            not (asked.get("do_sample") and settings.temperature == 0.0),
            "do_sample=true with a temperature of 0",
            allowed="sampling at a temperature above 0, or do_sample=false",
            fix="set temperature in the task's generation_kwargs",
        )
        return settings

    def cut(self, text: str) -> str:
        """`text` up to the strings that end it, one after the other, as lm-eval cuts it."""
        for end in filter(None, self.until):
            text = text.partition(end)[0]
        return text


@runtime_checkable
class Generate(Protocol):
    """Continues prompts; `harness.sampler` makes one."""

    def __call__(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        seed: int,
        until: Sequence[str],
    ) -> list[list[int]]:
        """Ids that follow each prompt, at most `max_tokens`, ending before an end of document.

        `until` may be used to stop early: what comes after one of those strings is cut off anyway.
        """
        ...


class HarnessModel(LM):  # type: ignore[misc]  # lm_eval has no types
    """One set of weights, for as long as an evaluation takes; the scorer keeps what is compiled."""

    def __init__(
        self,
        params: Any,
        scorer: RequestScorer,
        *,
        tokenizer: Tokenizer,
        prefix_id: int | None = None,
        starts_with_prefix: bool | None = None,
        generate: Generate | None = None,
    ) -> None:
        """`prefix_id` stands for an empty context; None: the tokenizer's beginning, or its end.

        `starts_with_prefix`: every context begins with it; None: as documents do, which is where
        the tokenizer has a beginning. `generate`: of these weights; None: no task may ask for text.
        """
        super().__init__()
        bos_id = tokenizer.bos_id
        usual = tokenizer.eos_id if bos_id is None else bos_id
        self.prefix_id = usual if prefix_id is None else prefix_id
        self.starts_with_prefix = (
            bos_id is not None if starts_with_prefix is None else starts_with_prefix
        )
        self.cuts = TruncationCounts()  # of all requests so far
        self._params, self._scorer = params, scorer
        # Not `tokenizer`: lm-eval would take it for one of transformers.
        self._encoder, self._generate = tokenizer, generate

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation after its context, and whether it is the greedy one.

        What is longer than a row loses tokens on the left, which is counted and said.
        """
        encoded = encoded_pairs(
            self._encoder,
            [request.args for request in requests],
            prefix_id=self.prefix_id,
            starts_with_prefix=self.starts_with_prefix,
        )
        fitted, cuts = fitting(encoded, self._scorer.row_len)
        self._count(cuts, len(requests))
        return [(each, is_greedy) for each, is_greedy in self._scores(fitted)]

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-likelihood of each whole text, every token scored once with all context that fits."""
        texts = self._encoder.encode_batch([request.args[0] for request in requests])
        windows = [self._windows(list(ids)) for ids in texts]
        flat = [window for of_text in windows for window in of_text]
        scores = iter(self._scores(flat))
        return [math.fsum(next(scores).log_likelihood for _ in of_text) for of_text in windows]

    def _windows(self, ids: list[int]) -> list[Request]:
        # lm-eval counts a model's inputs; the last token of a row is none, it is only predicted.
        pairs = get_rolling_token_windows(
            ids, prefix_token=self.prefix_id, max_seq_len=self._scorer.row_len - 1, context_len=1
        )
        disjoint = [make_disjoint_window(pair) for pair in pairs]
        return [Request((*before, *after), len(before)) for before, after in disjoint]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Text that follows each context, up to the strings that end it.

        Equal requests that sample are drawn with seeds 0, 1, ...: repeats are different texts.
        """
        if self._generate is None:
            raise ConfigError(
                "the task asks for generated text, but the model has no sampler",
                allowed="tasks that compare log-likelihoods",
                fix="remove the task, or give HarnessModel a `generate` function",
            )
        settings = [GenerationSettings.from_request(request.args[1]) for request in requests]
        prompts = self._prompts([request.args[0] for request in requests], settings)
        seen: Counter[Any] = Counter()
        keys = []
        for prompt, how in zip(prompts, settings, strict=True):
            keys.append((how, seen[prompt, how] if how.temperature > 0.0 else 0, prompt))
            seen[prompt, how] += 1
        found = self._texts(self._generate, keys)
        return [found[key] for key in keys]

    def _prompts(
        self, contexts: list[str], settings: Sequence[GenerationSettings]
    ) -> list[tuple[int, ...]]:
        prompts, truncated = [], 0
        for ids, how in zip(self._encoder.encode_batch(contexts), settings, strict=True):
            room = self._scorer.row_len - how.max_tokens
            require(
                room > 0,
                f"max_gen_toks={how.max_tokens} for a model of {self._scorer.row_len} tokens",
                allowed="fewer tokens, so that the prompt fits too",
                fix="set max_gen_toks in the task's generation_kwargs",
            )
            whole = [self.prefix_id, *ids] if self.starts_with_prefix or not ids else ids
            truncated += len(whole) > room
            prompts.append(tuple(whole[-room:]))
        self._count(TruncationCounts(truncated=truncated), len(prompts))
        return prompts

    def _texts(
        self, generate: Generate, keys: Sequence[tuple[GenerationSettings, int, tuple[int, ...]]]
    ) -> dict[Any, str]:
        groups: dict[tuple[GenerationSettings, int], list[tuple[int, ...]]] = {}
        for how, seed, prompt in dict.fromkeys(keys):
            groups.setdefault((how, seed), []).append(prompt)
        found = {}
        for (how, seed), prompts in groups.items():
            prompts.sort(key=len, reverse=True)
            settings = {**asdict(how), "seed": seed}
            broadcast_message([GENERATE, [prompts, settings]])
            outputs = generate(prompts, **settings)
            for prompt, ids in zip(prompts, outputs, strict=True):
                found[how, seed, prompt] = how.cut(self._encoder.decode(ids))
        return found

    def serve(self) -> Any:
        """The results that process 0 ends with, having computed whatever it asked for until then.

        For all other processes of a run, with the same weights and the same `generate`.
        """
        while True:
            kind, word = broadcast_message(None)
            if kind == SCORE:
                self._scorer.scores(self._params, [Request(tuple(ids), at) for ids, at in word])
            elif kind == GENERATE:
                assert self._generate is not None  # process 0 has one
                self._generate(word[0], **word[1])
            elif kind == END:
                return word
            else:
                raise LaunchError(
                    f"the harness failed in process 0: {word}",
                    allowed="a harness that runs in every process",
                    fix="see the log of process 0",
                )

    def _scores(self, requests: Sequence[Request]) -> list[Score]:
        broadcast_message([SCORE, requests])
        return self._scorer.scores(self._params, requests)

    def _count(self, cuts: TruncationCounts, num_requests: int) -> None:
        self.cuts += cuts
        if cuts.truncated:
            log.warning(
                "%d of %d requests are longer than the model's %d tokens: they lost the beginning "
                "of their context, and %d of them a part of what is scored too. Fewer examples in "
                "the prompt (num_fewshot) make them shorter.",
                *(cuts.truncated, num_requests, self._scorer.row_len, cuts.shortened),
            )
        if cuts.empty:
            log.warning(
                "%d of %d requests have no token to score, so their log-likelihood is 0: the "
                "continuation is empty, or the tokenizer joins it to the end of its context.",
                *(cuts.empty, num_requests),
            )


def sampler(model: Any, *, mesh: Mesh, tokenizer: Tokenizer, batch_size: int) -> Generate:
    """A `generate` for `HarnessModel`, from a model in the dtype it computes in.

    Each prompt draws with a seed of its own, made from its tokens, so a text depends on neither its
    neighbours nor the batch size.
    """

    def generate(
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        seed: int,
        until: Sequence[str],
    ) -> list[list[int]]:
        choice = TokenChoice.of(temperature=temperature, top_k=top_k, top_p=top_p)
        texts: list[list[int]] = []
        for first in range(0, len(prompts), batch_size):
            some = prompts[first : first + batch_size]
            generation = Generation(
                model,
                some,
                mesh=mesh,
                max_tokens=max_tokens,
                end_ids=[tokenizer.eos_id],
                seeds=[crc32(np.asarray([seed, *prompt], np.int64).tobytes()) for prompt in some],
                choice=choice,
            )
            _advance(generation, tokenizer, [end for end in until if end])
            texts += generation.texts
        return texts

    return generate


def _advance(generation: Generation, tokenizer: Tokenizer, until: Sequence[str]) -> None:
    while not generation.is_done:
        generation.advance(LOOK_EVERY if until else None)
        for index, ids in enumerate(generation.texts):
            text = tokenizer.decode(ids)
            if any(end in text for end in until):
                generation.stop(index)
