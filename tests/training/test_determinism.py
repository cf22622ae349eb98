"""A step draws random numbers, and adds up in one order, as its config says."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from chomp.errors import ConfigError
from chomp.training import is_stochastic
from chomp.training.setup import with_reproducible_attention


@dataclass(frozen=True)
class Model:
    """A model's config."""

    hidden_dim: int = 8
    dropout: float = 0.0
    attention_dropout: float = 0.0
    attention_dropout_mode: str = "post_softmax"  # no rate


@dataclass(frozen=True)
class Plain:
    """One that has nothing to drop."""

    hidden_dim: int = 8


@pytest.mark.parametrize(
    ("deterministic", "model", "expected"),
    [
        (None, Plain(), False),
        (None, Model(), False),
        (None, Model(attention_dropout=0.1), True),
        (True, Model(dropout=0.1), False),
        (False, Model(), True),
        (False, Plain(), True),
    ],
)
def test_the_trainer_decides_and_without_a_word_of_it_the_rates_do(deterministic, model, expected):
    assert is_stochastic(deterministic, model) is expected


def test_dropout_that_is_forced_off_is_said(caplog):
    is_stochastic(True, Model(dropout=0.25))
    assert "the dropout of the model is off" in caplog.text


@dataclass(frozen=True)
class Attending:
    """A model's config that names a kernel."""

    attention: str = "auto"


@dataclass(frozen=True)
class Run:
    """A run's config."""

    model: Attending = field(default_factory=Attending)
    trainer: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(reproducible=True))


def devices(platform: str) -> SimpleNamespace:
    """A mesh of one device, as far as it is looked at: nothing here has a GPU."""
    return SimpleNamespace(devices=SimpleNamespace(flat=[SimpleNamespace(platform=platform)]))


# Without the check of types, which would not take that for a mesh.
reproducible = with_reproducible_attention.__wrapped__


def test_a_reproducible_run_on_a_gpu_leaves_cudnn_alone_and_says_so(caplog):
    assert reproducible(Run(), devices("gpu")).model.attention == "chunked"
    assert "several times slower" in caplog.text
    for kept in ("chunked", "reference"):
        run = Run(model=Attending(kept))
        assert reproducible(run, devices("gpu")) is run
    with pytest.raises(ConfigError, match=r"attention=cudnn on a GPU.*Allowed.*chunked.*Fix"):
        reproducible(Run(model=Attending("cudnn")), devices("gpu"))


def test_other_runs_attend_as_they_were_told():
    for run, platform in (
        (Run(), "cpu"),
        (Run(trainer=SimpleNamespace(reproducible=False)), "gpu"),
        (Run(model=Attending("cudnn"), trainer=SimpleNamespace(reproducible=False)), "gpu"),
    ):
        assert reproducible(run, devices(platform)) is run
