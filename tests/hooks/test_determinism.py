"""Whether a step draws random numbers is said by the trainer, or by the model's dropout rates."""

from dataclasses import dataclass

import pytest

from chomp.hooks import is_stochastic


@dataclass(frozen=True)
class Model:
    """A model's config."""

    hidden_dim: int = 8
    dropout: float = 0.0
    attention_dropout: float = 0.0


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
