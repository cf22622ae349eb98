"""The process beside a run: every row reaches W&B and TensorBoard once, and the run never waits."""

import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.errors import ConfigError
from chomp.tracking import (
    JsonlTracker,
    LoggingConfig,
    Sidecar,
    WandbConfig,
    WandbStart,
    new_wandb_id,
    read_metrics,
    start_sidecar,
    wandb_start,
    wants_wandb,
)
from chomp.tracking.record import is_step_row
from chomp.tracking.sidecar import follow, is_installed
from chomp.tracking.sinks import with_nonfinite
from tests.tracking.test_tensorboard_sink import events
from tests.tracking.wandb_files import OfflineRun, offline_runs

KEY = "0123456789abcdef0123456789abcdef01234567"  # as long as a real one
VALUES = st.one_of(st.floats(), st.integers(-(2**53), 2**53), st.booleans(), st.text(), st.none())
NAMES = st.text("abc/_", min_size=1).map(lambda name: f"m/{name}")


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


def start(**changes: Any) -> WandbStart:
    return WandbStart(**{"run_id": "base-1", "name": "base", "project": "p", **changes})


def begin(
    folder: Path, wandb: WandbStart | None = None, *, timeout_s: float | None = 100, **options: Any
) -> Sidecar:
    """The process for a record in `folder`, with TensorBoard unless it is turned off."""
    options = {"tensorboard": "board", **options}
    record = str(folder / "metrics.jsonl")
    sidecar = start_sidecar(record, folder=str(folder), wandb=wandb, timeout_s=timeout_s, **options)
    assert sidecar is not None
    return sidecar


def wait_until(is_so: Callable[[], bool], *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def process_of(sidecar: Sidecar) -> int:
    """The id of the process, once it is there."""
    wait_until(lambda: sidecar.process_id is not None)
    return sidecar.process_id or 0


def board_steps(folder: Path) -> list[tuple[int, int]]:
    """Attempt and step of every event of a step, in the order of the record."""
    return [
        (int(attempt.name.removeprefix("attempt-")), event.step)
        for attempt in sorted((folder / "board").iterdir())
        for event in events(attempt)
        if not any(value.tag.startswith("summary") for value in event.summary.value)
    ]


def recorded_steps(folder: Path) -> list[tuple[int, int]]:
    rows = read_metrics(folder / "metrics.jsonl")
    return [(row["attempt"], row["step"]) for row in rows if is_step_row(row)]


def wandb_steps(runs: list[OfflineRun]) -> list[tuple[int, int]]:
    return [(row["attempt"], row["global_step"]) for run in runs for row in run.rows]


def assert_each_row_is_there_once(folder: Path, runs: list[OfflineRun]) -> None:
    recorded = recorded_steps(folder)
    assert board_steps(folder) == recorded
    assert wandb_steps(runs) == recorded
    # W&B keeps one row for each number of its own.
    assert [row["_step"] for run in runs for row in run.rows] == list(range(len(recorded)))


# ---- What becomes of a record ----------------------------------------------------------------


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    return type(one) is type(other) and one == other


@settings(max_examples=30)
@given(rows=st.lists(st.dictionaries(NAMES, VALUES, max_size=4), max_size=5))
def test_every_row_and_summary_is_followed_as_it_was_logged(
    rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    for attempt in (1, 2):  # the second repeats every step
        tracker = JsonlTracker(path, attempt=attempt)
        for step, row in enumerate(rows):
            tracker.log(row, step=step)
        tracker.log_summary({"m/last": float("-inf")})
        tracker.finish()
    ended = threading.Event()
    ended.set()
    found = [with_nonfinite(row or {}) for row in follow(str(path), ended)]
    assert len(found) == 2 * len(rows) + 2
    logged = [*enumerate(rows), (None, {"m/last": float("-inf")})] * 2
    for line, (step, wanted) in zip(found, logged, strict=True):
        assert line.get("step") == step
        line_keys = ("attempt", "time", "global_step", "step", "kind")
        values = {key: line[key] for key in line if key not in line_keys}
        assert values.keys() == wanted.keys()
        assert all(same(values[key], wanted[key]) for key in wanted)


def test_a_record_is_followed_while_it_grows_and_torn_lines_are_not_passed(tmp_path: Path) -> None:
    path, ended, found = tmp_path / "metrics.jsonl", threading.Event(), []
    path.write_text('{"step": 0}\nnot a row\n{"step": 1}\n{"st')
    lines = follow(str(path), ended)
    found += [next(lines) for _ in range(3)]
    tracker = JsonlTracker(path, attempt=2)  # a new attempt moves the torn line aside
    tracker.log({}, step=2)
    found.append(next(lines))
    with path.open("a") as file:
        file.write('{"step": 3')  # and is killed
    ended.set()
    found += list(lines)
    assert [None if row is None else row["step"] for row in found] == [0, None, 1, 2]


def test_both_sinks_have_every_row_once_and_the_run_has_ended_well(tmp_path: Path) -> None:
    addresses: list[str | None] = []
    (tmp_path / "config.yaml").write_text("lr: 0.1")
    wandb = start(mode="offline", config={"lr": 0.1}, config_file=str(tmp_path / "config.yaml"))
    record = JsonlTracker(tmp_path / "metrics.jsonl", attempt=1)
    sidecar = begin(tmp_path, wandb, on_address=addresses.append)
    for step in range(20):
        record.log({"train/loss": float("nan") if step == 7 else step / 8}, step=step)
    (tmp_path / "sample.txt").write_text("a text")
    record.log_artifact("elsewhere/sample.txt", name="sample", kind="sample")  # a moved folder
    record.log_artifact("gone.txt", name="gone", kind="sample")
    record.log_summary({"run/outcome": "finished", "k": 3})
    record.finish()
    sidecar.finish()
    sidecar.finish()
    assert sidecar.failures == []
    assert addresses == [None]
    (run,) = offline_runs(tmp_path)
    assert_each_row_is_there_once(tmp_path, [run])
    assert (run.run_id, run.name, run.project) == ("base-1", "base", "p")
    assert run.config["lr"] == 0.1
    assert run.step_axes["*"] == "global_step"
    assert math.isnan(run.rows[7]["train/loss"])
    assert [name for _, name in run.artifacts] == ["config-base-1", "sample-base-1"]
    assert run.summary["k"] == 3
    assert run.exit_code == 0
    times = [row["time"] for row in read_metrics(tmp_path / "metrics.jsonl") if is_step_row(row)]
    assert [row["_timestamp"] for row in run.rows] == times
    assert "gone.txt is not there any more" in (tmp_path / ".sinks.log").read_text()


def test_a_line_that_cannot_be_read_may_have_been_a_row_at_wandb(tmp_path: Path) -> None:
    lines = '{"step":0}\nx\n{"kind":"summary"}\n{"step":2}\n'
    (tmp_path / "metrics.jsonl").write_text(lines)
    sidecar = begin(tmp_path, start(mode="offline"))
    sidecar.finish()
    assert sidecar.failures == []
    (run,) = offline_runs(tmp_path)
    # Fewer would put the next rows where others are.
    assert [(row["global_step"], row["_step"]) for row in run.rows] == [(0, 0), (2, 2)]
    assert board_steps(tmp_path) == [(1, 0), (1, 2)]


# ---- Kills -------------------------------------------------------------------------------------


RUN = """
import sys, time
from chomp.tracking import JsonlTracker, WandbStart, last_attempt, start_sidecar

folder, rows, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
path = folder + "/metrics.jsonl"
attempt = last_attempt(path) + 1
record = JsonlTracker(path, attempt=attempt)
wandb = WandbStart(run_id="base-1", name="b", project="p", mode="offline", attempt=attempt)
sidecar = start_sidecar(path, folder=folder, wandb=wandb, tensorboard="board")
while sidecar.process_id is None:
    time.sleep(0.01)
print(sidecar.process_id, flush=True)
for step in range(rows):
    record.log({"train/loss": step / 8, "text": "x" * 300}, step=step)
    time.sleep(seconds)
record.log_summary({"run/outcome": "finished"})
record.finish()
sidecar.finish()
assert not sidecar.failures, sidecar.failures
"""


def run_process(folder: Path, rows: int, seconds: float) -> tuple[subprocess.Popen[str], int]:
    """A run in a process of its own, and the id of its sidecar."""
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder), str(rows), str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    return run, int(run.stdout.readline())


def kill(process_id: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process_id, signal.SIGKILL)


def test_a_killed_run_is_failed_at_wandb_and_its_rows_are_there(tmp_path: Path) -> None:
    run, sidecar = run_process(tmp_path, 10_000, 0.01)
    wait_until(lambda: len(recorded_steps(tmp_path)) > 20)
    run.kill()
    run.communicate()
    wait_until(lambda: not Path(f"/proc/{sidecar}").exists())
    (attempt,) = offline_runs(tmp_path)
    assert attempt.exit_code == 1
    assert_each_row_is_there_once(tmp_path, [attempt])


def torture(folder: Path, kills: int, rows: int, chance: random.Random) -> None:
    """Kill the run and its sidecar at random, each alone or both, and run once to the end."""
    for _ in range(kills):
        run, sidecar = run_process(folder, rows, 0.002)
        time.sleep(chance.uniform(0, 6))
        victims = [[sidecar], [run.pid], [run.pid, sidecar], [sidecar, run.pid]]
        for victim in chance.choice(victims):
            kill(victim)
        time.sleep(chance.uniform(0, 1))
        run.kill()
        run.communicate()
    run, _ = run_process(folder, rows, 0.002)
    assert run.wait(timeout=300) == 0
    run.communicate()
    runs = offline_runs(folder)
    assert_each_row_is_there_once(folder, runs)
    assert runs[-1].exit_code == 0
    assert runs[-1].summary["run/outcome"] == "finished"


def test_after_kills_of_the_run_and_of_its_sidecar_every_row_is_there_once(tmp_path: Path) -> None:
    torture(tmp_path, 2, 500, random.Random(7))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_after_many_kills_every_row_is_there_once(seed: int, tmp_path: Path) -> None:
    torture(tmp_path, 8, 2000, random.Random(seed))


def test_a_killed_sidecar_is_started_again_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = JsonlTracker(tmp_path / "metrics.jsonl", attempt=1)
    sidecar = begin(tmp_path)
    first = process_of(sidecar)
    record.log({"x": 1}, step=0)
    wait_until(lambda: (tmp_path / "board").exists())
    kill(first)
    record.log({"x": 1}, step=1)
    record.finish()
    sidecar.finish()
    assert sidecar.failures == []
    assert sidecar.process_id != first
    assert board_steps(tmp_path) == [(1, 0), (1, 1)]
    assert "was killed by signal 9 and is started again; no row is lost" in caplog.text


def test_while_a_run_is_sent_a_second_process_for_its_record_has_nothing_to_do(
    tmp_path: Path,
) -> None:
    record = JsonlTracker(tmp_path / "metrics.jsonl", attempt=1)
    of_run = begin(tmp_path)
    record.log({"x": 1}, step=0)
    wait_until(lambda: (tmp_path / "board").exists())
    late = begin(tmp_path, waits_for_others=False)
    late.finish()
    assert late.failures == []
    record.log({"x": 1}, step=1)
    of_run.finish()
    assert board_steps(tmp_path) == [(1, 0), (1, 1)]


# ---- Sinks that hang or fail --------------------------------------------------------------------


def test_a_sidecar_that_hangs_costs_the_run_nothing_but_its_end_and_loses_no_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def seconds_for_rows() -> float:
        begun = time.perf_counter()
        for step in range(500):
            record.log({"train/loss": 1.0}, step=step)
        return time.perf_counter() - begun

    record = JsonlTracker(tmp_path / "metrics.jsonl", attempt=1)
    alone = min(seconds_for_rows() for _ in range(5))
    sidecar = begin(tmp_path, timeout_s=0.1)
    hung = process_of(sidecar)
    os.kill(hung, signal.SIGSTOP)
    assert min(seconds_for_rows() for _ in range(5)) < 2 * alone + 0.05  # of a shared machine
    record.finish()
    begun = time.monotonic()
    sidecar.finish()
    assert time.monotonic() - begun < 30
    wait_until(lambda: not Path(f"/proc/{hung}/fd/0").exists())
    assert "did not finish within 0 s and is left behind" in caplog.text
    assert f"chomp metrics replay {tmp_path} --to tensorboard" in caplog.text
    again = begin(tmp_path)
    again.finish()
    assert board_steps(tmp_path) == recorded_steps(tmp_path)
    assert len(recorded_steps(tmp_path)) == 5_000


def test_a_server_that_never_answers_holds_up_neither_the_run_nor_tensorboard(
    silent_server: socket.socket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = silent_server.getsockname()[1]
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    record = JsonlTracker(tmp_path / "metrics.jsonl", attempt=1)
    sidecar = begin(tmp_path, start(mode="online"), timeout_s=0.5)
    record.log({"train/loss": 1.0}, step=0)
    connection, _ = silent_server.accept()  # W&B waits for an answer from here on
    with connection:
        wait_until(lambda: (tmp_path / "board" / "attempt-1").exists())
        sidecar.finish()
    assert board_steps(tmp_path) == [(1, 0)]
    assert "did not finish within" in caplog.text
    assert f"chomp metrics replay {tmp_path} --to wandb --id base-1" in caplog.text
    assert KEY not in caplog.text + (tmp_path / ".sinks.log").read_text()


def test_an_offline_run_asks_nothing_of_a_server_and_waits_for_none(
    silent_server: socket.socket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    port = silent_server.getsockname()[1]
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.delenv("WANDB_ERROR_REPORTING")
    JsonlTracker(tmp_path / "metrics.jsonl", attempt=1).log({"train/loss": 1.0}, step=0)
    begin(tmp_path, start(mode="offline"), tensorboard=None).finish()
    silent_server.setblocking(False)
    with pytest.raises(BlockingIOError):
        silent_server.accept()
    assert len(offline_runs(tmp_path)) == 1


def test_a_sink_that_fails_is_told_with_the_remedy_and_the_other_has_its_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    JsonlTracker(tmp_path / "metrics.jsonl", attempt=1).log({"x": 1}, step=0)
    sidecar = begin(tmp_path, start(mode="online"))
    sidecar.finish()
    (failure,) = sidecar.failures
    assert "W&B: logging.wandb is enabled, but there is no W&B login" in failure
    assert "WANDB_API_KEY" in failure  # and the terminal is not asked for one
    assert f"chomp metrics replay {tmp_path} --to wandb --id base-1" in caplog.text
    assert board_steps(tmp_path) == [(1, 0)]


def test_places_that_cannot_be_written_cost_the_run_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "board").write_text("a file")
    record = JsonlTracker(tmp_path / "metrics.jsonl", attempt=1)
    sidecar = begin(tmp_path)
    record.log({"x": 1}, step=0)
    record.finish()
    sidecar.finish()
    assert "TensorBoard failed: " in caplog.text
    (tmp_path / "board").unlink()
    begin(tmp_path).finish()
    assert board_steps(tmp_path) == [(1, 0)]
    (tmp_path / ".sinks.log").unlink()
    (tmp_path / ".sinks.log").symlink_to("elsewhere")
    begin(tmp_path).finish()
    assert "could not be started: " in caplog.text
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("ending", ["sidecar.finish()", "pass"])
def test_a_process_ends_though_its_sidecar_hangs(ending: str, tmp_path: Path) -> None:
    code = f"""
import os, signal, time
from chomp.tracking import JsonlTracker, start_sidecar
path = {str(tmp_path / "metrics.jsonl")!r}
JsonlTracker(path, attempt=1).log({{"x": 1}}, step=0)
sidecar = start_sidecar(path, folder={str(tmp_path)!r}, tensorboard="board", timeout_s=0.1)
while sidecar.process_id is None:
    time.sleep(0.01)
os.kill(sidecar.process_id, signal.SIGSTOP)
print(sidecar.process_id, flush=True)
{ending}
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    kill(int(done.stdout))


# ---- Who is asked for --------------------------------------------------------------------------


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
    facts: dict[str, Any] = {"name": "mine", "run_id": "mine-1", "settings": config, "attempt": 2}
    logging = LoggingConfig(project="q", wandb=WandbConfig(entity="us", tags=("a", "b")))
    made = wandb_start(logging, **facts)
    assert made.config == {"data": {"urls": ["https://user:<HF_TOKEN>@host/x"]}, "max_tokens": 3}
    assert (made.run_id, made.name, made.project) == ("mine-1", "mine", "q")
    assert (made.entity, made.tags, made.attempt) == ("us", ["a", "b"], 2)
    own = LoggingConfig(wandb=WandbConfig(project="r", run_name="other", mode="offline"))
    made = wandb_start(own, **facts)
    assert (made.name, made.project, made.mode) == ("other", "r", "offline")
    assert "hf_abcdefgh12345" not in json.dumps(made.config)


def test_ids_are_new_each_time_and_of_characters_that_wandb_takes() -> None:
    one, other = (new_wandb_id("a run/of:mine") for _ in range(2))
    assert one != other
    assert one.startswith("a-run-of-mine-")
