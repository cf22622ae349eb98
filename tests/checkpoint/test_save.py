"""Saving in the background: what is saved is what was there, and what goes wrong is told."""

import dataclasses
import errno
import gc
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_samples import State, about, state_at
from jax.sharding import PartitionSpec as P

from chomp.checkpoint import (
    CheckpointConfig,
    Checkpointer,
    latest_checkpoint,
    list_checkpoints,
    restore_checkpoint,
    save_step_checkpoint,
    save_temporary_checkpoint,
)
from chomp.checkpoint.arrays import named_leaves
from chomp.checkpoint.checksums import receipt_of
from chomp.errors import DataError, NonFiniteError, StorageError

MESHES = ["one_device_mesh", "eight_device_mesh"]
LARGE = (512, 512)  # a mebibyte: large enough that JAX and Orbax treat it as they do weights
STATE_BYTES = 2 * 4 * LARGE[0] * LARGE[1]
BAD_JSON = {"stream_states": {"web": float("nan")}}  # refused when metadata is written


@pytest.fixture(params=MESHES)
def mesh(request):
    mesh = request.getfixturevalue(request.param)
    with jax.set_mesh(mesh):
        yield mesh


@pytest.fixture
def on_one_device(one_device_mesh):
    with jax.set_mesh(one_device_mesh):
        yield


def checkpointer(folder: Path, **config: Any) -> Checkpointer:
    defaults = {"save_interval_s": None}
    return Checkpointer(str(folder), CheckpointConfig(**(defaults | config)), about())


def wait_until(holds: Callable[[], bool]) -> None:
    """Return when it holds: libraries let go of things in threads, after they have answered."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def save(saver: Checkpointer, state: Any, step: int, **more: Any) -> str:
    return saver.save(state, step=step, data_offset=step, tokens_seen=step, **more)


def weights(step: int) -> dict[str, jax.Array]:
    """Weights cut over the mesh, and the same ones in every device."""
    key = jax.random.key(step)
    draw = partial(jax.random.normal, key, LARGE, jnp.float32)
    return {"cut": draw(out_sharding=P("data", "model")), "same": draw(out_sharding=P())}


@partial(jax.jit, donate_argnums=0)
def trained(state: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """A step of training as the loop has it: the new state takes the old one's place."""
    return jax.tree.map(lambda leaf: leaf * 0.5 + 1.0, state)


def bytes_of(state: Any) -> dict[str, bytes]:
    # Copied: on a CPU, what numpy shows of an array may be the array's own memory.
    return {name: np.array(leaf).tobytes() for name, leaf in named_leaves(state).items()}


def restored(folder: Path, state: Any, mesh: jax.sharding.Mesh) -> Any:
    found = latest_checkpoint(str(folder))
    assert found is not None
    return restore_checkpoint(found, jax.eval_shape(lambda: state), mesh=mesh)


@pytest.mark.parametrize(
    ("mesh", "bound"),
    [
        *(("one_device_mesh", bound) for bound in (None, STATE_BYTES // 2, STATE_BYTES)),
        *(("eight_device_mesh", bound) for bound in (None, STATE_BYTES // 2)),
    ],
    indirect=["mesh"],
)
def test_what_is_saved_is_what_was_there_though_the_next_step_takes_its_memory(
    bound, tmp_path, mesh
):
    # A twin that nobody saves tells what was there: looking at the state itself would pin it.
    state, twin, expected = weights(1), weights(1), {}
    with checkpointer(tmp_path, keep_temporary=9, max_staged_bytes=bound) as saver:
        for step in (1, 2, 3):
            expected[step] = bytes_of(twin)
            save(saver, state, step)
            for _ in range(3):
                state, twin = trained(state), trained(twin)
    for found in list_checkpoints(str(tmp_path)):
        back = restore_checkpoint(found, jax.eval_shape(lambda: state), mesh=mesh)
        assert bytes_of(back) == expected.pop(found.metadata.step)
    assert not expected


def test_a_completed_save_holds_nothing_of_the_state(tmp_path, mesh):
    state = weights(1)
    alive = [weakref.ref(leaf) for leaf in state.values()]
    gc.disable()  # a run may go for hours without it
    try:
        with checkpointer(tmp_path) as saver:
            save(saver, state, 1)
            saver.wait()
            state = trained(state)
            wait_until(lambda: [leaf() for leaf in alive] == [None, None])
    finally:
        gc.enable()


def test_a_save_larger_than_its_bound_is_complete_when_it_returns(tmp_path, mesh):
    state = weights(1)
    saver = checkpointer(tmp_path, max_staged_bytes=LARGE[0] * LARGE[1])
    save(saver, state, 1)
    expected = bytes_of(state)
    assert {path.name for path in tmp_path.glob("step-1*/state/*")} >= {"_METADATA", "d"}
    trained(state)
    saver.wait()
    assert bytes_of(restored(tmp_path, trained(weights(2)), mesh)) == expected


@pytest.mark.parametrize("mesh", ["eight_device_mesh"], indirect=True)
def test_metadata_describes_every_array(tmp_path, mesh):
    state = state_at(2)
    save_step_checkpoint(str(tmp_path), state, about(step=2))
    metadata = list_checkpoints(str(tmp_path))[0].metadata
    leaves = named_leaves(state)
    assert metadata.receipt == receipt_of(leaves)
    assert metadata.arrays["params/w"] == {"shape": [64, 32], "dtype": "float32"}
    assert metadata.arrays["params/bias"] == {"shape": [32], "dtype": "bfloat16"}
    assert metadata.arrays["step"] == {"shape": [], "dtype": "int32"}
    assert set(metadata.arrays) == set(leaves)
    files = [path for path in (tmp_path / "step-2/state").rglob("*") if path.is_file()]
    assert metadata.state_files == {
        str(path.relative_to(tmp_path / "step-2/state")): path.stat().st_size for path in files
    }


def spoiled(leaf: str, bad: float) -> State:
    good = state_at(2)
    params = {**good.params, leaf: jnp.full_like(good.params[leaf], bad)}
    return dataclasses.replace(good, params=params)


@pytest.mark.parametrize(("leaf", "bad"), [("w", np.nan), ("bias", np.inf)])
@pytest.mark.usefixtures("on_one_device")
def test_a_state_that_is_not_finite_is_refused_before_anything_is_written(leaf, bad, tmp_path):
    saver = checkpointer(tmp_path)
    save(saver, state_at(1), 1)
    saver.wait()
    before = sorted(path.name for path in tmp_path.iterdir())
    for attempt in (
        partial(save, saver, spoiled(leaf, bad), 2),
        partial(save_step_checkpoint, str(tmp_path), spoiled(leaf, bad), about(step=2)),
        partial(save_temporary_checkpoint, str(tmp_path), spoiled(leaf, bad), about(step=2)),
    ):
        with pytest.raises(NonFiniteError) as caught:
            attempt()
        assert f"params/{leaf}" in caught.value.given
    saver.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == before == ["step-1"]


@pytest.mark.usefixtures("on_one_device")
def test_what_ends_a_save_is_raised_once_by_whoever_comes_next_and_the_next_one_succeeds(tmp_path):
    def until_it_raises(call: Callable[[], Any]) -> None:
        while True:
            call()

    for ask in (
        Checkpointer.wait,
        lambda saver: save(saver, state_at(2), 2),
        lambda saver: until_it_raises(partial(saver.is_due, 2)),
    ):
        saver = checkpointer(tmp_path)
        save(saver, state_at(1), 1, **BAD_JSON)
        with pytest.raises(StorageError) as caught:
            ask(saver)
        assert "stream_states" in caught.value.given
        saver.wait()
        assert not saver.is_due(2)
        assert saver.take_reports() == []
    assert list(tmp_path.iterdir()) == []
    save(saver, state_at(1), 1)
    saver.wait()
    assert [found.metadata.step for found in list_checkpoints(str(tmp_path))] == [1]


@pytest.mark.usefixtures("on_one_device")
def test_the_next_batches_are_hashed_in_the_background(tmp_path):
    may_go_on, asked_in = threading.Event(), []

    def hashes() -> tuple[str, ...]:
        assert may_go_on.wait(60)
        asked_in.append(threading.current_thread())
        return ("a", "b")

    with checkpointer(tmp_path) as saver:
        save(saver, state_at(1), 1, next_batches=hashes)
        may_go_on.set()  # which `save` did not wait for
    (found,) = list_checkpoints(str(tmp_path))
    assert found.metadata.next_batches == ["a", "b"]
    assert threading.current_thread() not in asked_in


def caused_by(cause: Exception) -> Exception:
    """An error as libraries raise them: the reason is in what it was raised from."""
    error = RuntimeError("the batch cannot be read")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind", "cause", "is_full"),
    [
        (DataError("id 70 is too large"), DataError, "id 70 is too large", False),
        (RuntimeError("no such row"), StorageError, "no such row", False),
        (OSError(errno.EIO, "broken disk"), StorageError, "broken disk", False),
        (OSError(errno.ENOSPC, "full"), StorageError, "full", True),
        (caused_by(OSError(errno.EDQUOT, "full")), StorageError, "be read", True),
        (caused_by(ValueError("write: No space left on device")), StorageError, "be read", True),
    ],
)
@pytest.mark.usefixtures("on_one_device")
def test_what_fails_a_save_is_told_and_space_is_asked_for_only_where_it_helps(
    error, kind, cause, is_full, tmp_path
):
    def hashes() -> list[str]:
        raise error

    saver = checkpointer(tmp_path)
    save(saver, state_at(1), 1, next_batches=hashes)
    with pytest.raises(kind) as caught:
        saver.wait()
    assert cause in caught.value.given
    assert ("free space" in caught.value.fix) == is_full
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("on_one_device")
def test_what_cannot_be_opened_again_is_not_called_saved(tmp_path):
    folder = tmp_path / "run[1]"  # Orbax takes this for a pattern, and merges nothing
    with pytest.raises(StorageError):
        save_step_checkpoint(str(folder), state_at(3), about(step=3))
    assert list_checkpoints(str(folder)) == []
    assert not list(folder.iterdir())


@pytest.mark.usefixtures("on_one_device")
def test_leaving_waits_for_the_save_and_raises_its_error(tmp_path, caplog):
    def broken_run(step: int, **more: Any) -> None:
        with checkpointer(tmp_path) as saver:
            save(saver, state_at(step), step, **more)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        broken_run(1)
    assert [found.metadata.step for found in list_checkpoints(str(tmp_path))] == [1]
    with caplog.at_level(logging.ERROR), pytest.raises(KeyError, match="mine"):
        broken_run(2, **BAD_JSON)
    assert "stream_states" in caplog.text
    with pytest.raises(StorageError) as caught, checkpointer(tmp_path) as saver:
        save(saver, state_at(2), 2, **BAD_JSON)
    assert "stream_states" in caught.value.given


@pytest.mark.usefixtures("on_one_device")
def test_a_save_in_progress_is_made_permanent_without_being_written_or_asking_again(tmp_path):
    with checkpointer(tmp_path) as saver:
        assert saver.wait() == str(tmp_path)
        state = state_at(3)
        paths = {
            save(saver, state, 3, next_batches=lambda: ("a", "b")),
            save(saver, state, 3, next_batches=lambda: ("c",), is_final=True),
            saver.wait(),
        }
    assert paths == {str(tmp_path / "step-3")}
    (found,) = list_checkpoints(str(tmp_path))
    assert (found.metadata.next_batches, found.metadata.is_temporary) == (["a", "b"], False)
    reports = saver.take_reports()
    assert [(report.step, report.path) for report in reports] == [(3, found.path)] * 2
    num_bytes = sum(leaf.nbytes for leaf in named_leaves(state).values())
    assert [report.num_bytes for report in reports] == [num_bytes, 0]
    assert all(0 < report.blocked_seconds <= report.seconds for report in reports)
    assert saver.take_reports() == []


@pytest.mark.usefixtures("on_one_device")
def test_many_saves_leave_no_thread_and_no_open_file_behind(tmp_path):
    saver = checkpointer(tmp_path)

    def in_use() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    for step in range(1, 5):
        save(saver, state_at(1), step)
        saver.wait()
    threads, files = in_use()
    for step in range(5, 9):
        save(saver, state_at(1), step)
        saver.wait()
    # What ends a moment after its save is waited for, and what stays behind never ends.
    wait_until(lambda: in_use()[0] <= threads and in_use()[1] <= files)


@pytest.mark.parametrize("linked", ["checkpoints", "checkpoints/step-8"])
def test_a_link_that_leads_out_of_the_run_is_not_saved_through(tmp_path, on_one_device, linked):
    elsewhere = tmp_path / "elsewhere" / Path(linked).name
    link = tmp_path / "run" / linked
    checkpoints = str(tmp_path / "run/checkpoints")
    save_temporary_checkpoint(checkpoints, state_at(8), about(step=8))
    elsewhere.parent.mkdir()
    link.rename(elsewhere)
    link.symlink_to(elsewhere)
    before = {path: path.stat().st_mtime_ns for path in sorted(elsewhere.rglob("*"))}
    with pytest.raises(StorageError) as caught:
        save_step_checkpoint(checkpoints, state_at(8), about(step=8))  # which is only promoted
    assert "link" in caught.value.given
    if linked == "checkpoints":
        with pytest.raises(StorageError) as caught:
            save_step_checkpoint(checkpoints, state_at(9), about(step=9))
        assert "link" in caught.value.given
    assert {path: path.stat().st_mtime_ns for path in sorted(elsewhere.rglob("*"))} == before
