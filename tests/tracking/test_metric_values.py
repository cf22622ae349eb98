"""Whatever a train step hands over becomes a plain value, or is refused by name."""

import enum
import math

import numpy as np
import pytest

import chomp.tracking
from chomp.errors import ConfigError
from chomp.tracking import NoopTracker, flat_metrics


class Mode(str, enum.Enum):  # noqa: UP042 - the old style is what is tested
    """An old-style string choice, whose `str()` is not its value."""

    PACKED = "packed"


class DeviceScalar:
    """Stands in for an array of another library: a shape and `.item()`, nothing else."""

    shape = ()

    def item(self) -> float:
        return 1.5


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (1, 1),
        (True, True),
        (None, None),
        ("bin", "bin"),
        (Mode.PACKED, "packed"),
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.array(3), 3),
        (np.array(2.5, np.float16), 2.5),
        (np.str_("H200"), "H200"),
        (DeviceScalar(), 1.5),
    ],
)
def test_a_value_becomes_exactly_a_plain_one(value: object, plain: object) -> None:
    result = flat_metrics({"x": value})["x"]  # type: ignore[dict-item]
    assert result == plain
    assert type(result) is type(plain)


def test_a_nan_stays_a_nan() -> None:
    value = flat_metrics({"x": np.array(np.nan)})["x"]
    assert isinstance(value, float)
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"loss": 1.0}, "dict"),
        ([1.0], "list"),
        ((1.0, 2.0), "tuple"),
        (np.ones(3), "ndarray of shape (3,)"),
        (np.ones(1), "ndarray of shape (1,)"),
        (1 + 2j, "complex"),
        (np.complex64(1), "complex64"),
        (b"bytes", "bytes"),
    ],
)
def test_anything_but_one_plain_value_is_refused_by_name(value: object, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        flat_metrics({"eval/web": value})  # type: ignore[dict-item]
    assert f"'eval/web' is a {what}" in caught.value.given
    assert "eval/web/" in caught.value.fix


@pytest.mark.parametrize("name", ["", 3, None])
def test_a_name_must_be_a_non_empty_string(name: object) -> None:
    with pytest.raises(ConfigError) as caught:
        flat_metrics({name: 1.0})  # type: ignore[dict-item]
    assert repr(name) in caught.value.given
    assert "'train/loss'" in caught.value.fix


def test_the_noop_tracker_takes_anything_and_keeps_nothing() -> None:
    tracker = NoopTracker()
    tracker.log({"train/loss": 1.0}, step=0)
    tracker.log_summary({"x": 1})
    tracker.log_artifact("a.yaml", name="config", kind="config")
    tracker.finish()
    tracker.finish()
    assert vars(tracker) == {}


def test_the_room_exports_exactly_its_public_names() -> None:
    exported = {
        name
        for name, value in vars(chomp.tracking).items()
        if not name.startswith("_") and not isinstance(value, type(chomp))
    }
    assert exported == set(chomp.tracking.__all__)
