"""The first chomp's bugs, by their numbers: each with the tests that fail if it comes back.

Most of those are where their subject is, and the table finds them; what no other file had a reason
to look at is tried here and in test_original_steps.py. docs/references/original-bugs.md tells what
went wrong there.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from chomp.errors import TRIED_VERSIONS

ROOT = Path(__file__).parents[1]
HERE, STEPS = "tests/test_original_bugs.py", "tests/test_original_steps.py"
PAGE = ROOT / "docs/references/original-bugs.md"

BUGS: dict[int, tuple[str, ...]] = {
    1: (
        "tests/test_training.py::test_a_bad_step_ends_the_run_before_anything_of_it_is_saved",
        "tests/checkpoint/test_save.py::"
        "test_a_state_that_is_not_finite_is_refused_before_anything_is_written",
    ),
    2: (
        "tests/checkpoint/test_restore.py::"
        "test_going_back_to_an_older_step_moves_the_newer_ones_aside",
        "tests/cli/test_train_resume.py::"
        "test_a_run_in_pieces_is_the_run_and_an_older_step_gives_it_again",
    ),
    3: (
        "tests/data/test_stream.py::"
        "test_reads_that_fail_neither_lose_nor_repeat_a_document_nor_end_an_epoch",
    ),
    4: ("tests/data/test_stream.py::test_without_retries_epochs_still_follow_each_other",),
    5: (
        "tests/data/test_stream.py::"
        "test_a_restored_stream_goes_on_with_the_rows_of_the_unbroken_one",
        "tests/test_training.py::test_streams_stages_and_growing_batches_continue_bit_for_bit",
    ),
    6: (
        "tests/data/test_document_split.py::test_equal_texts_and_equal_keys_are_on_one_side",
        "tests/data/test_stream.py::test_documents_that_are_held_out_are_never_served",
        "tests/data/test_embedded_corpus.py::test_docstrings_of_a_held_out_file_are_held_out_too",
    ),
    7: (
        "tests/data/test_rows.py::"
        "test_evaluation_scores_every_token_once_except_where_documents_start",
        "tests/evaluation/test_tagged_evaluator.py::test_no_batch_size_changes_a_bit_of_any_value",
    ),
    8: (
        f"{STEPS}::test_tokens_seen_are_those_that_a_loss_was_asked_of",
        "tests/training/test_step_log.py::test_tokens_of_every_step_count_whether_it_is_logged_or_not",
    ),
    9: (
        "tests/test_megalodon.py::test_a_packed_document_equals_the_document_alone",
        "tests/test_megalodon.py::"
        "test_gradients_of_a_packed_document_are_those_of_the_document_alone",
    ),
    10: (
        "tests/data/test_packed_rows.py::"
        "test_long_documents_are_split_truncated_or_dropped_and_counted",
        "tests/data/test_datasets.py::test_tokens_that_packing_leaves_out_are_told",
    ),
    11: (
        "tests/data/test_packing.py::test_every_piece_is_in_exactly_one_row_and_no_row_is_overfull",
        "tests/data/test_packing.py::"
        "test_rows_read_forward_and_stand_in_the_order_of_their_first_pieces",
        "tests/data/test_stream.py::test_packed_rows_are_shuffled_as_well_as_their_documents",
    ),
    12: (
        "tests/optim/test_groups.py::test_what_a_step_sets_itself_is_left_alone_and_has_no_moments",
    ),
    13: (
        "tests/cli/test_eval_command.py::"
        "test_a_run_without_its_tokenizer_names_the_one_it_was_built_with",
        "tests/cli/test_eval_command.py::test_another_tokenizer_is_refused_with_both_hashes",
    ),
    14: (
        "tests/training/test_step_log.py::"
        "test_a_loss_that_is_not_finite_ends_the_run_and_leaves_no_row",
        "tests/test_training.py::test_a_bad_step_leaves_the_state_as_it_was_to_the_bit",
    ),
    15: (
        "tests/data/test_train_loader.py::"
        "test_a_loader_of_streams_goes_on_from_the_state_of_any_step",
        "tests/data/test_train_loader.py::"
        "test_iterating_gives_the_batches_of_the_steps_from_anywhere",
    ),
    16: (
        "tests/training/test_step_log.py::test_times_of_rows_sum_to_the_wall_clock",
        "tests/test_instruments.py::test_the_phases_of_a_run_sum_to_its_wall_clock",
        "tests/training/test_step_log.py::"
        "test_mfu_is_in_percent_of_the_peak_of_all_devices_for_the_dtype_in_use",
    ),
    17: (f"{STEPS}::test_a_step_takes_the_memory_of_the_state_it_replaces",),
    18: (f"{STEPS}::test_gradients_add_up_in_float32_though_the_weights_are_bfloat16",),
    19: (
        "tests/data/test_train_loader.py::test_only_one_batch_is_made_before_the_first_is_there",
        "tests/data/test_build.py::test_two_processes_make_the_store_of_one",
    ),
    20: (
        f"{STEPS}::test_no_array_of_a_step_is_as_large_as_all_logits",
        "tests/kernels/test_loss_chunked.py::test_no_array_of_the_program_holds_all_logits",
    ),
    21: ("tests/evaluation/test_sampling.py::test_a_batch_size_and_a_length_are_compiled_once",),
    22: (
        "tests/test_base_model.py::test_eight_devices_give_the_loss_and_gradients_of_one",
        "tests/test_megalodon.py::test_many_devices_give_what_one_gives",
        "tests/data/test_train_loader.py::"
        "test_hosts_that_read_only_their_rows_have_the_whole_batch_between_them",
    ),
    23: (
        "tests/optim/test_muon.py::"
        "test_decay_pulls_on_matrices_alone_and_does_not_grow_with_the_scale_of_the_rate",
    ),
    24: (
        "tests/test_megalodon.py::test_dynamics_are_never_decayed",
        f"{STEPS}::test_only_what_a_product_multiplies_by_decays",
    ),
    25: (
        "tests/optim/test_schedule.py::test_landmarks_of_each_shape_are_its_closed_form",
        "tests/optim/test_schedule.py::"
        "test_no_step_is_above_the_rate_or_below_the_least_and_the_first_is_not_zero",
    ),
    26: (
        "tests/test_grug_variant_contracts.py::test_a_template_is_what_others_take_it_for",
        "tests/optim/test_groups.py::test_a_weight_without_a_group_is_refused_by_its_path",
        "tests/optim/test_muon.py::test_muon_without_a_matrix_is_refused_and_not_silently_adamw",
    ),
    27: (
        "tests/config/test_config_messages.py::test_the_message_is",
        "tests/cli/test_config_argument.py::test_what_a_yaml_file_lacks_or_has_too_much_is_named",
    ),
    28: (
        "tests/config/test_config_files.py::"
        "test_a_yaml_file_is_read_with_numbers_as_people_write_them_and_no_other_surprise",
        "tests/config/test_config_parsing.py::test_text_is_no_number_and_no_boolean_as_in_the_schema",
    ),
    29: (
        "tests/config/test_config_overrides.py::test_an_override_sets_the_value_its_type_means",
        "tests/config/test_config_parsing.py::"
        "test_what_is_given_is_taken_as_its_declared_type_and_silence_means_the_default",
    ),
    30: (
        "tests/cli/test_train_command.py::"
        "test_a_dry_run_gets_every_path_and_whether_the_data_is_there_and_leaves_nothing",
        "tests/cli/test_train_command.py::test_a_dry_run_of_debug_smoke_leaves_nothing_behind",
    ),
    31: (
        "tests/cli/test_train_resume.py::test_a_step_is_a_number_and_zero_is_one",
        "tests/training/test_run_folder.py::"
        "test_another_file_is_the_original_and_those_that_trained_before_are_kept",
        f"{STEPS}::test_another_run_is_told_before_an_array_is_read",
        "tests/cli/test_checkpoint_commands.py::"
        "test_diff_tells_where_in_training_both_are_and_what_config",
    ),
    32: (
        "tests/test_resume_fields.py::test_another_schedule_goes_on_when_it_is_allowed_by_name",
        "tests/test_resume.py::test_a_finished_run_is_made_longer_only_when_that_is_allowed",
        "tests/test_resume.py::test_weights_of_another_run_start_a_run_of_their_own",
    ),
    33: (
        "tests/test_resume_fields.py::test_what_changes_nothing_that_is_trained_is_free",
        "tests/data/test_datasets.py::test_settings_of_packed_rows_need_packed_rows",
        "tests/checkpoint/test_compatibility.py::"
        "test_another_machine_is_warned_about_as_not_bit_for_bit",
    ),
    34: (
        "tests/test_training.py::"
        "test_a_signal_that_comes_while_a_step_is_decided_on_saves_that_step",
        "tests/checkpoint/test_retention.py::test_temporary_checkpoints_are_due_by_the_clock",
        "tests/training/test_run_folder.py::test_the_summary_says_how_an_attempt_ended",
    ),
    35: ("tests/checkpoint/test_save.py::test_leaving_waits_for_the_save_and_raises_its_error",),
    36: (
        "tests/test_grug_variant_contracts.py::test_batches_of_one_size_are_one_program",
        "tests/cli/test_generate_command.py::"
        "test_without_a_prompt_it_writes_the_runs_own_sample_of_that_step",
        f"{HERE}::test_no_test_of_this_table_leaves_itself_out",
        f"{STEPS}::test_a_step_of_every_template_is_compiled_and_run_on_a_gpu",
    ),
    37: (f"{HERE}::test_nothing_private_is_imported_but_what_has_no_public_name",),
    38: (
        "tests/cli/test_config_commands.py::test_the_page_is_what_the_classes_say_now",
        "tests/config/test_config_schema.py::"
        "test_the_schema_describes_fields_of_nested_classes_too",
    ),
}

# Whatever a version of these may change, we would notice by a test of its own.
PRIVATE = {
    "jax._src.cudnn.fused_attention_stablehlo",
    "jax._src.distributed",
    "orbax.checkpoint._src.serialization.types",
}


# ---- The table ------------------------------------------------------------------------------


@cache
def functions_of(file: str) -> dict[str, ast.FunctionDef]:
    """The functions of a file of tests by name; it is read and not imported."""
    tree = ast.parse((ROOT / file).read_text())
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_bug_has_its_number():
    assert list(BUGS) == list(range(1, 39))
    assert all(BUGS.values())


@pytest.mark.parametrize("number", BUGS)
def test_the_tests_of_a_bug_are_there(number: int):
    for name in BUGS[number]:
        file, _, function = name.partition("::")
        assert function in functions_of(file), (
            f"bug {number}: {name} is gone; name one that shows it"
        )


@pytest.mark.parametrize("number", BUGS)
def test_no_test_of_this_table_leaves_itself_out(number: int):
    for name in BUGS[number]:
        file, _, function = name.partition("::")
        found = functions_of(file)[function]
        words = [node.attr for node in ast.walk(found) if isinstance(node, ast.Attribute)]
        assert not {"skip", "skipif", "xfail", "importorskip"} & set(words), name


def test_the_page_has_every_bug_once_with_its_tests():
    rows = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    told = {int(number): re.findall(r"`([^`]+)`", tests) for number, tests in rows}
    assert told == {number: list(names) for number, names in BUGS.items()}
    assert len(rows) == len(BUGS)


# ---- Sources --------------------------------------------------------------------------------


def private_imports(path: Path) -> Iterator[tuple[str, bool]]:
    """What a file imports of other packages that they keep to themselves, and whether guarded.

    Guarded: inside of a function, and of `with private_names(...)` there.
    """
    text = path.read_text()
    if not re.search(r"^\s*(from|import) .*\b_", text, re.MULTILINE):
        return  # parsing all of the library takes seconds
    tree = ast.parse(text)
    guarded = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for block in ast.walk(function)
        if isinstance(block, ast.With)
        and any(
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == "private_names"
            for call in (item.context_expr for item in block.items)
        )
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            is_own = name.split(".")[0] in ("chomp", "experiments", "__future__")
            if not is_own and any(part.startswith("_") for part in name.split(".")):
                yield name, node in guarded


def test_nothing_private_is_imported_but_what_has_no_public_name():
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]
    found = {name for path in sources for name, _ in private_imports(path)}
    assert found == PRIVATE


def test_what_is_private_is_imported_where_it_is_needed_and_with_a_clear_error():
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]
    found = [(path, *each) for path in sources for each in private_imports(path)]
    assert [(path, name) for path, name, is_guarded in found if not is_guarded] == []


def test_the_versions_that_private_names_were_tried_with_are_those_that_are_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = dict(each.split("==") for each in project["tool"]["uv"]["constraint-dependencies"])
    assert {name: pinned[name] for name in TRIED_VERSIONS} == TRIED_VERSIONS
