"""A real Ray head: steps and gangs on it, a gang that loses a process, and jobs."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests import tiny
from tests.launch.ray_head import RayHead, started_head
from tests.launch.sent_steps import wait_for, wait_until

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
SENT = ROOT / "tests/launch/sent_launch.py"
TRAINED = ROOT / "tests/launch/gang_launch.py"
BASE = ROOT / "experiments/grug/base/launch.py"
STEPS = 30
SMALL = {
    "train.steps": STEPS,
    "train.batch_size": 8,
    "train.seq_len": 64,
    "train.log_every": 1,
    "optim.warmup_steps": 2,
    "model.hidden_dim": 32,
    "model.intermediate_dim": 64,
    "model.num_layers": 1,
    "model.num_heads": 2,
    "model.num_kv_heads": 2,
    "model.vocab_size": 512,
    "data.tokenizer.vocab_size": 512,
    "eval.max_eval_batches": 1,
    "samples.max_tokens": 0,
    "checkpoint.every": 5,
    "checkpoint.save_interval_s": "null",
}
# Two devices of one process wait for each other in threads, of which XLA has one for each core: on
# two cores, two programs can have a half of them each, and wait for ever.
THREADS = {"NPROC": "8"}


@pytest.fixture(scope="module")
def head() -> Iterator[RayHead]:
    """A head on loopback, for the tests of this file."""
    started = started_head()
    yield started
    started.close()


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(head: RayHead) -> Iterator[Start]:
    """Starts a launch file as a driver of the head."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str | Path, **environment: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, *map(str, words)],
            env={**head.environment, "COLUMNS": "200", **environment},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()  # does nothing to one that has ended
        process.communicate()


def ended(process: "subprocess.Popen[str]", code: int = 0) -> str:
    """What a process printed that ends with that code."""
    printed, _ = process.communicate(timeout=240)
    assert process.returncode == code, printed
    return printed


def overrides(**more: object) -> list[str]:
    return [word for key, value in {**SMALL, **more}.items() for word in ("-o", f"{key}={value}")]


def state(folder: Path) -> str:
    found: str = json.loads((folder / ".executor_status").read_text())["state"]
    return found


def test_steps_and_gangs_run_on_the_cluster_and_failures_keep_to_themselves(start, tmp_path):
    wishes = 'wishes=["nothing", "data", "one is lost once"]'
    words = ["--prefix", tmp_path, "--on", "ray", "-o", wishes, "-o", "processes=2"]
    printed = ended(start(SENT, *words), 1)
    folders = {path.name.rpartition("-")[0]: path for path in tmp_path.glob("*-*")}
    assert {name: state(path) for name, path in folders.items()} == {
        "nothing": "SUCCESS",
        "data": "FAILED",
        "one-is-lost-once": "SUCCESS",
    }
    assert "no documents" in printed
    # Both began again after one was lost, and only then.
    starts = (folders["one-is-lost-once"] / "starts").read_text().split()
    assert sorted(starts) == ["0", "0", "1", "1"]
    assert "starting all of them again (restart 1 of 3)" in printed
    assert sorted((folders["nothing"] / "starts").read_text().split()) == ["0", "1"]
    for index, name in enumerate([".executor_log", ".executor_log.1"]):
        header, said = (folders["nothing"] / name).read_text().splitlines()
        assert f"member {index} of 2" in header
        assert said.startswith("printed by ")


def test_a_driver_asked_to_stop_hands_that_on_and_ends_as_the_step_did(start, tmp_path):
    wishes = 'wishes=["leaves", "until asked"]'
    process = start(SENT, "--prefix", tmp_path, "--on", "ray", "-o", wishes)
    folder = folder_of(tmp_path, "until-asked")
    wait_for(folder / "ready")
    # A lone process that ends itself without a word would do so again: it had one try.
    left = folder_of(tmp_path, "leaves")
    wait_until(lambda: state(left) == "FAILED")
    assert (left / "starts").read_text().split() == ["0"]
    process.send_signal(signal.SIGTERM)
    printed = ended(process, 75)
    assert (folder / "saved").exists()
    assert "the state is saved at step-5" in printed
    assert state(folder) == "INTERRUPTED"


def folder_of(prefix: Path, name: str) -> Path:
    """The output folder of the step of that name, once it is there."""
    wait_until(lambda: bool(list(prefix.glob(f"{name}-*"))))
    (found,) = prefix.glob(f"{name}-*")
    return found


def test_a_resource_that_no_node_has_is_refused_and_nothing_is_begun(start, tmp_path):
    words = ["--prefix", tmp_path / "out", "--on", "ray", "-o", 'custom={"TPU": 4}']
    printed = ended(start(SENT, *words), 1)
    assert "asks for 'TPU', which no node has" in printed
    assert "Traceback" not in printed
    assert not list(tmp_path.glob("out/*"))


PROBE = """
import os, sys
from pathlib import Path
import mine
from ray._raylet import GcsClient

def content(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""

# Kept by hex, so that this file and what it prints hold no key.
keys = [bytes.fromhex(sys.argv[1]), bytes.fromhex(sys.argv[2])]
has_keys = [os.environ[name].encode() for name in ("HF_TOKEN", "MY_PASSWORD")] == keys
store = GcsClient(address=os.environ["RAY_ADDRESS"])
kept = [store.internal_kv_get(key, None) or b"" for key in store.internal_kv_keys(b"", None)]
shown = [content(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
is_seen = [any(key in text for key in keys for text in texts) for texts in (kept, shown)]
print("probed", mine.WHAT, os.environ["MODE"], has_keys, len(kept) > 1, len(shown) > 5, is_seen)
print("here:", sorted(os.listdir()))
sys.exit(7)
"""


def test_a_job_has_this_folder_its_variables_and_keys_and_its_exit_code_comes_back(head, tmp_path):
    (tmp_path / "src/mine").mkdir(parents=True)
    (tmp_path / "src/mine/__init__.py").write_text("WHAT = 'sent along'")
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs/result").touch()
    keys = [secrets.token_urlsafe(), secrets.token_urlsafe()]
    run = [sys.executable, "-m", "chomp.launch.ray_run", "--cluster", head.dashboard]
    given = ["--env_vars", "MODE", "fast", "--env_vars", "MY_PASSWORD"]
    done = subprocess.run(
        [*run, *given, "--", "python", "probe.py", *(key.encode().hex() for key in keys)],
        env={**head.environment, "HF_TOKEN": keys[0], "MY_PASSWORD": keys[1]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 7, done.stderr
    # Nothing of the keys is in the store or in what `ps` shows while the job runs.
    assert "probed sent along fast True True True [False, False]" in done.stdout
    assert "here: ['probe.py', 'src']" in done.stdout
    assert f"sent: {tmp_path}" in done.stderr
    assert "variables: MODE, RAY_JOB_STOP_WAIT_TIME_S" in done.stderr
    assert "HF_TOKEN, MY_PASSWORD" in done.stderr
    # Nor afterwards in what the dashboard tells of all jobs, or in a file of Ray.
    said = [done.stdout, done.stderr, jobs_of(head)]
    assert "probe.py" in said[-1]
    logs = files_below(head.folder)
    assert len(logs) > 5
    for text in (*map(str.encode, said), *logs):
        assert not any(key.encode() in text for key in keys)


def files_below(folder: Path) -> list[bytes]:
    """The contents of a head's files, but for those that Ray takes away meanwhile."""
    found = []
    for inner, _, names in os.walk(folder):  # which passes over folders that are gone
        for path in (Path(inner, name) for name in names):
            with suppress(FileNotFoundError):
                found += [path.read_bytes()] if path.is_file() else []
    return found


def jobs_of(head: RayHead) -> str:
    """All that the job API tells of all jobs."""
    asked = urllib.request.Request(
        f"{head.dashboard}/api/jobs/",
        headers={"Authorization": f"Bearer {head.environment['RAY_AUTH_TOKEN']}"},
    )
    with urllib.request.urlopen(asked, timeout=120) as answer:
        told: bytes = answer.read()
    return told.decode()


def run_folder(prefix: Path, run_id: str) -> Path:
    (found,) = prefix.glob(f"grug/{run_id}-*")
    return found


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs are that share their tokens."""
    return tmp_path_factory.mktemp("trained")


def gang(prefix: Path, run_id: str, *, count: int, on: str) -> tuple[list[object], dict[str, str]]:
    """Words and variables of a run by `count` processes, with four devices in all."""
    words = [TRAINED, "--prefix", prefix, "--on", on, *overrides(**{"mesh.data": 4})]
    variables = {
        "CHOMP_TEST_PROCESSES": str(count),
        "CHOMP_HEARTBEAT_S": "10",
        "JAX_NUM_CPU_DEVICES": str(4 // count),
        "GRUG_RUN_ID": run_id,
        **THREADS,
    }
    return words, variables


@pytest.mark.slow
def test_two_processes_of_two_devices_train_as_one_of_four(start, prefix):
    for run_id, count, on in [("two", 2, "ray"), ("one", 1, "local")]:
        words, variables = gang(prefix, run_id, count=count, on=on)
        ended(start(*words, **variables))
    two, one = tiny.losses(run_folder(prefix, "two")), tiny.losses(run_folder(prefix, "one"))
    assert len(two) == STEPS
    # Sums over devices are taken in another order.
    assert two == pytest.approx(one, abs=1e-5)
    assert two[STEPS - 1] < two[0] - 0.3


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_gang_that_loses_a_process_starts_again_and_ends_as_if_nothing_had_been(
    head, start, prefix, lost
):
    if not list(prefix.glob("grug/two-*")):
        words, variables = gang(prefix, "two", count=2, on="ray")
        ended(start(*words, **variables))
    run_id = f"lost-{lost}"
    words, variables = gang(prefix, run_id, count=2, on="ray")
    process = start(*words, **variables)
    wait_for_rows(process, prefix, run_id, 12)
    os.kill(member(head, lost), signal.SIGKILL)
    printed = ended(process)
    assert "starting all of them again (restart 1 of 3)" in printed
    folder = run_folder(prefix, run_id)
    assert tiny.losses(folder) == tiny.losses(run_folder(prefix, "two"))
    assert tiny.receipt(folder, STEPS) == tiny.receipt(run_folder(prefix, "two"), STEPS)
    assert json.loads((folder / ".executor_status").read_text())["attempt"] == 1


def wait_for_rows(process: "subprocess.Popen[str]", prefix: Path, run_id: str, count: int) -> None:
    """Return when the run has logged that many steps."""
    deadline = time.monotonic() + 120
    while True:
        for path in prefix.glob(f"grug/{run_id}-*/metrics.jsonl"):
            if path.read_text().count('"train/loss"') >= count:
                return
        assert process.poll() is None, process.stdout and process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def member(head: RayHead, index: int) -> int:
    """The process of a step that is that member of a gang."""
    (found,) = [
        each
        for each in head.processes()
        if f"JAX_PROCESS_ID={index}".encode() in content(each, "environ").split(b"\0")
        and b"chomp.launch.process" in content(each, "cmdline")
    ]
    return found


def content(process: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{name}").read_bytes()
    except OSError:
        return b""


@pytest.mark.slow
def test_the_quickstart_as_a_job_that_runs_its_steps_on_the_cluster(head, tmp_path):
    run = [sys.executable, "-m", "chomp.launch.ray_run", "--cluster", head.dashboard]
    given = ["--env_vars", f"CHOMP_PREFIX={tmp_path}", "JAX_NUM_CPU_DEVICES=1"]
    launch = ["python", str(BASE.relative_to(ROOT)), "--on", "ray", *overrides()]
    done = subprocess.run(
        [*run, *given, "--", *launch],
        env=head.environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folders = [path.parent for path in tmp_path.glob("*/*/.executor_status")]
    assert len(folders) == 6  # a tokenizer, four stores, the run
    assert {state(folder) for folder in folders} == {"SUCCESS"}
    assert len(tiny.losses(run_folder(tmp_path, "base"))) == STEPS
    assert "bits per byte" in done.stdout


@pytest.mark.slow
def test_the_seeds_of_a_comparison_run_on_the_cluster(start, tmp_path):
    sides = ["base", "base", "--set-variant", "optim.lr=1e-5", "--seeds", "2"]
    how = ["--on", "ray", "--max-concurrent", "2", "--prefix", tmp_path]
    told = ended(start("-m", "chomp", "compare", *sides, *how, *overrides(**{"train.steps": 4})))
    folders = list(tmp_path.glob("grug/*"))
    assert len(folders) == 4
    assert {state(folder) for folder in folders} == {"SUCCESS"}
    assert "over 2 seeds" in told
