"""Frozen dataclasses <-> YAML and JSON: checking, overrides, schema, fingerprints, differences.

A config is a plain frozen, keyword-only dataclass that lives beside the code it configures. This
room turns text and mappings into such dataclasses and back; it knows no config of its own and
never imports JAX. The invariant: a config that came out of here holds only values of its declared
types, at every depth, and reads back equal from its own mapping or YAML text.
"""

from chomp.config.fields import Config, Mark, setting
from chomp.config.files import config_to_yaml
from chomp.config.fingerprint import (
    MISSING,
    Difference,
    canonical_json,
    config_difference,
    config_hash,
    fingerprint,
    unset_additions,
)
from chomp.config.overrides import apply_overrides
from chomp.config.parse import config_from_mapping, config_to_mapping, validated
from chomp.config.schema import config_schema

__all__ = [
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
