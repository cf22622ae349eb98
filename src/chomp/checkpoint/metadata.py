"""What a checkpoint says about itself, as it stands in its `metadata.json`.

The file is read strictly: an unknown field, a missing one or one of another type is an error, never
a default. It carries a hash of itself, as receipts guard the arrays alone. `FORMAT` goes up
whenever an older reader would misunderstand what is written.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from chomp.storage import json_text

FORMAT = 2  # 1 had SHA-256 receipts, a list of files, and no record of shapes
_OWN_HASH = "metadata_hash"


class OtherFormat(ValueError):
    """Metadata of another version of chomp: whole, perhaps, and not to be read here."""


@dataclass(frozen=True, kw_only=True)
class CheckpointMetadata:
    """What a checkpoint says about itself; `step` counts completed optimizer steps."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    step: int
    run_id: str
    attempt: int
    config_hash: str
    config: dict[str, Any]
    data_fingerprint: str
    data_offset: int  # examples consumed
    tokens_seen: int
    format: int = FORMAT
    skipped_steps: int = 0  # whose update was left out, being not finite
    tokenizer_hash: str = ""
    template_hash: str = ""  # of the run folder's template/; "": saved before there was one
    stream_states: dict[str, Any] | None = None  # of components that are read as streams
    is_temporary: bool = False
    time: float = 0.0
    # The checkpoint this attempt went on from: path, run_id, attempt, step; or `initialize_from`.
    continues: dict[str, Any] | None = None
    mesh: dict[str, int] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)  # versions, cores, devices
    arrays: dict[str, dict[str, Any]] = field(default_factory=dict)  # leaf -> shape, dtype
    receipt: dict[str, str] = field(default_factory=dict)  # leaf -> `chomp.checkpoint.receipt`
    next_batches: list[str] = field(default_factory=list)  # hashes; none where data is a stream
    state_files: dict[str, int] = field(default_factory=dict)  # name below state/ -> bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of all array files together."""
        return sum(self.state_files.values())


_ADAPTER = TypeAdapter(CheckpointMetadata)


def metadata_to_json(metadata: CheckpointMetadata) -> dict[str, Any]:
    """The metadata as its file holds it."""
    return signed(asdict(metadata))


def signed(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a metadata file with the hash of them all."""
    return {**fields, _OWN_HASH: _hash_of(fields)}


def metadata_from_json(value: Any) -> CheckpointMetadata:
    """The metadata in a JSON value; a `ValueError` says in one line what is wrong with it."""
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    value = dict(value)
    own_hash = value.pop(_OWN_HASH, None)
    # A flipped byte may hit `format` too: where the hash agrees, somebody meant it.
    is_whole = own_hash == _hash_of(value)
    if value.get("format", 1) != FORMAT and (is_whole or own_hash is None):
        found = value.get("format", 1)
        raise OtherFormat(f"it has format {found!r}, and this version of chomp reads {FORMAT}")
    if not is_whole:
        raise ValueError(f"it is not as it was written: {_OWN_HASH} says otherwise")
    try:
        # By way of text: pydantic's strict mode takes a mapping for a dataclass only from there.
        return _ADAPTER.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        told = (f"{'.'.join(map(str, e['loc'])) or 'it'}: {e['msg']}" for e in error.errors())
        raise ValueError("; ".join(told)) from error


def _hash_of(fields: dict[str, Any]) -> str:
    text = json_text(fields, name="metadata.json", indent=None, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
