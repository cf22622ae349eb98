"""The base template trained by two processes: killed, interrupted, refused, and continued."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chomp.config import config_to_mapping
from tests import tiny
from tests.process_gang import Gang

STEPS = 60
RUN = """
import json, sys
from dataclasses import replace
from pathlib import Path
from chomp.checkpoint import CheckpointConfig
from chomp.config import config_from_mapping
from chomp.data import LmDataConfig
from chomp.errors import ChompError
from chomp.mesh import MeshConfig
from experiments.grug.base.train import run_grug
from tests import tiny

folder, wish = Path(sys.argv[1]), json.loads(sys.argv[2])
data = config_from_mapping(LmDataConfig, wish["data"])
config = tiny.run_config(data, folder, steps=wish["steps"])
config = replace(
    config,
    model=replace(config.model, num_layers=1),
    mesh=MeshConfig(data=2),
    eval=None,
    checkpoint=CheckpointConfig(**wish["checkpoint"]),
)
try:
    run_grug(config)
except ChompError as error:  # as commands do
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
"""
IMPORTS = ("tests.tiny", "orbax.checkpoint")

Start = Callable[..., Gang]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Starts two processes, of a device each, that train in a folder."""
    place = tmp_path_factory.mktemp("data")
    data = config_to_mapping(tiny.build_data(place))
    (place / "program.py").write_text(RUN)

    def begin(folder: Path, *, steps: int = STEPS, **checkpoint: Any) -> Gang:
        checkpoint = {"save_interval_s": None, "every": 5, **checkpoint}
        wish = json.dumps({"data": data, "steps": steps, "checkpoint": checkpoint})
        said = folder.with_name(f"{folder.name}-said")
        program = place / "program.py"
        return Gang(program, str(folder), wish, count=2, folder=said, imports=IMPORTS)

    return begin


@contextmanager
def shown_if_wrong(gang: Gang) -> Iterator[None]:
    try:
        yield
    except AssertionError:
        print(*gang.errors(), sep="\n---- the next process\n")
        raise


def wait_for_rows(folder: Path, count: int) -> None:
    """Return when the record has the rows of that many steps."""
    deadline = time.monotonic() + 240
    while not (folder / "metrics.jsonl").exists() or len(tiny.losses(folder)) < count:
        assert time.monotonic() < deadline, "the processes do not train"
        time.sleep(0.005)


def saved_steps(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*[0-9]"))


def test_a_signal_to_one_process_makes_both_save_the_same_step_and_end(start, tmp_path):
    folder = tmp_path / "run"
    gang = start(folder, every=None, steps=2000)  # far more than it comes to
    wait_for_rows(folder, 3)
    os.kill(gang.process_ids[1], signal.SIGTERM)
    codes = gang.exit_codes()
    with shown_if_wrong(gang):
        assert codes == [75, 75]
        [step] = saved_steps(folder)
        assert 3 <= step < 2000
        for error, told in zip(
            gang.errors(), ["SIGTERM in another process", "SIGTERM"], strict=True
        ):
            assert f"RunInterrupted: {told}: the state is saved at" in error
            assert f"step-{step}. The same command continues." in error
    # Only process 0 writes, so no row is there twice.
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "train/loss" in row] == list(range(step))


@pytest.fixture(scope="module")
def unbroken(start, tmp_path_factory):
    """The run that nothing happens to."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    gang = start(folder)
    codes = gang.exit_codes()
    with shown_if_wrong(gang):
        assert codes == [0, 0]
    return folder


def continued(start: Start, folder: Path) -> None:
    """Start both processes again, until the run is done."""
    gang = start(folder)
    codes = gang.exit_codes()
    with shown_if_wrong(gang):
        assert codes == [0, 0]


def require_equal(folder: Path, unbroken: Path) -> None:
    assert tiny.losses(folder) == tiny.losses(unbroken)
    assert len(tiny.losses(folder)) == STEPS
    assert tiny.receipt(folder, STEPS) == tiny.receipt(unbroken, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_one_process_is_killed_the_other_ends_and_both_continue_bit_for_bit(
    start, unbroken, tmp_path, killed
):
    folder = tmp_path / "run"
    gang = start(folder)
    wait_for_rows(folder, 12)
    os.kill(gang.process_ids[killed], signal.SIGKILL)
    killed_at = time.monotonic()
    codes = gang.exit_codes()
    with shown_if_wrong(gang):
        assert codes[killed] == -signal.SIGKILL
        assert codes[1 - killed] not in (0, -signal.SIGALRM)
        assert time.monotonic() - killed_at < 40
        # Told by Gloo, which loses its connection, or by JAX, which hears no heart beat.
        told = gang.errors()[1 - killed]
        assert "Gloo" in told or "another task died" in told
        assert 5 <= max(saved_steps(folder)) < STEPS  # step 10 may be lost with its writer
    continued(start, folder)
    require_equal(folder, unbroken)


@pytest.mark.slow
def test_an_interrupted_run_continues_bit_for_bit(start, unbroken, tmp_path):
    folder = tmp_path / "run"
    gang = start(folder, every=None)
    wait_for_rows(folder, 5)
    os.kill(gang.process_ids[0], signal.SIGINT)
    assert gang.exit_codes() == [130, 130]
    continued(start, folder)
    require_equal(folder, unbroken)


@pytest.mark.slow
def test_a_signal_while_the_run_is_set_up_ends_both_at_a_step_they_agree_on(start, tmp_path):
    folder = tmp_path / "run"
    gang = start(folder, every=None, steps=2000)
    deadline = time.monotonic() + 60
    while not (folder / "train.log").exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(gang.process_ids[1], signal.SIGTERM)
    codes = gang.exit_codes()
    with shown_if_wrong(gang):
        assert codes == [75, 75]
        assert len(saved_steps(folder)) == 1


@pytest.mark.slow
def test_the_clock_of_process_0_decides_about_temporary_checkpoints(start, tmp_path):
    folder = tmp_path / "run"
    gang = start(folder, every=None, save_interval_s=0.01, keep_temporary=1000, steps=20)
    codes = gang.exit_codes()
    with shown_if_wrong(gang):
        assert codes == [0, 0]
        assert len(saved_steps(folder)) > 2
