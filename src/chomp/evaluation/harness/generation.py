"""What a task asks of generated text, and the text cut where the task says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from chomp.config.messages import did_you_mean, nearest
from chomp.errors import require

DEFAULT_MAX_TOKENS = 256  # lm-eval's own
KNOWN = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p")


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
