"""What a run shows and keeps: the settings, the log file, and no secret in either."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chomp.config import config_from_mapping
from chomp.errors import ConfigError, StorageError
from chomp.tracking import LoggingConfig, logged_to, redacted, without_secrets


@pytest.mark.parametrize(
    "mapping",
    [
        {"project": " "},
        {"level": "LOUD"},
        {"log_file": ""},
        {"log_file": "../train.log"},
        {"metrics_file": "/tmp/metrics.jsonl"},
        {"metrics_file": "train.log"},
        {"metrics_file": "train.log", "log_file": None},
        {"metrics_file": "config_resolved.json"},
        {"metrics_file": "samples/metrics.jsonl"},
        {"metrics_file": ".executor_status"},
        {"log_file": "metrics.jsonl", "metrics_file": "mine.jsonl"},
        {"metrics_file": "logs/m.jsonl", "tensorboard": {"folder": "logs"}},
        {"tensorboard": {"folder": "checkpoints"}},
        {"tensorboard": {"folder": "a//b"}},
        {"wandb": {"mode": "sometimes"}},
        {"wandb": {"tags": ["a", ""]}},
        {"wandb": {"run_name": ""}},
        {"wandb": {"key": "x"}},
        {"console_rich": True},
    ],
)
def test_settings_that_cannot_be_right_are_refused(mapping: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(LoggingConfig, mapping)
    assert caught.value.allowed
    assert caught.value.fix


def test_the_defaults_are_those_of_the_first_chomp() -> None:
    config = LoggingConfig()
    assert (config.project, config.level) == ("chomp", "INFO")
    assert (config.metrics_file, config.log_file) == ("metrics.jsonl", "train.log")
    assert config.wandb.enabled is None
    assert not config.tensorboard.enabled


@pytest.mark.parametrize(
    ("level", "kept"),
    [
        ("DEBUG", {"ours", "of a library", "a detail", "a warning"}),
        ("INFO", {"ours", "of a library", "a warning"}),
        ("WARNING", {"a warning"}),
        ("ERROR", set()),
    ],
)
def test_the_file_takes_all_from_its_level_on_and_the_terminal_warnings(
    level: str, kept: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    path = tmp_path / "train.log"
    with logged_to(str(path), level):
        logging.getLogger("chomp.data").info("ours")
        logging.getLogger("absl").info("of a library")
        logging.getLogger("jax").debug("a detail")
        logging.getLogger("orbax").warning("a warning")
    lines = path.read_text().splitlines()
    assert {line.partition(": ")[2] for line in lines} == kept
    shown = capsys.readouterr().err
    assert shown == ("a warning\n" if level in ("DEBUG", "INFO", "WARNING") else "")
    with logged_to(None):
        logging.getLogger("chomp").warning("look")
        logging.getLogger("chomp").info("a detail")
    assert capsys.readouterr().err == "look\n"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_log_that_is_no_file_is_refused_at_once(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path / "train.log")
    with pytest.raises(StorageError) as refused, logged_to(str(tmp_path / "train.log")):
        pass
    assert "train.log" in refused.value.given


def test_who_listened_before_hears_no_more_while_a_file_is_open_and_all_as_before_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    root, listener = logging.getLogger(), Listener()
    monkeypatch.setattr(root, "handlers", [listener])
    levels = [logging.getLogger(name).level for name in (None, "absl", "chomp", "jax")]
    with logged_to(str(tmp_path / "train.log"), "DEBUG"):
        logging.getLogger("jax").info("chatter")
        logging.getLogger("jax").warning("a warning")
    assert heard == ["a warning"]
    assert [logging.getLogger(name).level for name in (None, "absl", "chomp", "jax")] == levels
    assert (root.handlers, listener.level) == ([listener], logging.NOTSET)


def test_a_secret_of_the_environment_reaches_no_log_and_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("MY_TOKEN", "true")  # too short to be one
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "not a secret")
    with logged_to(str(tmp_path / "train.log")):
        try:
            raise ValueError("rejected key 0123456789abcdef")
        except ValueError:
            logging.getLogger("chomp").exception("key=%s", "0123456789abcdef")
    text = (tmp_path / "train.log").read_text()
    assert "0123456789abcdef" not in text
    assert "key=<WANDB_API_KEY>" in text
    assert "ValueError: rejected key <WANDB_API_KEY>" in text
    assert redacted("true, not a secret") == "true, not a secret"
    assert without_secrets({"a": ["x0123456789abcdef", 3, None]}) == {
        "a": ["x<WANDB_API_KEY>", 3, None]
    }
