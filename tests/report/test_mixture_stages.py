"""Stages of a mixture on a page: what each read, wherever rows were logged, and never too many."""

import json

import numpy as np
import pytest

from chomp.report.record import read_record
from chomp.report.run_facts import MAX_STAGES, mixture
from chomp.report.run_payload import run_payload

WEIGHTS = {"code": (0.1, 0.6, 0.0), "prose": (0.9, 0.4, 1.0)}
STARTS = (0, 50, 83)
LAST = 119


def stage_of(step):
    return sum(step >= start for start in STARTS[1:])


def written(folder, every):
    """A run that logs what such a mixture has read, of which ten steps are an epoch."""
    read = {
        name: np.cumsum([shares[stage_of(step)] / 10 for step in range(LAST + 1)])
        for name, shares in WEIGHTS.items()
    }
    rows = []
    for step in range(LAST + 1):
        if (step + 1) % every and step != LAST:
            continue
        row = {"step": step, "attempt": 1, "time": 1e9 + step, "mixture/stage": stage_of(step)}
        for name, shares in WEIGHTS.items():
            row[f"mixture/weight/{name}"] = shares[stage_of(step)]
            row[f"mixture/epoch/{name}"] = read[name][step]
        rows.append(row)
    stages = [{"start_step": start, "weights": {}} for start in STARTS]
    (folder / "config_resolved.json").write_text(json.dumps({"data": {"stages": stages}}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


@pytest.mark.parametrize("every", [1, 7, 20, 30])
def test_what_a_stage_read_is_right_wherever_it_began_between_rows(tmp_path, every):
    found = mixture(read_record(written(tmp_path, every)))
    assert [stage["first_step"] for stage in found["stages"]] == list(STARTS)
    for name, shares in WEIGHTS.items():
        read = [share * steps / 10 for share, steps in zip(shares, (50, 33, 37), strict=True)]
        assert [stage["epochs"][name] for stage in found["stages"]] == pytest.approx(read)


def test_without_weights_steps_between_rows_count_the_same(tmp_path):
    path = tmp_path / "metrics.jsonl"
    written(tmp_path, 30)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["mixture/weight/code"] = None
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, *_ = mixture(read_record(str(tmp_path)))["stages"]
    # Two thirds of the thirty steps from row 29 to row 59.
    assert first["epochs"]["code"] == pytest.approx(0.3 + (20 * 0.01 + 10 * 0.06) * 2 / 3)
    assert "code" not in first["weights"]


def test_stages_that_change_all_the_time_are_bounded_and_said_to_be(tmp_path):
    rows = [
        {
            "step": step, "attempt": 1, "time": 1e9 + step, "mixture/stage": step % 2,
            "mixture/weight/code": 1.0, "mixture/epoch/code": step / 10,
        }
        for step in range(5000)
    ]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = mixture(read_record(str(tmp_path)))
    assert len(found["stages"]) == MAX_STAGES
    assert found["note"] == "The stage changed 4,999 times: these are the first 50."
    assert found["stages"][-1]["epochs"]["code"] == pytest.approx(0.1)
    assert len(json.dumps(run_payload(read_record(str(tmp_path))))) < 300_000
