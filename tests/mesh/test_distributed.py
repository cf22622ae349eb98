"""What processes tell each other: real processes under `jax.distributed`, and one alone."""

import json
import signal

import pytest

from chomp.errors import ConfigError
from chomp.mesh import (
    all_gather,
    broadcast,
    is_first,
    join_processes,
    leave_on_error,
    raise_together,
    wait_for_all,
)
from tests.process_gang import Gang

TALK = """
import json, time, jax
from chomp.errors import DataError, LaunchError
from chomp.mesh import (
    all_gather, broadcast, is_first, join_processes, post, raise_together, read_posts, wait_for_all
)

assert join_processes()
index = jax.process_index()
both = [all_gather("value", {"i": index}), all_gather("value", [index])]
said = {"first": is_first(), "both": both}
def told(use):
    if index == 0 and use == 150:
        post("ahead", use)
    return broadcast("word", [use, index])
# Process 2 comes late: by then process 0 would be far ahead, if nothing kept it.
late = time.monotonic() + 0.5
while index == 2 and not read_posts("ahead") and time.monotonic() < late:
    pass
said["told"] = [told(use) for use in range(200)]
post("note", index)
wait_for_all("posts")
said["posted"] = sorted(read_posts("note").items())
if index != 2:
    try:
        wait_for_all("late", timeout_s=2.5)
    except LaunchError as error:
        said["late"] = str(error)
wait_for_all("after")
try:
    with raise_together("reading the data"):
        if index == 1:
            raise DataError("no such store")
except (DataError, LaunchError) as error:
    said["refused"] = f"{type(error).__name__}: {error}"
print(json.dumps(said))
"""


def gang(tmp_path, text, *arguments, count):
    file = tmp_path / "program.py"
    file.write_text(text)
    return Gang(file, *arguments, count=count, folder=tmp_path / "said")


def test_three_processes_agree_and_name_who_is_missing_or_has_failed(tmp_path):
    talking = gang(tmp_path, TALK, count=3)
    assert talking.exit_codes() == [0, 0, 0], talking.errors()
    said = [json.loads(text.splitlines()[-1]) for text in talking.outputs()]
    assert [one["first"] for one in said] == [True, False, False]
    for one in said:
        assert one["both"] == [[{"i": 0}, {"i": 1}, {"i": 2}], [[0], [1], [2]]]
        assert one["told"] == [[use, 0] for use in range(200)]
        assert one["posted"] == [[0, 0], [1, 1], [2, 2]]
    for late in (said[0]["late"], said[1]["late"]):
        assert "of 3 waited 2.5 s at 'late' for process 2. Allowed" in late
    assert said[1]["refused"] == "DataError: no such store"
    for refused in (said[0]["refused"], said[2]["refused"]):
        assert "reading the data failed elsewhere:\n  process 1: DataError: no such" in refused


ONE_FAILS = """
import os, signal, sys, jax
import jax.numpy as jnp, numpy as np
from chomp.errors import ConfigError
from chomp.mesh import (
    MeshConfig, create_mesh, join_processes, leave_on_error, place_batch, wait_for_all
)

join_processes()
mesh = create_mesh(MeshConfig(data=2))
add = jax.jit(jnp.sum)
failing = int(sys.argv[2])
with jax.set_mesh(mesh), leave_on_error():
    numbers = place_batch(np.arange(8.0), mesh, batch_axis=0)
    print(float(add(numbers)), flush=True)
    wait_for_all("both have added")
    if jax.process_index() == failing:
        if sys.argv[1] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ConfigError("a trouble of its own")
    for _ in range(1_000_000):
        add(numbers).block_until_ready()
"""


@pytest.mark.parametrize(
    ("kind", "failing", "codes"),
    [
        ("raises", 1, {0: 1, 1: 2}),
        ("killed", 1, {0: 1, 1: -signal.SIGKILL}),
        # Process 0 holds what they talk over, and JAX itself ends the others without it.
        ("killed", 0, {0: -signal.SIGKILL}),
    ],
)
def test_when_one_process_fails_the_others_end_too_and_nobody_waits(tmp_path, kind, failing, codes):
    failed = gang(tmp_path, ONE_FAILS, kind, str(failing), count=2)
    found = failed.exit_codes()
    assert [found[index] for index in codes] == list(codes.values()), failed.errors()
    assert all(code not in (0, -signal.SIGALRM) for code in found)
    if failing == 1:
        assert "Gloo" in failed.errors()[0]
    if kind == "raises":
        assert "a trouble of its own" in failed.errors()[1]


def test_one_process_hears_itself_as_several_would():
    assert is_first()
    assert all_gather("alone", (1, 2)) == [[1, 2]]
    assert broadcast("alone", {"a": (None,)}) == {"a": [None]}
    wait_for_all("alone")
    with pytest.raises(TypeError, match="not JSON serializable"):
        broadcast("alone", object())
    with pytest.raises(ConfigError, match="own words"), raise_together("alone"), leave_on_error():
        raise ConfigError("own words")


def test_without_word_of_others_a_process_is_alone():
    assert not join_processes({})
    assert not join_processes({"JAX_COORDINATOR_ADDRESS": "somewhere:1"})
    together = {"JAX_COORDINATOR_ADDRESS": "here:1", "JAX_NUM_PROCESSES": "1"}
    assert not join_processes({**together, "JAX_PROCESS_ID": "0"})


@pytest.mark.parametrize(
    "change",
    [
        {"JAX_COORDINATOR_ADDRESS": ""},
        {"JAX_NUM_PROCESSES": ""},
        {"JAX_PROCESS_ID": "2"},
        {"JAX_PROCESS_ID": "first"},
    ],
)
def test_half_an_invitation_is_refused(change):
    whole = {
        "JAX_COORDINATOR_ADDRESS": "here:1",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "1",
    }
    with pytest.raises(ConfigError, match=r"JAX_PROCESS_ID=.*Fix: set all three"):
        join_processes({**whole, **change})
