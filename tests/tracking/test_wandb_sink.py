"""W&B, the real one without its server: what it is given, and that it cannot harm a run."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from chomp.errors import ConfigError, LaunchError
from chomp.tracking import BackgroundSink, LoggingConfig, RunFacts, WandbConfig, WandbProcess
from chomp.tracking.sinks import is_installed, new_wandb_id, wants_wandb
from chomp.tracking.wandb_sink import WandbStart
from tests.tracking.wandb_files import offline_runs

KEY = "0123456789abcdef0123456789abcdef01234567"  # as long as a real one


@pytest.fixture(autouse=True)
def _only_what_a_test_sets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "settings"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


@pytest.fixture
def silent_server() -> Iterator[socket.socket]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        server.settimeout(120)
        yield server


def start(**changes: object) -> WandbStart:
    return WandbStart(**{"run_id": "base-1", "name": "base", "project": "p", **changes})  # type: ignore[arg-type]


def test_a_run_killed_in_its_first_attempt_is_failed_and_its_rows_are_there(
    tmp_path: Path,
) -> None:
    calls = [
        {"start": asdict(start(mode="offline", attempt=3, config={"model": {"layers": 2}}))},
        {
            "method": "log_artifact",
            "arguments": ["gone.yaml"],
            "keywords": {"name": "c", "kind": "c"},
        },
        {"method": "log", "arguments": [{"train/loss": float("nan")}], "keywords": {"step": 7}},
    ]
    words = "".join(json.dumps(call) + "\n" for call in calls) + '{"method": "lo'
    done = subprocess.run(
        [sys.executable, "-c", "from chomp.tracking.wandb_sink import serve; serve()"],
        input=words.encode(),
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 1  # the artifact could not be read, and the rest was still done
    assert b"gone.yaml" in done.stderr
    (run,) = offline_runs(tmp_path)
    assert (run.run_id, run.name, run.project) == ("base-1", "base", "p")
    assert run.config["model"] == {"layers": 2}
    assert run.step_axes["*"] == "global_step"
    (row,) = run.rows
    assert (row["global_step"], row["attempt"]) == (7, 3)
    assert row["train/loss"] != row["train/loss"]
    assert run.exit_code == 1


def test_a_server_that_never_answers_holds_up_nobody(
    silent_server: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = silent_server.getsockname()[1]
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    begun: list[WandbProcess] = []

    def begin() -> WandbProcess:
        begun.append(WandbProcess(start(mode="online")))
        return begun[0]

    sink = BackgroundSink(begin, title="W&B", remedy="replay", finish_timeout_s=0.1)
    sink.log({"train/loss": 1.0}, step=0)
    connection, _ = silent_server.accept()  # W&B waits for an answer from here on
    with connection:
        sink.finish()
    assert sink.lost_calls == 1
    assert "W&B did not finish within 0 s" in caplog.text
    with pytest.raises(LaunchError) as caught:
        begun[0].log({"train/loss": 1.0}, step=1)
    assert "code -9" in caught.value.given
    assert KEY not in caplog.text


def test_an_offline_run_asks_nothing_of_a_server_and_waits_for_none(
    silent_server: socket.socket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    port = silent_server.getsockname()[1]
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.delenv("WANDB_ERROR_REPORTING")
    process = WandbProcess(start(mode="offline"))
    process.log({"train/loss": 1.0}, step=0)
    process.finish()
    silent_server.setblocking(False)
    with pytest.raises(BlockingIOError):
        silent_server.accept()
    assert len(offline_runs(tmp_path)) == 1


def test_without_a_key_the_terminal_is_not_asked_for_one() -> None:
    process = WandbProcess(start(mode="online"))
    with pytest.raises(LaunchError) as caught:
        process.log({"train/loss": 1.0}, step=0)
    assert "WANDB_API_KEY" in str(caught.value)
    process.finish()


@pytest.mark.parametrize(
    ("config", "key", "wanted"),
    [
        (WandbConfig(), "", False),
        (WandbConfig(), KEY, True),
        (WandbConfig(enabled=False), KEY, False),
        (WandbConfig(enabled=True), "", True),
        (WandbConfig(enabled=True, mode="disabled"), KEY, False),
    ],
)
def test_rows_go_to_wandb_when_asked_or_when_there_is_a_key(
    config: WandbConfig, key: str, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", key)
    assert wants_wandb(config) is wanted


def test_the_folder_of_wandb_is_not_taken_for_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "wandb").mkdir()
    for name in [name for name in sys.modules if name.partition(".")[0] == "wandb"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert not is_installed("wandb")
    with pytest.raises(ConfigError) as caught:
        wants_wandb(WandbConfig(enabled=True))
    assert "wandb" in caught.value.given
    assert "pip install 'chomp[wandb]'" in caught.value.fix
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert not wants_wandb(WandbConfig())
    assert "pip install 'chomp[wandb]'" in caplog.text


def test_what_wandb_is_told_of_a_run_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh12345")
    config = {"data": {"urls": ["https://user:hf_abcdefgh12345@host/x"]}, "max_tokens": 3}
    facts = RunFacts(folder="r", name="mine", attempt=2, config=config, wandb_id="mine-1")
    logging = LoggingConfig(project="q", wandb=WandbConfig(entity="us", tags=("a", "b")))
    made = facts.wandb_start(logging)
    assert made.config == {"data": {"urls": ["https://user:<HF_TOKEN>@host/x"]}, "max_tokens": 3}
    assert (made.run_id, made.name, made.project) == ("mine-1", "mine", "q")
    assert (made.entity, made.tags, made.attempt) == ("us", ["a", "b"], 2)
    own = LoggingConfig(wandb=WandbConfig(project="r", run_name="other", mode="offline"))
    made = facts.wandb_start(own)
    assert (made.name, made.project, made.mode) == ("other", "r", "offline")


def test_ids_are_new_each_time_and_of_characters_that_wandb_takes() -> None:
    one, other = (new_wandb_id("a run/of:mine") for _ in range(2))
    assert one != other
    assert one.startswith("a-run-of-mine-")
