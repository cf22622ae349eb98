"""Whether a checkpoint is of this run: one table, three classes, nothing read but metadata."""

import logging
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from restore_samples import BATCH, RunSample, about, run, step_folder

from chomp.checkpoint.compatibility import (
    allowed_changes,
    require_same_arrays,
    require_same_run,
    warn_unless_exact,
)
from chomp.errors import CheckpointError, ConfigError


def require(now: RunSample, *, allow: tuple[str, ...] = (), **changes: Any) -> None:
    """Go on from the default run's step 6 with the config `now`."""
    offset = changes.pop("data_offset_at", None)
    require_same_run(
        step_folder(),
        about(now, **changes),
        config=now,
        allowed=allowed_changes(now, allow),
        data_offset_at=offset,
    )


def refusal(now: RunSample, **changes: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        require(now, **changes)
    return str(caught.value)


def test_the_same_run_and_cosmetic_changes_are_accepted_without_a_word(caplog):
    caplog.set_level(logging.INFO)
    require(run(), data_offset_at=lambda step: BATCH * step)
    require(run(log_every=7, load_checkpoint=True))
    require(run(), allow=("trainer.steps", "mesh"))  # a flag may name what has not changed
    assert not caplog.records


def test_all_changes_are_told_at_once_in_one_table_and_no_flag_makes_identity_pass():
    now = run({"columns": 64}, steps=20, seed=3)
    told = refusal(now, data_fingerprint="f" * 16, allow=("trainer.steps",))
    assert told.startswith("run/checkpoints/step-6 was saved by another run:\n")
    table = [line.split() for line in told.splitlines()[1:-1]]
    assert table == [
        ["field", "saved", "now", "class"],
        ["model.columns", "32", "64", "identity"],
        ["trainer.seed", "0", "3", "identity"],
        ["data_fingerprint", about().data_fingerprint[:12], "f" * 12, "identity"],
        ["trainer.steps", "10", "20", "schedule"],
    ]
    assert told.endswith("Fix: undo the changes marked identity, or start a new run in another "
                         "folder.")  # fmt: skip


def test_a_change_of_schedule_is_refused_with_the_flags_that_allow_it():
    told = refusal(run(steps=20, ema_beta=0.9))
    assert "was saved with another schedule:\n" in told
    assert "  trainer.steps     10     20   schedule\n" in told
    assert told.endswith("--allow trainer.steps --allow trainer.ema_beta.")
    told = refusal(run(steps=20, ema_beta=0.9), allow=("trainer.steps",))
    assert told.endswith(" continue with --allow trainer.ema_beta.")


@pytest.mark.parametrize("name", ["trainer.steps", "train.steps"])
def test_a_change_of_schedule_that_is_named_passes_and_is_logged(name, caplog):
    require(run(steps=20), allow=(name,))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "trainer.steps  10     20   schedule" in caplog.text


def test_a_changed_item_of_a_list_is_allowed_by_its_field():
    before, now = run(batch_size=((0, 4), (8, 8))), run(batch_size=((0, 4), (8, 16)))
    found = step_folder(config=before)

    def check(*allow: str) -> None:
        allowed = allowed_changes(now, allow)
        require_same_run(found, about(now), config=now, allowed=allowed)

    with pytest.raises(CheckpointError) as caught:
        check()
    assert "--allow trainer.batch_size" in caught.value.fix
    check("trainer.batch_size")
    check("train.batch_size.1.1")


def test_another_tokenizer_or_hash_of_equal_fields_is_another_run():
    for field in ("tokenizer_hash", "config_hash"):
        row = refusal(run(), **{field: "a" * 16}).splitlines()[2].split()
        assert row == [field, getattr(about(), field)[:12], "a" * 12, "identity"]


def test_another_cut_of_the_same_batches_is_the_same_data():
    # Two micro-batches of two rows instead of one of four: grad_accum with the same total.
    require(run(batch_size=2), allow=("trainer.batch_size",), data_offset_at=lambda s: 2 * 2 * s)


def test_a_change_that_would_move_the_data_is_refused_even_where_it_is_allowed():
    told = refusal(run(batch_size=8), allow=("trainer.batch_size",), data_offset_at=lambda s: 8 * s)
    assert "examples before step 6  24     48   identity" in told


def test_a_hash_over_other_fields_by_an_earlier_version_is_accepted():
    saved = step_folder()
    earlier = replace(saved, metadata=replace(saved.metadata, config_hash="of an earlier version"))
    require_same_run(earlier, about(run()), config=run())


@pytest.mark.parametrize("name", ["trainer.step", "steps", "", "*", "trainer.steps.0", "model.x"])
def test_a_flag_that_names_no_field_is_an_error_that_lists_those_there_are(name):
    with pytest.raises(ConfigError) as caught:
        allowed_changes(run(), (name,))
    assert f"--allow {name}" in caught.value.given
    assert "trainer.steps, " in caught.value.allowed


def test_a_flag_that_is_nearly_a_field_is_put_right():
    with pytest.raises(ConfigError) as caught:
        allowed_changes(run(), ("trainer.stepz",))
    assert "did you mean trainer.steps?" in caught.value.given
    assert "--allow trainer.steps" in caught.value.fix


@pytest.mark.parametrize("name", ["model.columns", "trainer", "train.seed", "model"])
def test_a_flag_that_names_part_of_the_identity_is_refused(name):
    with pytest.raises(ConfigError) as caught:
        allowed_changes(run(), (name,))
    assert f"--allow {name}" in caught.value.given
    assert "identity" in caught.value.given


ARRAYS = {"step": jnp.int32(1), "params/w": jnp.zeros((4, 2)), "params/b": jnp.zeros(3)}
SAVED = {
    name: {"shape": list(leaf.shape), "dtype": str(leaf.dtype)} for name, leaf in ARRAYS.items()
}


def test_equal_arrays_pass_as_arrays_or_as_their_abstract_forms():
    require_same_arrays("step-1", SAVED, ARRAYS)
    require_same_arrays("step-1", SAVED, jax.eval_shape(lambda: ARRAYS))


def test_other_arrays_come_as_one_table_of_shapes_dtypes_and_names():
    now = {
        "step": jnp.int32(1),
        "params/w": jnp.zeros((4, 3)),
        "params/b": jnp.zeros(3, jnp.bfloat16),
        "params/gate": jnp.zeros(2),
    }
    saved = {name: array for name, array in SAVED.items() if name != "step"}
    with pytest.raises(CheckpointError) as caught:
        require_same_arrays("step-1", saved, now)
    assert str(caught.value).splitlines()[:5] == [
        "step-1 holds other arrays:",
        "  array        saved           now",
        "  params/w     (4, 2) float32  (4, 3) float32",
        "  params/b     (3,) float32    (3,) bfloat16",
        "  step         (missing)       () int32",
    ]
    assert "  params/gate  (missing)       (2,) float32\nAllowed: " in str(caught.value)


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({"mesh": {"data": 4, "model": 2}}, {"mesh": {"data": 1, "model": 1}}, "data=4, model=2"),
        ({"environment": {"cores": 2}}, {"environment": {"cores": 8}}, "cores  2      8"),
        ({"environment": {"devices": 8}}, {"environment": {"devices": 1}}, "devices  8      1"),
    ],
)
def test_another_machine_is_warned_about_as_not_bit_for_bit(before, now, words, caplog):
    warn_unless_exact(step_folder(**before), about(**now))
    assert "not bit for bit" in caplog.text
    assert words in caplog.text
    caplog.clear()
    warn_unless_exact(step_folder(**before), about(**before))
    assert not caplog.records
