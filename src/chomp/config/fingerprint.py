"""Fingerprints: one text for one value, and the hash of that text.

Equal values give equal text whatever the order of their keys or fields. A config's hash covers the
identity fields only, so a run keeps its hash when its logging or its schedule changes.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from chomp.config.fields import ConfigClass, is_config, is_unset_addition, mark_of
from chomp.config.parsing import validated
from chomp.config.plain import plain_value


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, ASCII, floats as `repr` writes them.

    Takes dataclasses, mappings, lists, tuples, enums, paths and scalars. 1 and 1.0 differ here; a
    config that passed `validated` has them as declared. Raises `ConfigError` naming the path and
    type of anything else, and for NaN and infinity.
    """
    return json.dumps(
        plain_value(value),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
        allow_nan=False,
    )


def fingerprint(value: Any) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def config_hash(config: ConfigClass) -> str:
    """Fingerprint of a config's identity fields, after validation.

    A field with another mark is left out together with everything inside it.
    """
    # Validated first, or lr=1 and lr=1.0 would be two runs.
    return fingerprint(_identity(validated(config)))


def _identity(value: Any) -> Any:
    """The value without the fields that are not part of a run's identity."""
    if is_config(value):
        fields = {field: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {
            field.name: _identity(item)
            for field, item in fields.items()
            if field.init and mark_of(field) == "identity" and not is_unset_addition(field, item)
        }
    if isinstance(value, Mapping):
        return {key: _identity(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_identity(item) for item in value]
    return value
