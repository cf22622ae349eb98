"""The model as lm-eval sees it: texts in, log-likelihoods and texts out."""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lm_eval.api.model import LM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from chomp.errors import ConfigError, LaunchError, require
from chomp.evaluation.harness.generation import Generate, GenerationSettings
from chomp.evaluation.harness.serving import END, GENERATE, SCORE, told
from chomp.evaluation.request_scores import RequestScorer, Score
from chomp.evaluation.requests import Cuts, Request, encoded_pairs, fitting
from chomp.tokenize import Tokenizer

log = logging.getLogger(__name__)


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
        self.cuts = Cuts()  # of all requests so far
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
        self._count(Cuts(truncated=truncated), len(prompts))
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
            told([GENERATE, [prompts, settings]])
            outputs = generate(prompts, **settings)
            for prompt, ids in zip(prompts, outputs, strict=True):
                found[how, seed, prompt] = how.cut(self._encoder.decode(ids))
        return found

    def serve(self) -> Any:
        """The results that process 0 ends with, having computed whatever it asked for until then.

        For all other processes of a run, with the same weights and the same `generate`.
        """
        while True:
            kind, word = told(None)
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
        told([SCORE, requests])
        return self._scorer.scores(self._params, requests)

    def _count(self, cuts: Cuts, num_requests: int) -> None:
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
