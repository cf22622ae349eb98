"""What a run will read, before it reads anything: examples, tokens and epochs of every component.

The counts come from the mixture that serves the run, so a forecast cannot differ from the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from rich.table import Table

from chomp.data.mixture import BatchSchedule, Mixture

# Up to about four readings of the same text are nearly as good as new text; after that the gain
# falls away (Muennighoff et al., "Scaling Data-Constrained Language Models", 2023).
MAX_EPOCHS = 4


@dataclass(frozen=True, kw_only=True)
class ComponentForecast:
    """What a stage takes of one component."""

    name: str
    weight: float  # share of the stage's examples
    rows: int  # examples of one epoch
    examples: int  # in the stage
    examples_so_far: int  # when the stage ends
    tokens: int  # in the stage

    @property
    def is_repeated_much(self) -> bool:
        """Whether it has been read more than `MAX_EPOCHS` times when the stage ends."""
        # On whole numbers: exactly four epochs are no reason to warn.
        return self.examples_so_far > MAX_EPOCHS * self.rows


@dataclass(frozen=True, kw_only=True)
class StageForecast:
    """What one stage takes: its examples are those of steps start_step..stop_step-1.

    A stage that starts within a step shares that step with the stage before it.
    """

    number: int
    start_step: int
    stop_step: int
    components: tuple[ComponentForecast, ...]  # in the order of names


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a run takes, by stage. Stages that the run does not reach are not in it."""

    seq_len: int
    total_steps: int
    total_examples: int
    stages: tuple[StageForecast, ...]

    @property
    def total_tokens(self) -> int:
        """Tokens that the run trains on, padding and repeats included."""
        return self.total_examples * self.seq_len

    def warnings(self) -> list[str]:
        """One message for each component that the run reads more than `MAX_EPOCHS` times."""
        return [
            f"component {last.name!r} is read {last.examples_so_far / last.rows:.1f} times in "
            f"{self.total_steps:,} steps ({last.examples_so_far:,} examples from {last.rows:,} "
            f"rows). After {MAX_EPOCHS} epochs repeated text teaches little. "
            f"Fix: lower the weight of {last.name!r}, give it more documents, or train for less."
            for last in (self.stages[-1].components if self.stages else ())
            if last.is_repeated_much
        ]


def forecast(
    mixture: Mixture,
    schedule: BatchSchedule,
    rows: Mapping[str, int],
    *,
    seq_len: int,
    total_steps: int,
) -> Forecast:
    """What a run of `total_steps` takes of every component, whose epochs have so many `rows`."""
    total = schedule.examples_before(total_steps)
    reached = [start for start in mixture.starts if start < total]
    stages = []
    for number, (start, stop) in enumerate(pairwise([*reached, total])):
        weights, counts = mixture.weights_at(start), mixture.counts_before
        components = [
            ComponentForecast(
                name=name,
                weight=weights[name],
                rows=rows[name],
                examples=after - before,
                examples_so_far=after,
                tokens=(after - before) * seq_len,
            )
            for name, before, after in zip(mixture.names, counts(start), counts(stop), strict=True)
        ]
        stages.append(
            StageForecast(
                number=number,
                start_step=schedule.step_of(start),
                stop_step=schedule.step_of(stop - 1) + 1,
                components=tuple(components),
            )
        )
    return Forecast(
        seq_len=seq_len, total_steps=total_steps, total_examples=total, stages=tuple(stages)
    )


def forecast_table(forecast: Forecast) -> Table:
    """The forecast for a terminal: a line for each component of each stage."""
    table = Table(
        title=f"{forecast.total_steps:,} steps, {forecast.total_examples:,} examples, "
        f"{forecast.total_tokens:,} tokens"
    )
    for heading in ("stage", "steps", "component"):
        table.add_column(heading)
    for heading in ("weight", "examples", "tokens", "epochs", "epochs so far"):
        table.add_column(heading, justify="right")
    for stage in forecast.stages:
        cells = str(stage.number), f"{stage.start_step:,} to {stage.stop_step - 1:,}"
        table.add_section()
        for part in stage.components:
            if part.weight:
                table.add_row(
                    *cells,
                    part.name,
                    f"{part.weight:.4g}",
                    f"{part.examples:,}",
                    f"{part.tokens:,}",
                    f"{part.examples / part.rows:.2f}",
                    f"{part.examples_so_far / part.rows:.2f}",
                    style="yellow" if part.is_repeated_much else None,
                )
                cells = "", ""
    return table
