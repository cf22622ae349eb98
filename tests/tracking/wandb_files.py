"""What an offline W&B run left on disk, read from its log by the layout that the file has."""

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

_BLOCK_BYTES = 32768
_FILE_HEADER_BYTES = 7
_FULL, _LAST = 1, 4


@dataclass
class OfflineRun:
    """The records of one attempt."""

    run_id: str = ""
    name: str = ""
    project: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    artifacts: list[tuple[str, str]] = field(default_factory=list)  # type and name
    digests: dict[str, str] = field(default_factory=dict)  # of files in artifacts: MD5 in base 64
    step_axes: dict[str, str] = field(default_factory=dict)
    exit_code: int | None = None


def offline_runs(wandb_dir: Path) -> list[OfflineRun]:
    """Every attempt under `<wandb_dir>/wandb`, in the order they were made."""
    logs = sorted(
        wandb_dir.glob("wandb/offline-run-*/run-*.wandb"), key=lambda p: p.stat().st_mtime
    )
    return [_run_of(log.read_bytes()) for log in logs]


def _run_of(content: bytes) -> OfflineRun:
    run = OfflineRun()
    for data in _records(content):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        _take(run, record.WhichOneof("record_type"), record)
    return run


def _take(run: OfflineRun, kind: str | None, record: Any) -> None:
    if kind == "run":
        run.run_id, run.name = record.run.run_id, record.run.display_name
        run.project, run.tags = record.run.project, list(record.run.tags)
        run.config |= _items(record.run.config.update)
    elif kind == "history":
        run.rows.append(_items(record.history.item))
    elif kind == "summary":
        run.summary |= _items(record.summary.update)
    elif kind == "artifact":
        run.artifacts.append((record.artifact.type, record.artifact.name))
        run.digests |= {file.path: file.digest for file in record.artifact.manifest.contents}
    elif kind == "metric":
        run.step_axes[record.metric.glob_name or record.metric.name] = record.metric.step_metric
    elif kind == "exit":
        run.exit_code = record.exit.exit_code


def _items(items: Any) -> dict[str, Any]:
    keys = ("/".join(item.nested_key) or item.key for item in items)
    return {key: json.loads(item.value_json) for key, item in zip(keys, items, strict=True)}


def _records(content: bytes) -> list[bytes]:
    records, parts, at = [], b"", _FILE_HEADER_BYTES
    while at + 7 <= len(content):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (_FULL, _LAST):
            records.append(parts)
            parts = b""
    return records
