"""`chomp launch local`: a command in several real processes, all of them or none."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from chomp.cli.main import parse, run
from chomp.errors import ConfigError
from chomp.launch.multi_process import launch_locally
from chomp.mesh.distributed import CoordinatorAddressTaken
from tests import tiny
from tests.launch.sent_steps import wait_for

ROOT = Path(__file__).parents[2]

COMMAND = """
import os, signal, socket, sys, time
from pathlib import Path

folder, wish = Path(sys.argv[1]), sys.argv[2]
index, count = os.environ.get("JAX_PROCESS_ID", "0"), os.environ.get("JAX_NUM_PROCESSES")
told = [os.environ.get(name) for name in ("JAX_NUM_CPU_DEVICES", "CUDA_VISIBLE_DEVICES")]
print("told", index, count, *told)
print("trouble", file=sys.stderr)
with (folder / "starts").open("a") as file:
    file.write(index)
if wish == "lost once" and index == "1" and (folder / "starts").read_text().count("1") == 1:
    while "0" not in (folder / "starts").read_text():  # lost once both have begun
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)
if wish == "98":
    sys.exit(98)
if wish == "taken" and index == "0" and (folder / "starts").read_text().count("0") == 1:
    from chomp.mesh import join_processes

    host, port = os.environ["JAX_COORDINATOR_ADDRESS"].split(":")
    with socket.create_server((host, int(port))):
        join_processes()
if index == "1" and wish == "fails":
    sys.exit(7)
if index == "1" and wish == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if wish in ("fails", "killed", "asked") or (wish == "lost once" and index == "0"):
    if wish == "asked":
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(75))
    (folder / f"ready-{index}").touch()
    deadline = time.monotonic() + 60
    while wish != "lost once" or (folder / "starts").read_text().count("1") < 2:
        if time.monotonic() > deadline:
            sys.exit(99)
        time.sleep(0.005)
"""

Launched = Callable[..., int]


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launched:
    """Starts the command as the options say, by the words of a command line; the exit code."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    for name in ("JAX_NUM_CPU_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "command.py"
    file.write_text(COMMAND)

    def launch(wish: str, *options: str) -> int:
        words = ["local", *options, "--", "python", str(file), str(tmp_path), wish]
        asked = parse(["launch", *words])
        assert asked is not None
        return run(asked)

    return launch


def test_each_process_knows_the_others_and_its_lines_bear_its_number(launched, capsys):
    assert launched("", "--processes", "3", "--devices-per-process", "4") == 0
    said = capsys.readouterr()
    assert sorted(said.out.splitlines()) == [f"[{i}] told {i} 3 4 None" for i in range(3)]
    assert sorted(said.err.splitlines()) == [f"[{i}] trouble" for i in range(3)]


@pytest.mark.parametrize(("wish", "code"), [("fails", 7), ("killed", 128 + signal.SIGKILL)])
def test_the_first_that_fails_ends_the_others_and_gives_the_code(launched, caplog, wish, code):
    assert launched(wish) == code
    assert "process 1 of 2 " in caplog.text


def test_a_loss_begins_all_of_them_again_if_asked_for(launched, tmp_path):
    assert launched("lost once", "--restarts", "1") == 0
    assert sorted((tmp_path / "starts").read_text()) == ["0", "0", "1", "1"]


def test_an_address_that_is_taken_is_left_for_another_though_no_restart_is_allowed(
    launched, tmp_path, caplog
):
    assert launched("taken") == 0
    assert (tmp_path / "starts").read_text().count("0") == 2
    assert "was taken by another program; trying another port" in caplog.text


@pytest.mark.parametrize("processes", [1, 2])
def test_a_program_that_ends_with_the_code_of_a_taken_address_has_failed(
    launched, tmp_path, processes
):
    assert launched("98", "--processes", str(processes)) == CoordinatorAddressTaken.exit_code
    starts = (tmp_path / "starts").read_text()
    assert len(starts) == len(set(starts)) <= processes


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_lets_all_of_them_save_and_is_the_end(launched, tmp_path, number, code):
    def ask() -> None:
        for index in (0, 1):
            wait_for(tmp_path / f"ready-{index}")
        os.kill(os.getpid(), number)

    asking = threading.Thread(target=ask)
    asking.start()
    assert launched("asked", "--restarts", "5") == code
    asking.join()
    assert sorted((tmp_path / "starts").read_text()) == ["0", "1"]


def test_gpus_are_shared_out(launched, capsys, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3,5,7")
    assert launched("") == 0
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "[0] told 0 2 None 1,3",
        "[1] told 1 2 None 5,7",
    ]
    with pytest.raises(
        ConfigError, match=r"2 processes with 3 GPUs each, and this machine shows 4"
    ):
        launched("", "--devices-per-process", "3")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ([], {"processes": 2}),
        (["no-such-program"], {"processes": 2}),
        (["python"], {"processes": 0}),
        (["python"], {"processes": 2, "devices_per_process": 0}),
        (["python"], {"processes": 2, "restarts": -1}),
    ],
)
def test_what_cannot_be_is_refused(command, options):
    with pytest.raises(ConfigError, match=r"Allowed: .*Fix: "):
        launch_locally(command, **options)


# The second process fails alone, in a step in which the first waits for it.
LAUNCH_FILE = """
import os
from dataclasses import dataclass

from chomp.errors import ConfigError
from chomp.executor import ExecutorStep
from chomp.launch import executor_main


@dataclass(frozen=True)
class Launch:
    width: int = 1


def train(config):
    from chomp.mesh import wait_for_all

    if os.environ["JAX_PROCESS_ID"] == "1":
        raise ConfigError("only this process has this trouble")
    wait_for_all("never")


if __name__ == "__main__":
    executor_main(lambda launch: [ExecutorStep("train", train, launch)], Launch())
"""


def test_a_launch_file_that_fails_in_one_process_ends_with_the_code_of_that(tmp_path, capsys):
    file = tmp_path / "launch.py"
    file.write_text(LAUNCH_FILE)
    command = ["python", str(file), "--prefix", str(tmp_path / "out")]
    assert launch_locally(command, processes=2, devices_per_process=1) == 2
    said = capsys.readouterr()
    assert "[0] train (new)" in said.out
    assert "[1] Error: only this process has this trouble" in said.err


SMALL = (
    *("train.steps=6", "train.batch_size=8", "train.seq_len=64", "train.log_every=1"),
    *("optim.warmup_steps=2", "model.hidden_dim=32", "model.intermediate_dim=64"),
    *("model.num_layers=1", "model.num_heads=2", "model.num_kv_heads=2", "model.vocab_size=512"),
    *("data.tokenizer.vocab_size=512", "eval.max_eval_batches=1", "samples.max_tokens=0"),
)


@pytest.mark.slow
def test_the_base_run_goes_through_two_processes_and_its_failure_comes_back(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "300")  # so that no path is cut
    launch = ["python", str(ROOT / "experiments/grug/base/launch.py"), "--prefix", str(tmp_path)]
    launch += [word for item in SMALL for word in ("-o", item)]
    assert launch_locally(launch, processes=2, devices_per_process=2) == 0
    [folder] = tmp_path.glob("grug/base-*")
    assert list(tiny.losses(folder)) == list(range(6))
    assert f"[0]  run folder         {folder}" in capsys.readouterr().out
    assert launch_locally([*launch, "-o", "mesh.data=3"], processes=2, devices_per_process=2) == 2
