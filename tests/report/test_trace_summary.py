"""A trace's summary, on files whose sums are known."""

import json

import pytest

from chomp.errors import StorageError
from chomp.report.trace import (
    PHASES,
    STEP,
    TraceSummary,
    newest_trace,
    summary_of_run,
    trace_places,
)
from tests.report.handmade_traces import Made, TraceMaker

GPU = {"gpu_device_name": "NVIDIA H200"}


def step(number: int, start: float, end: float) -> Made:
    return Made("train", start, end, {"step_num": number})


def op(name: str, start: float, end: float, /, **stats) -> Made:
    """An operation of a program that is not in the trace."""
    return Made(name, start, end, {"hlo_op": name, "hlo_module": "jit_train_step", **stats})


def milliseconds(summary: TraceSummary) -> dict[str, float]:
    return {row.name: row.ms for row in summary.categories if row.ms}


def test_categories_sum_to_the_busy_time_and_gaps_are_the_rest(tmp_path):
    made = TraceMaker()
    compute = [op("nvjet_a", 1, 4), op("loop_add_fusion", 4, 5), op("nvjet_a", 7, 9)]
    copies = [Made("MemcpyD2H", 3, 6)]  # beside a product it costs nothing
    made.plane("/device:GPU:0", {"Stream #1(Compute)": compute, "Stream #2": copies}, GPU)
    made.plane("/host:CPU", {"python": [step(3, 0, 5), step(4, 5, 10)]})
    made.write(tmp_path)

    summary = summary_of_run(tmp_path, None)

    assert summary.device == "NVIDIA H200 0"
    assert summary.steps == (3, 4)
    assert summary.step_ms == pytest.approx(5)
    assert milliseconds(summary) == pytest.approx({"matmul": 5, "element-wise": 1, "copies": 1})
    assert summary.busy_ms == pytest.approx(7)
    assert summary.total_ms == pytest.approx(10)
    assert [(gap.after, gap.ms) for gap in summary.gaps] == [
        ("the start", pytest.approx(1)),
        ("MemcpyD2H", pytest.approx(1)),
        ("nvjet_a", pytest.approx(1)),
    ]
    longest = summary.operations[0]
    assert (longest.name, longest.count) == ("nvjet_a", 2)
    assert longest.share == pytest.approx(0.5)
    assert {row.name: row.ms for row in summary.programs} == pytest.approx(
        {"jit_train_step": 6, "copies outside of programs": 1}
    )


def test_of_two_devices_the_mean_is_told(tmp_path):
    made = TraceMaker()
    made.plane("/device:GPU:0", {"Stream #1": [op("nvjet_a", 0, 4)]}, GPU)
    made.plane("/device:GPU:1", {"Stream #1": [op("nvjet_a", 0, 2), op("copy_1", 2, 4)]}, GPU)
    made.plane("/host:CPU", {"python": [step(0, 0, 4)]})
    made.write(tmp_path)

    summary = summary_of_run(tmp_path, None)

    assert summary.device == "2 devices: NVIDIA H200 0, NVIDIA H200 1"
    assert milliseconds(summary) == pytest.approx({"matmul": 3, "copies": 1})
    assert summary.busy_ms == pytest.approx(4)
    assert summary.operations[0].count == 2


def test_what_lies_before_the_first_step_is_cut_and_what_runs_after_the_last_is_not(tmp_path):
    made = TraceMaker()
    operations = [op("nvjet_b", 0, 1), op("nvjet_a", 1, 4), op("nvjet_b", 8, 12)]
    made.plane("/device:GPU:0", {"Stream #1": operations})
    made.plane("/host:CPU", {"python": [step(7, 2, 9)]})
    made.write(tmp_path)
    summary = summary_of_run(tmp_path, None)
    assert summary.total_ms == pytest.approx(10)
    assert [(row.name, row.count) for row in summary.operations] == [("nvjet_b", 1), ("nvjet_a", 1)]
    assert milliseconds(summary) == pytest.approx({"matmul": 6})


def test_on_a_tpu_only_the_line_of_operations_counts_and_loops_hold_what_is_in_them(tmp_path):
    made = TraceMaker()
    made.program(
        "jit_train_step",
        5,
        [{"name": "while.1", "opcode": "while"}, {"name": "dot.1", "opcode": "dot"}],
    )
    inside = [op("while.1", 0, 10, program_id=5), op("dot.1", 1, 8, program_id=5)]
    lines = {"XLA Modules": [Made("jit_train_step(5)", 0, 10)], "XLA Ops": inside}
    made.plane("/device:TPU:0", lines)
    made.write(tmp_path)
    assert milliseconds(summary_of_run(tmp_path, None)) == pytest.approx({"matmul": 7, "other": 3})


def test_on_a_cpu_an_operation_lasts_to_its_end_on_whatever_thread(tmp_path):
    made = TraceMaker()
    made.program(
        "jit_train_step",
        5,
        [
            {"name": "while.1", "opcode": "while"},
            {"name": "dot.1", "opcode": "dot", "op_name": "jit(f)/jvp(attention)/dot_general"},
            {"name": "add.1", "opcode": "add"},
        ],
    )
    known = {"program_id": 5, "device_ordinal": 0}
    first = [
        op("while.1", 0, 1, **known, _p=1),
        op("dot.1", 1, 2, **known, _p=2),  # its thread goes on, the product runs elsewhere
        op("add.1", 2, 4, **known, _p=3),
        Made("end: add.1", 3.9, 4, {"_c": 3}),
        Made("ThreadpoolListener::Record", 4, 4),
    ]
    second = [Made("end: dot.1", 6, 6.1, {"_c": 2}), Made("end: while.1", 8, 8.1, {"_c": 1})]
    made.plane("/host:CPU", {"chomp": first, "tf_XLAEigen/1": second})
    made.write(tmp_path)

    summary = summary_of_run(tmp_path, None)

    assert summary.device == "CPU 0"
    # From 2 to 4 both run; the loop has what is left before, after and nobody else's.
    assert milliseconds(summary) == pytest.approx({"attention": 4, "element-wise": 1, "other": 3})
    assert summary.busy_ms == pytest.approx(8)
    assert {row.name: row.place for row in summary.operations}["dot.1"] == (
        "jvp(attention)/dot_general"
    )


def test_a_graphs_kernels_take_the_graphs_scope_and_never_that_of_a_shared_name(tmp_path):
    made = TraceMaker()
    fusion = {"name": "fusion.2", "opcode": "fusion", "op_name": "jit(f)/attention/add"}
    made.program("jit_train_step", 5, [{**fusion, "fuses": [{"name": "a", "opcode": "add"}]}])
    graph = {"program_id": 5, "cuda_graph_id": 7}
    kernels = [
        op("fusion_2", 0, 1, **graph),
        op("nvjet_a", 1, 3, **graph, name="jit(f)/jvp(loss)/while"),
    ]
    made.plane("/device:GPU:0", {"Stream #1": kernels})
    made.write(tmp_path)

    summary = summary_of_run(tmp_path, None)

    assert milliseconds(summary) == pytest.approx({"element-wise": 1, "loss": 2})
    assert any("CUDA graphs do not say" in note for note in summary.notes)
    assert any(note.startswith("Attention cannot be told apart") for note in summary.notes)


def test_the_hosts_phases_sum_to_the_steps_and_an_inner_one_counts_for_itself(tmp_path):
    made = TraceMaker()
    host = [
        step(1, 0, 10),
        Made("loading", 1, 2),
        Made("eval", 5, 9),
        Made("hook", 6, 7),  # inside of the evaluation
        Made("train", 2, 3),  # of somebody else: it has no number
    ]
    made.plane("/host:CPU", {"other": [Made("loading", 0, 9)], "python": host})
    made.plane("/device:GPU:0", {"Stream #1": [op("nvjet_a", 0, 10)]})
    made.write(tmp_path)
    summary = summary_of_run(tmp_path, None)
    assert {row.name: row.ms for row in summary.phases} == pytest.approx(
        {"step": 5, "eval": 3, "loading": 1, "hook": 1}
    )
    assert any("eval 30% of the time" in note for note in summary.notes)


def test_names_are_those_that_the_profiler_hook_gives(tmp_path):
    from typing import get_args

    from chomp.training.profiler import profiler_folder
    from chomp.training.step_log import Phase

    assert {"step", *PHASES} == set(get_args(Phase))
    assert STEP == "train"
    config = {"run_id": "r", "trainer": {"log_dir": "logs"}}
    assert trace_places("out", config) == [
        profiler_folder("out", run_id="r"),
        profiler_folder("out", run_id="r", log_dir="logs"),
    ]


@pytest.mark.parametrize("odd", [{"trainer": [1]}, {"trainer": {"log_dir": 3}}, {"trainer": "x"}])
def test_a_config_that_is_none_names_no_other_place(odd):
    assert trace_places("out", {"run_id": "r", **odd}) == trace_places("out", None)


def test_a_program_of_the_same_number_and_another_name_tells_nothing(tmp_path):
    """As where a program was loaded from the cache of another process, with its number there."""
    made = TraceMaker()
    made.program("jit_evaluate", 5, [{"name": "add.1", "opcode": "add", "op_name": "loss/add"}])
    made.plane("/device:GPU:0", {"Stream #1": [op("add.1", 0, 4, program_id=5)]})
    made.write(tmp_path)
    summary = summary_of_run(tmp_path, None)
    assert milliseconds(summary) == pytest.approx({"other": 4})
    assert summary.operations[0].place == ""


def test_idle_time_before_the_first_operation_is_told(tmp_path):
    made = TraceMaker()
    made.plane("/device:GPU:0", {"Stream #1": [op("nvjet_a", 4, 20)]})
    made.plane("/host:CPU", {"python": [step(3, 0, 20)]})
    made.write(tmp_path)
    notes = summary_of_run(tmp_path, None).notes
    assert any("4.00 ms of the idle time (20.0% of all) are before" in note for note in notes)


def test_the_newest_trace_is_read_from_the_run_or_from_its_log_dir(tmp_path):
    made = TraceMaker()
    made.plane("/device:GPU:0", {"Stream #1": [op("nvjet_a", 0, 1)]})
    made.write(tmp_path / "run[1]", moment="2026_01_01_00_00_00")
    logs = made.write(tmp_path / "logs/r", moment="2026_01_02_00_00_00")
    made.write(tmp_path / "logs/r", moment="2026_01_02_00_00_00", host="b")
    config = {"run_id": "r", "trainer": {"log_dir": str(tmp_path / "logs")}}

    assert newest_trace(tmp_path / "run[1]", config)[0] == str(logs)
    assert "2026_01_01" in newest_trace(tmp_path / "run[1]", None)[0]
    notes = summary_of_run(tmp_path / "run[1]", config).notes
    assert any("first of 2 hosts" in note for note in notes)


def test_without_a_trace_the_error_says_how_to_make_one(tmp_path):
    with pytest.raises(StorageError) as caught:
        summary_of_run(tmp_path, None)
    assert "train.profiler.enabled=true" in caught.value.fix


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_half_a_file_is_refused_or_said_to_be_cut(tmp_path, kept):
    made = TraceMaker()
    made.plane("/host:CPU", {"python": [step(n, n, n + 1) for n in range(99)]})
    made.plane("/device:GPU:0", {"Stream #1": [op("nvjet_a", n, n + 1) for n in range(99)]})
    path = made.write(tmp_path)
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    with pytest.raises(StorageError) as caught:
        summary_of_run(tmp_path, None)
    assert ".xplane.pb" in caught.value.allowed


def test_a_file_that_ends_between_two_planes_is_said_to_be_cut(tmp_path):
    made = TraceMaker()
    made.plane("/device:GPU:0", {"Stream #1": [op("nvjet_a", 0, 1)]})
    path = made.write(tmp_path)
    del made.space.planes[-1]
    path.write_bytes(made.space.SerializeToString())
    assert any("cut off" in note for note in summary_of_run(tmp_path, None).notes)


@pytest.mark.parametrize(
    "events",
    [None, [], [op("nvjet_a", 2, 2)]],
    ids=["no device", "no operation", "no time"],
)
@pytest.mark.parametrize("has_steps", [True, False])
def test_a_trace_in_which_nothing_ran_is_refused(tmp_path, events, has_steps):
    made = TraceMaker()
    if has_steps:
        made.plane("/host:CPU", {"python": [step(0, 2, 3)]})
    if events is not None:
        made.plane("/device:GPU:0", {"Stream #1": events})
    made.write(tmp_path)
    with pytest.raises(StorageError) as caught:
        summary_of_run(tmp_path, None)
    assert "no operation" in caught.value.given
    assert "train.profiler.num_steps" in caught.value.fix


def test_time_without_a_place_in_the_program_is_told(tmp_path):
    made = TraceMaker()
    placed = {"name": "dot.1", "opcode": "dot", "op_name": "jit(f)/attention/dot_general"}
    made.program("jit_train_step", 5, [placed, {"name": "dot.2", "opcode": "dot"}])
    operations = [op("dot.1", 0, 3, program_id=5), op("dot.2", 3, 4, program_id=5)]
    made.plane("/device:GPU:0", {"Stream #1": operations})
    made.write(tmp_path)
    summary = summary_of_run(tmp_path, None)
    assert milliseconds(summary) == pytest.approx({"attention": 3, "matmul": 1})
    assert any(note.startswith("25% of the busy time is of op") for note in summary.notes)


def test_what_the_profiler_complains_of_comes_first(tmp_path):
    made = TraceMaker()
    made.plane("/device:GPU:0", {"Stream #1": [op("nvjet_a", 0, 1)]})
    made.space.warnings.append("1234 events were dropped")
    made.write(tmp_path)
    assert summary_of_run(tmp_path, None).notes[0].endswith("1234 events were dropped")


def test_the_payload_is_plain_json_with_at_most_thirty_operations(tmp_path):
    made = TraceMaker()
    made.plane("/device:GPU:0", {"Stream #1": [op(f"nvjet_{n}", n, n + 0.5) for n in range(50)]})
    made.write(tmp_path)
    payload = json.loads(json.dumps(summary_of_run(tmp_path, None).payload(), allow_nan=False))
    assert len(payload["operations"]) == 30
    assert (payload["steps"], len(payload["gaps"])) == (0, 10)
    assert sum(row["ms"] for row in payload["categories"]) == pytest.approx(payload["busy_ms"])
    assert "No step is marked" in payload["note"]
