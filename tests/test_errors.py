"""The exception tree and the messages every refusal is written with."""

import pickle
from importlib.metadata import version

import pytest

from chomp import errors
from chomp.errors import (
    TRIED_VERSIONS,
    ChompError,
    ConfigError,
    LaunchError,
    RunInterrupted,
    StorageError,
    divisors,
    private_names,
    require,
    require_at_most,
    require_divides,
)

PRIVATE = (
    "from jax._src import no_such_name",
    "import jax._src.no_such_name",
    "import jax; jax._src.no_such_name",
)
TREE = {
    "ConfigError": ValueError,
    "DataError": ValueError,
    "StorageError": OSError,
    "CheckpointError": RuntimeError,
    "NonFiniteError": ArithmeticError,
    "KernelError": ArithmeticError,
    "LaunchError": RuntimeError,
    "HookError": RuntimeError,
    "RunInterrupted": RuntimeError,
}


def test_every_exception_is_a_chomp_error_and_the_builtin_a_caller_expects():
    found = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, ChompError) and value is not ChompError
    }
    assert found == set(TREE)
    assert all(issubclass(getattr(errors, name), builtin) for name, builtin in TREE.items())


def test_the_docstring_draws_every_exception_with_its_builtin():
    for name, builtin in TREE.items():
        assert any(
            name in line and f"({builtin.__name__})" in line
            for line in (errors.__doc__ or "").splitlines()
        ), name


def test_a_message_has_its_three_parts_in_order():
    error = ConfigError("lr=-1", allowed="above 0", fix="try 3e-4")
    assert str(error) == "lr=-1. Allowed: above 0. Fix: try 3e-4."


def test_a_list_in_a_message_ends_its_own_line():
    error = ConfigError("these differ:\n  a\n  b\n", allowed="none", fix="undo them")
    assert str(error) == "these differ:\n  a\n  b\nAllowed: none. Fix: undo them."


def test_require_raises_a_config_error_only_when_the_condition_fails():
    require(True, "a", allowed="b", fix="c")
    with pytest.raises(ConfigError) as caught:
        require(False, "a", allowed="b", fix="c")
    assert (caught.value.given, caught.value.allowed, caught.value.fix) == ("a", "b", "c")


def test_a_limit_is_named_by_the_field_that_sets_it():
    require_at_most("seq_len", 8, "max_seq_len", 8)
    with pytest.raises(ConfigError) as caught:
        require_at_most("seq_len", 9, "max_seq_len", 8)
    assert "seq_len=9 with max_seq_len=8" in caught.value.given
    assert "raise max_seq_len" in caught.value.fix


@pytest.mark.parametrize("divisor", [5, 0, -2])
def test_an_indivisible_size_is_answered_with_the_sizes_that_work(divisor):
    with pytest.raises(ConfigError) as caught:
        require_divides("num_kv_heads", divisor, "num_heads", 12)
    assert "[1, 2, 3, 4, 6, 12]" in caught.value.fix


def test_divisors_are_all_of_them_and_nothing_else():
    for number in range(1, 50):
        assert divisors(number) == [d for d in range(1, 50) if number % d == 0]


def test_an_interruption_carries_the_exit_code_of_who_asked_for_it():
    assert RunInterrupted("SIGTERM", exit_code=75).exit_code == 75
    assert ConfigError.exit_code == 2
    assert ChompError.exit_code == 1


@pytest.mark.parametrize("statement", PRIVATE)
def test_a_private_name_that_a_version_lacks_is_told_with_that_version(statement: str):
    with pytest.raises(ConfigError) as told, private_names("jax"):
        exec(statement)
    assert "no_such_name" in told.value.given
    assert version("jax") in told.value.given
    assert TRIED_VERSIONS["jax"] in told.value.fix


def test_an_error_has_its_parts_as_fields_and_keeps_them_in_another_process():
    error = ConfigError("lr=-1", allowed="above 0", fix="try 3e-4").within("component 'web'")
    for same in (error, pickle.loads(pickle.dumps(error))):
        assert (same.given, same.allowed, same.fix) == (
            "component 'web': lr=-1",
            "above 0",
            "try 3e-4",
        )
        assert str(same) == "component 'web': lr=-1. Allowed: above 0. Fix: try 3e-4."
    full = StorageError("no space", allowed="space", fix="make some")
    full.errno = 28
    assert pickle.loads(pickle.dumps(full)).errno == 28
    assert str(LaunchError("gone")) == "gone"
