"""Weights of a checkpoint as a folder that needs no chomp: safetensors, config, tokenizer.

    <out>/model.safetensors   the arrays, under dotted names; where they come from in the header
    <out>/config.json         the run's resolved config
    <out>/tokenizer/          as the run folder has it
    <out>/template/           the source of the model the names belong to
    <out>/README.md           how to read all this

The folder appears complete, by one rename, or not at all. Every array is compared with the
checkpoint's receipt before anything is written.
"""

import hashlib
import os
from dataclasses import dataclass
from typing import Literal

import numpy as np
from safetensors.numpy import save_file

from chomp.checkpoint.arrays import (
    AVERAGE,
    WEIGHTS,
    OnBytes,
    array_bytes,
    checked_arrays,
    within,
)
from chomp.checkpoint.format import DamagedCheckpoint, StepFolder, problem_with_files
from chomp.errors import CheckpointError, ConfigError, DataError, StorageError, require
from chomp.storage import (
    exists,
    is_folder,
    is_local,
    join,
    list_folder,
    make_folder,
    normalise,
    parent_of,
    read_bytes,
    remove_tree,
    rename_folder,
    write_bytes_atomic,
    write_json_atomic,
    write_text_atomic,
)
from chomp.storage.errors import storage_errors
from chomp.storage.files import MAX_JSON_BYTES
from chomp.storage.paths import temporary_beside
from chomp.tokenize import load_tokenizer

Weights = Literal["params", "ema"]
FloatType = Literal["float32", "bfloat16", "float16"]

MODEL_FILE = "model.safetensors"
_PREFIXES: dict[Weights, str] = {"params": WEIGHTS, "ema": AVERAGE}
_COPIED = ("tokenizer", "template")
_HASH_CHARACTERS = 12  # in messages
_README = """# Weights of {about.run_id}, step {about.step}

`model.safetensors` holds the {weights} of checkpoint step {about.step} \
({about.tokens_seen:,} tokens seen), \
{num_arrays} arrays of {dtypes}. Read it with the package safetensors:

    from safetensors.numpy import load_file  # safetensors.torch, safetensors.flax, ...
    arrays = load_file("model.safetensors")

A name is the path of a weight through the model's fields, joined by dots; a number is an index into
a list of layers. `template/model.py` is the source these fields are from: it says what each axis
is. `config.json` is the run's whole config, `tokenizer/` what made its tokens. The file's header
has the step, the run and a hash of the arrays' receipts.
"""


@dataclass(frozen=True, kw_only=True)
class Export:
    """What was written where, and what the run folder did not have."""

    path: str
    num_arrays: int
    num_bytes: int
    missing: tuple[str, ...]


def export_weights(
    found: StepFolder,
    out: str,
    *,
    run: str | None,
    weights: Weights = "params",
    dtype: FloatType | None = None,
    on_bytes: OnBytes | None = None,
) -> Export:
    """Write the weights of a checkpoint to the new folder `out`; takes memory for them once.

    `run` is the run folder that the tokenizer and the template are copied from. `dtype` None keeps
    what was saved, bit for bit; else floating-point arrays are rounded to it.
    """
    target, metadata = normalise(out), found.metadata
    fix = "export to a local folder, and copy it"
    require(is_local(target), f"--out {target}", allowed="a local folder", fix=fix)
    if exists(target):
        raise StorageError(
            f"{target} already exists",
            allowed="a new folder: an export never overwrites",
            fix="choose another --out, or remove the folder",
        )
    names = weight_names(found, weights)
    if (problem := problem_with_files(found)) is not None:
        raise DamagedCheckpoint(found.path, problem)
    tokenizer = None if run is None else join(run, "tokenizer")
    if tokenizer is not None and metadata.tokenizer_hash and is_folder(tokenizer):
        digest, saved = load_tokenizer(tokenizer).content_hash, metadata.tokenizer_hash
        if digest != saved:
            raise DataError(
                f"{tokenizer} has the hash {digest[:_HASH_CHARACTERS]}",
                allowed=f"the tokenizer that {found.path} was trained with, "
                f"{saved[:_HASH_CHARACTERS]}",
                fix="restore its files, or remove the folder to export the weights alone",
            )
    arrays = {
        name.removeprefix(_PREFIXES[weights]).replace("/", "."): _as_type(name, value, dtype)
        for name, value in checked_arrays(found, names, on_bytes=on_bytes)
    }
    num_bytes = sum(value.nbytes for value in arrays.values())
    receipts = "".join(f"{name} {metadata.receipt[name]}\n" for name in names)
    facts = ("step", "tokens_seen", "run_id", "attempt", "config_hash", "tokenizer_hash")
    header = {  # where the arrays come from, as safetensors takes it: text only
        "names": "dotted paths through the fields of template/model.py; numbers index layers",
        "weights": weights,
        **{name: str(getattr(metadata, name)) for name in facts},
        "receipts_sha256": hashlib.sha256(receipts.encode()).hexdigest(),
    }
    readme = _README.format(
        about=metadata,
        weights="averaged weights (EMA)" if weights == "ema" else "weights",
        num_arrays=len(arrays),
        dtypes=" and ".join(sorted({value.dtype.name for value in arrays.values()})),
    )
    make_folder(parent_of(os.path.abspath(target)))
    unfinished = temporary_beside(os.path.abspath(target))
    missing = []
    try:
        make_folder(unfinished)
        _write_safetensors(join(unfinished, MODEL_FILE), arrays, header)
        write_json_atomic(join(unfinished, "config.json"), metadata.config)
        for name in _COPIED:
            source = None if run is None else join(run, name)
            if source is None or not is_folder(source):
                missing.append(name)
                continue
            make_folder(join(unfinished, name))
            for file in list_folder(source):
                if not is_folder(join(source, file)):
                    content = read_bytes(join(source, file), max_bytes=MAX_JSON_BYTES)
                    write_bytes_atomic(join(unfinished, name, file), content)
        write_text_atomic(join(unfinished, "README.md"), readme)
        rename_folder(unfinished, target)
    finally:
        remove_tree(unfinished)
    return Export(path=target, num_arrays=len(arrays), num_bytes=num_bytes, missing=tuple(missing))


def weight_names(found: StepFolder, weights: Weights) -> list[str]:
    """The names of the arrays that an export reads; `CheckpointError` if there are none."""
    if names := list(within(found.metadata.arrays, _PREFIXES[weights])):
        return names
    allowed, fix = "a checkpoint of a training state", "choose another checkpoint"
    if weights == "ema":
        allowed, fix = "a checkpoint of a run with trainer.ema_beta", "use --weights params"
    given = f"{found.path} has no arrays under {_PREFIXES[weights]}"
    raise CheckpointError(given, allowed=allowed, fix=fix)


def weight_bytes(found: StepFolder, weights: Weights) -> int:
    """Bytes that an export reads."""
    return sum(array_bytes(found, name) for name in weight_names(found, weights))


def _write_safetensors(path: str, arrays: dict[str, np.ndarray], header: dict[str, str]) -> None:
    # By the package, not by `chomp.storage`: that would need a second copy of the weights.
    with storage_errors(path, "write"):
        try:
            save_file(arrays, path, metadata=header)
            descriptor = os.open(path, os.O_RDONLY)
            try:
                # The package makes files that only their owner may read.
                os.fchmod(descriptor, os.stat(parent_of(path)).st_mode & 0o666)
                os.fsync(descriptor)  # the folder's rename must not overtake what it holds
            finally:
                os.close(descriptor)
        except Exception as error:
            # safetensors has an exception of its own for a full disk.
            raise error if isinstance(error, OSError) else OSError(str(error)) from error


def _as_type(name: str, value: np.ndarray, dtype: FloatType | None) -> np.ndarray:
    """The array in C order, in another floating-point type if one is asked for."""
    value = np.ascontiguousarray(value).reshape(value.shape)
    # Not by numpy's own kinds: bfloat16 is none of them.
    if dtype is None or "float" not in value.dtype.name:
        return value
    with np.errstate(over="ignore"):  # told below, with the name
        cast = value.astype(np.dtype(dtype))
    if not np.isfinite(cast).all():
        largest = np.abs(value.astype(np.float32)).max(initial=0)
        raise ConfigError(
            f"--dtype {dtype}, but {name} has values up to {largest:.3g}",
            allowed="a dtype that can hold every weight",
            fix="choose bfloat16 or float32",
        )
    return cast
