"""The room itself: its public names, and what importing it costs."""

import subprocess
import sys

import chomp.config


def test_the_public_names_are_exactly_these():
    assert chomp.config.__all__ == [
        "MISSING",
        "Config",
        "Difference",
        "Mark",
        "apply_overrides",
        "canonical_json",
        "config_difference",
        "config_from_mapping",
        "config_hash",
        "config_schema",
        "config_to_mapping",
        "config_to_yaml",
        "fingerprint",
        "setting",
        "unset_additions",
        "validated",
    ]
    assert all(hasattr(chomp.config, name) for name in chomp.config.__all__)


def test_importing_the_room_brings_in_neither_jax_nor_numpy():
    code = "import sys, chomp.config; print(*{'jax', 'jaxlib', 'numpy'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
