"""What a step asks of a cluster, and what its nodes have: refused before anything runs."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.errors import LaunchError
from chomp.executor import PlannedStep, Resources, plan_steps
from chomp.launch.process import pack_step
from chomp.launch.ray_runner import (
    GROWS,
    ProcessActor,
    SentProcess,
    demand_of,
    forwarded_environment,
    processes_that_fit,
    require_room,
)
from chomp.launch.step_result import Outcome, log_path
from tests.launch.sent_steps import step

NODES = [
    {"CPU": 4.0, "memory": 8e9, "node:10.0.0.1": 1.0},
    {"CPU": 8.0, "GPU": 2.0, "memory": 16e9, "TPU": 4.0},
]


def planned(tmp_path: Path, resources: Resources, wish: str = "") -> PlannedStep:
    [item] = plan_steps([step("one", wish, resources=resources)], prefix=str(tmp_path))
    return item


@pytest.mark.parametrize(
    "wanted",
    [
        Resources(),
        Resources(cpus=8),
        Resources(processes=3, cpus=4),
        Resources(processes=2, gpus=1),
        Resources(memory_gb=16, custom={"TPU": 4.0}),
        Resources(cpus=0),
    ],
)
def test_what_idle_nodes_can_hold_is_accepted(tmp_path, wanted):
    require_room([planned(tmp_path, wanted)], NODES)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Resources(cpus=9), ["1 x (CPU 9)", "room for 0", "(CPU 4), (CPU 8)"]),
        (Resources(processes=4, cpus=4), ["4 x (CPU 4)", "room for 3"]),
        (Resources(processes=3, gpus=1), ["CPU 1, GPU 1", "room for 2"]),
        (Resources(custom={"tpu": 4.0}), ["'tpu'", "no node has", "CPU, GPU, TPU, memory"]),
        (Resources(custom={"GPU": 1.0}), ["custom['GPU']", "resources.gpus"]),
        (Resources(memory_gb=17), ["memory 1.7e+10", "room for 0"]),
    ],
)
def test_what_no_node_could_ever_hold_is_refused_with_what_there_is(tmp_path, wanted, words):
    with pytest.raises(LaunchError) as raised:
        require_room([planned(tmp_path, wanted)], NODES)
    for word in ["'one'", *words]:
        assert word in str(raised.value)


def test_a_cluster_that_grows_is_asked_for_what_it_does_not_have_yet(tmp_path, monkeypatch):
    item = planned(tmp_path, Resources(processes=64, custom={"TPU": 4.0}))
    monkeypatch.setenv(GROWS, "1")
    require_room([item], [])
    monkeypatch.setenv(GROWS, "0")
    with pytest.raises(LaunchError, match=GROWS):
        require_room([item], [])


amounts = st.integers(1, 40).map(lambda tenths: tenths / 10)


@given(cpus=amounts, gpus=st.integers(0, 3), nodes=st.lists(st.tuples(amounts, st.integers(0, 8))))
def test_as_many_processes_fit_as_can_be_placed_one_after_the_other(cpus, gpus, nodes):
    demand = demand_of(Resources(cpus=cpus, gpus=gpus))
    found = processes_that_fit(demand, [{"CPU": has, "GPU": float(gpu)} for has, gpu in nodes])
    placed = 0
    for tenths, free in ((round(has * 10), gpu) for has, gpu in nodes):
        while tenths >= round(cpus * 10) and free >= gpus:
            tenths, free, placed = tenths - round(cpus * 10), free - gpus, placed + 1
    assert found == placed


def test_only_variables_that_say_how_a_step_runs_go_along(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("WANDB_API_KEY", "a key")
    monkeypatch.setenv("JAX_PROCESS_ID", "3")  # of this process, not of the step's
    monkeypatch.setenv("LD_LIBRARY_PATH", "/of/this/machine")
    # Given to a job of `ray_run`, which names what it was given.
    monkeypatch.setenv("MY_PASSWORD", "a word")
    monkeypatch.setenv("CHOMP_JOB_KEY_NAMES", "HF_TOKEN MY_PASSWORD")
    found = forwarded_environment()
    assert found["JAX_PLATFORMS"] == "cpu"
    assert found["MY_PASSWORD"] == "a word"
    assert found["WANDB_API_KEY"] == "a key"
    assert found.keys().isdisjoint({"JAX_PROCESS_ID", "LD_LIBRARY_PATH", "PATH", "HOME"})


def sent(item: PlannedStep, gpus: int = 0, **changes: str) -> SentProcess:
    folders = {"folder": item.path, "working_folder": str(Path.cwd()), **changes}
    return SentProcess(
        payload=pack_step(item),
        environment={"JAX_PROCESS_ID": "7"},
        gpus=gpus,
        log=log_path(item.path),
        log_header="whose",
        **folders,
    )


def ended(item: PlannedStep, **changes: str) -> tuple[int, Outcome | None]:
    """How a seat on this machine says that the step ended."""
    return ProcessActor().run(sent(item, **changes))


def begun(item: PlannedStep) -> PlannedStep:
    """As the driver leaves the folder before it asks for a seat."""
    Path(item.path).mkdir(parents=True)
    Path(item.path, ".executor_status").write_text("{}")
    return item


def test_a_seat_runs_the_process_with_its_variables_and_keeps_what_it_printed(tmp_path):
    item = begun(planned(tmp_path, Resources()))
    assert ended(item) == (0, Outcome())
    assert Path(item.path, "seen-7").exists()
    header, printed = Path(log_path(item.path)).read_text().splitlines()
    assert header == "==== whose"
    assert printed.startswith("printed by ")


@pytest.mark.parametrize(
    ("gpus", "told", "seen"),
    [(0, {}, ["", "cpu"]), (2, {}, ["4,5", "any"]), (0, {"JAX_PLATFORMS": "cuda"}, ["", "cpu"])],
)
def test_a_process_that_asked_for_no_gpu_sees_none_of_its_node_whatever_its_driver_has(
    tmp_path, monkeypatch, gpus, told, seen
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")  # as Ray has set it for the seat
    monkeypatch.delenv("JAX_PLATFORMS")
    item = begun(planned(tmp_path, Resources()))
    process = sent(item, gpus)
    process = replace(process, environment={**process.environment, **told})
    assert ProcessActor().run(process) == (0, Outcome())
    assert [Path(item.path, name).read_text() for name in ("seen-7", "platforms-7")] == seen


def test_a_step_that_says_nothing_of_gpus_is_told_that_it_gets_none(tmp_path, caplog):
    quiet = [Resources(gpus=0), Resources(gpus=1), Resources(custom={"TPU": 4.0})]
    require_room([planned(tmp_path, wanted) for wanted in quiet], NODES)
    require_room([planned(tmp_path, Resources())], NODES[:1])
    assert caplog.text == ""
    require_room([planned(tmp_path, Resources())], NODES)
    assert "one-" in caplog.text
    assert "set resources.gpus" in caplog.text


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_a_process_that_is_to_end_before_it_began_ends_then(tmp_path, how):
    item = begun(planned(tmp_path, Resources(), "until asked"))
    actor = ProcessActor()
    getattr(actor, how)()
    code, outcome = actor.run(sent(item))
    assert code != 0
    if how == "kill":
        assert (code, outcome) == (-9, None)
        assert not Path(item.path, "saved").exists()


@pytest.mark.parametrize("which", ["folder", "working_folder"])
def test_a_node_that_does_not_see_the_drivers_folders_says_so_and_runs_nothing(tmp_path, which):
    item = begun(planned(tmp_path, Resources()))
    code, outcome = ended(item, **{which: str(tmp_path / "elsewhere")})
    assert code == 1
    assert outcome is not None
    assert outcome.kinds[0] == "LaunchError"
    assert "elsewhere is not there on the node" in outcome.text
    assert not Path(item.path, "starts").exists()
    assert not Path(log_path(item.path)).exists()
