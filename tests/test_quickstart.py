"""The first command a newcomer runs, end to end, in processes of its own: `launch.py` of base.

Reduced in size by overrides, whole in every other way: the embedded corpus, a trained BPE, stores,
training, evaluation, a sample; then run again, killed, interrupted, and given bad input. The first
run is started as people start it; the others are forks of a process that has done the imports.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import tiny
from tests.forked_commands import ForkedCommands

ROOT = Path(__file__).parents[1]
LAUNCH = ROOT / "experiments/grug/base/launch.py"
SMALL = {
    "train.steps": 16,
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
    "eval.max_eval_batches": 2,
    "samples.max_tokens": 24,
}


def command(prefix: Path, *more: str, launch: Path = LAUNCH) -> list[str]:
    """The launch command with `more` arguments, whose `KEY=VALUE` stand in for the small ones."""
    given = {argument.partition("=")[0] for argument in more}
    small = [f"{key}={value}" for key, value in SMALL.items() if key not in given]
    overrides = [part for item in small for part in ("-o", item)]
    return [sys.executable, str(launch), "--prefix", str(prefix), *overrides, *more]


def environment(**changes: str) -> dict[str, str]:
    # One device, as a laptop has; a wide terminal, so that nothing is cut off.
    return {**os.environ, "JAX_NUM_CPU_DEVICES": "1", "COLUMNS": "200", **changes}


Launched = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def launched(base_launches: ForkedCommands) -> Launched:
    """Runs the launch command to its end."""

    def run(prefix: Path, *more: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return base_launches.run(*command(prefix, *more)[1:], env=environment(**changes))

    return run


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A prefix in which the quickstart has run, and what it printed."""
    prefix = tmp_path_factory.mktemp("quickstart")
    done = subprocess.run(command(prefix), env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return prefix, done.stdout


def run_folder(prefix: Path, run_id: str = "base") -> Path:
    (found,) = prefix.glob(f"grug/{run_id}-*")
    return found


def statuses(prefix: Path) -> dict[str, dict[str, object]]:
    return {
        str(path.parent.relative_to(prefix)): json.loads(path.read_text())
        for path in sorted(prefix.glob("*/*/.executor_status"))
    }


def test_one_command_trains_a_model_and_says_what_came_of_it(quickstart):
    prefix, printed = quickstart
    for word in ("code", "prose", "loss", "bits per byte", "tokens/s", "sample", "train loss"):
        assert word in printed
    assert str(run_folder(prefix)) in printed
    page = run_folder(prefix) / "report" / "index.html"
    assert f"run page           {page}" in printed
    assert "chomp data where" in page.read_text()
    found = tiny.losses(run_folder(prefix))
    assert found[15] < found[0] - 0.3
    assert {state["state"] for state in statuses(prefix).values()} == {"SUCCESS"}
    assert len(statuses(prefix)) == 6  # a tokenizer, four stores, the run


def test_running_it_again_runs_nothing_and_says_where_the_result_is(launched, quickstart):
    prefix, _ = quickstart
    before = statuses(prefix)
    done = launched(prefix)
    assert done.returncode == 0, done.stderr
    assert "Already done" in done.stdout
    assert str(run_folder(prefix)) in done.stdout
    assert "bits per byte" in done.stdout
    assert statuses(prefix) == before


def test_a_plan_shows_every_step_and_writes_nothing(launched, tmp_path):
    done = launched(tmp_path / "empty", "--plan")
    assert done.returncode == 0, done.stderr
    for step in ("tokenizer/bpe", "tokens/code-train", "tokens/prose-validation", "grug/base"):
        assert step in done.stdout
    assert not (tmp_path / "empty").exists()


def test_a_plan_names_the_field_that_makes_it_another_run(launched, quickstart):
    prefix, _ = quickstart
    done = launched(prefix, "--plan", "-o", "optim.lr=0.02")
    assert "optimizer.lr: 0.003 -> 0.02" in done.stdout


@pytest.mark.slow  # `chomp verify-resume` does the same in every run of the suite
def test_a_run_killed_in_the_middle_ends_with_the_same_losses_bit_for_bit(launched, quickstart):
    prefix, _ = quickstart
    more = ["-o", "checkpoint.every=3"]
    # Compiled anew, as on another day: the others load the program that the first run compiled.
    process = start(prefix, "killed", *more, JAX_ENABLE_COMPILATION_CACHE="false")
    wait_for_rows(process, prefix, "killed", 8)
    process.kill()
    process.communicate()
    assert max(tiny.losses(run_folder(prefix, "killed"))) < 15
    done = launched(prefix, *more, GRUG_RUN_ID="killed")
    assert done.returncode == 0, done.stderr
    straight, killed = run_folder(prefix), run_folder(prefix, "killed")
    assert tiny.losses(killed) == tiny.losses(straight)
    assert tiny.receipt(killed, 16) == tiny.receipt(straight, 16)
    status = json.loads((killed / ".executor_status").read_text())
    assert (status["state"], status["attempt"]) == ("SUCCESS", 2)


def start(prefix: Path, run_id: str, *more: str, **changes: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command(prefix, *more),
        env=environment(GRUG_RUN_ID=run_id, **changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_rows(process: "subprocess.Popen[str]", prefix: Path, run_id: str, rows: int) -> None:
    """Until the run has logged that many steps, without blocking it."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for metrics in prefix.glob(f"grug/{run_id}-*/metrics.jsonl"):
            if metrics.read_text().count("train/loss") >= rows:
                return
        assert process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.02)
    raise AssertionError(f"{run_id} logged fewer than {rows} steps in two minutes")


# Runs the launch file that is its second word, and sends it the signal that is its first when its
# fifth step is logged. Whoever looked at the record from outside might come when it has ended.
STOPPED = """
import os, runpy, sys
from chomp.tracking import JsonlTracker

number, *sys.argv = sys.argv[1:]
log = JsonlTracker.log


def log_and_stop(self, metrics, *, step):
    log(self, metrics, step=step)
    if "train/loss" in metrics and step == 4:
        os.kill(os.getpid(), int(number))


JsonlTracker.log = log_and_stop
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("number", "exit_code"),
    [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 75)],
)
def test_a_run_asked_to_stop_saves_and_the_same_command_continues(
    base_launches, launched, quickstart, tmp_path, number, exit_code
):
    prefix, _ = quickstart
    run_id = f"stopped-{number.name}"
    (tmp_path / "stopped.py").write_text(STOPPED)
    words = [str(int(number)), *command(prefix)[1:]]
    told = base_launches.run(tmp_path / "stopped.py", *words, env=environment(GRUG_RUN_ID=run_id))
    assert told.returncode == exit_code, told.stderr
    assert "The same command continues" in told.stderr
    assert "Traceback" not in told.stderr
    assert 5 <= len(tiny.losses(run_folder(prefix, run_id))) < 16
    done = launched(prefix, GRUG_RUN_ID=run_id)
    assert done.returncode == 0, done.stderr
    assert tiny.losses(run_folder(prefix, run_id)) == tiny.losses(run_folder(prefix))


def test_edited_template_source_is_never_silently_taken_for_done(quickstart, tmp_path):
    prefix = tmp_path / "outputs"
    shutil.copytree(quickstart[0], prefix)
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    edited = tmp_path / "experiments/grug/base"
    with (edited / "model.py").open("a") as source:
        source.write("\n# a change\n")
    env = environment(PYTHONPATH=str(tmp_path))
    run = command(prefix, launch=edited / "launch.py")[1:]
    copies = ForkedCommands("experiments.grug.base.launch", env=env)
    done, refused = copies.run(*run, env=env), copies.run(*run, "--strict", env=env)
    copies.close()
    assert done.returncode == 0, done.stderr
    assert "template source model.py: edited" in done.stderr
    assert "--force" in done.stderr
    assert refused.returncode != 0
    assert "model.py" in refused.stderr


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["-o", "train.stepz=5"], ["stepz", "did you mean", "steps"]),
        (["-o", "train.steps=many"], ["train", "steps", "integer"]),
        (["-o", "model.num_heads=3"], ["num_heads=3", "Allowed", "Fix"]),
        (["-o", "data.tokenizer.vocab_size=4096"], ["4096", "Fix: ", "model.vocab_size"]),
        (["-o", "mesh.data=0"], ["mesh.data=0", "Fix"]),
        (
            ["-o", "data.components={mine: {source: {kind: text, paths: [nowhere/*.txt]}}}"],
            ["nowhere/*.txt", "matches no file"],
        ),
        (["-o", "train.steps=2"], ["warmup_steps=2", "Fix: "]),
        (["-o", "train.seq_len=1024"], ["seq_len=1024", "max_seq_len=512"]),
        (["-o", "data.components={}"], ["data without components", "Fix: "]),
        (["-o", "eval.eval_batch_size=0"], ["eval_batch_size=0"]),
        (["-o", "output_path=/elsewhere"], ["output_path", "--prefix"]),
        (["--no-such-flag"], ["no-such-flag", "--help"]),
        (["-o", "optim.lr"], ["optim.lr", "="]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) and value[0].startswith("-") else "",
)
def test_bad_input_gives_one_clear_message_and_builds_nothing(launched, tmp_path, more, words):
    done = launched(tmp_path / "outputs", *more)
    assert done.returncode != 0
    for word in words:
        assert word.lower() in done.stderr.lower(), done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path).glob("outputs/*/*/.executor_status"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.batch_size=7", ["batch_size=7", "multiples of 2", "set train.batch_size to 8"]),
        ("mesh.data=3", ["data=3", "a machine with 2", "use one of: replica=1 data=2"]),
    ],
)
def test_a_batch_or_mesh_that_does_not_fit_the_devices_is_refused(
    launched, quickstart, override, words
):
    prefix, run_id = quickstart[0], override.partition("=")[0]
    done = launched(prefix, "-o", override, JAX_NUM_CPU_DEVICES="2", GRUG_RUN_ID=run_id)
    assert done.returncode == 2
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(prefix.glob(f"grug/{run_id}-*"))  # before anything of the run was made


def test_a_damaged_token_store_stops_the_run_and_says_how_to_rebuild_it(
    launched, quickstart, tmp_path
):
    prefix = tmp_path / "outputs"
    shutil.copytree(quickstart[0], prefix)
    (store,) = prefix.glob("tokens/code-train-*")
    shard = max((path for path in store.glob("tokens/**/*") if path.is_file()), key=size_of)
    content = bytearray(shard.read_bytes())
    for at in range(1000, len(content) - 1000, 5000):  # in every chunk, wherever it is read
        content[at] ^= 0xFF
    shard.write_bytes(content)
    done = launched(prefix, GRUG_RUN_ID="damaged")
    assert done.returncode != 0
    assert str(store) in done.stderr
    assert "damaged" in done.stderr
    assert "Fix: delete" in done.stderr
    assert "Traceback" not in done.stderr
    shutil.rmtree(store)
    done = launched(prefix, GRUG_RUN_ID="damaged")
    assert done.returncode == 0, done.stderr
    assert tiny.losses(run_folder(prefix, "damaged")) == tiny.losses(run_folder(quickstart[0]))


def size_of(path: Path) -> int:
    return path.stat().st_size


@pytest.mark.parametrize("where", ["below-a-file", "/sys/chomp"])
def test_a_prefix_that_cannot_be_written_is_refused(launched, tmp_path, where):
    (tmp_path / "file").write_text("")
    prefix = tmp_path / "file" / "outputs" if where == "below-a-file" else Path(where)
    done = launched(prefix)
    assert done.returncode != 0
    assert str(prefix) in done.stderr
    assert "Fix: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_stops_the_run_and_leaves_nothing_that_looks_finished(
    launched, quickstart, tmp_path
):
    disk = tmp_path / "disk"
    disk.mkdir()
    # All is there but for the last and largest store, for which there is not enough room.
    made = [
        path for path in quickstart[0].glob("*/*") if path.parent.name in ("tokenizer", "tokens")
    ]
    kept = [path for path in made if not path.name.startswith("code-train-")]
    files = [file for path in kept for file in path.rglob("*") if file.is_file()]
    room = sum(-(-size_of(file) // 4096) * 4096 for file in files) + 2**20
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(disk)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a small disk: {mounted.stderr.strip()}")
    try:
        for path in kept:
            shutil.copytree(path, disk / "outputs" / path.relative_to(quickstart[0]))
        done = launched(disk / "outputs")
        assert done.returncode != 0
        assert "space" in done.stderr.lower(), done.stderr
        assert "Fix: " in done.stderr
        assert "Traceback" not in done.stderr
        for name, status in statuses(disk / "outputs").items():
            if name.startswith("tokens/"):
                is_complete = (disk / "outputs" / name / "manifest.json").exists()
                assert is_complete == (status["state"] == "SUCCESS")
        assert not list(disk.glob("outputs/tokens/code-train-*/manifest.json"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_the_quickstart_at_its_full_size_learns_to_write_python(tmp_path):
    done = subprocess.run(
        [sys.executable, str(LAUNCH), "--prefix", str(tmp_path)],
        env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [
        json.loads(line)
        for line in (run_folder(tmp_path) / "metrics.jsonl").read_text().splitlines()
    ]
    evaluated = next(row for row in reversed(rows) if "eval/loss" in row)
    # 4.2 to 4.3 on the libraries of Python 3.11 and 3.12; a uniform guess over 2,048 ids is 7.6.
    assert evaluated["eval/loss"] < 4.5
    assert evaluated["eval/code/bpb"] < 2.2


def test_training_on_text_files_of_ones_own(launched, tmp_path):
    paths = f"[{ROOT}/src/chomp/**/*.py]"
    done = launched(
        tmp_path,
        *("-o", f"data.components={{mine: {{source: {{kind: text, paths: {paths}}}}}}}"),
    )
    assert done.returncode == 0, done.stderr
    assert "mine" in done.stdout


@pytest.mark.slow
def test_a_moved_prefix_continues_where_it_was(launched, quickstart, tmp_path):
    prefix = tmp_path / "first"
    shutil.copytree(quickstart[0], prefix)
    process = start(prefix, "moved")
    wait_for_rows(process, prefix, "moved", 4)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    prefix.rename(tmp_path / "second")
    done = launched(tmp_path / "second", GRUG_RUN_ID="moved")
    assert done.returncode == 0, done.stderr
    moved = run_folder(tmp_path / "second", "moved")
    assert tiny.losses(moved) == tiny.losses(run_folder(quickstart[0]))
