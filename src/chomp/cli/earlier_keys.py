"""Keys that the first chomp's YAML files have, and what has become of each.

Where a field means the same, the key is taken for it; where the thing is done another way, the
message names that. What a field itself can say, by `setting(aliases=..., also=...)`, is not here,
nor are keys that a template's own config has: those are always the template's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Moved:
    """A key whose value belongs to another field; `values` translates it where it needs that."""

    to: str
    values: Mapping[Any, Any] | None = None
    is_null_left_out: bool = False  # null asked for the default


@dataclass(frozen=True)
class Fixed:
    """A key of which only the one value is taken that says what is done here anyway."""

    value: Any
    here: str
    use: str
    harmless: tuple[Any, ...] = ()  # the first chomp's default, which nobody asked for


@dataclass(frozen=True)
class Replaced:
    """A key that is refused: what is done here, and what to use."""

    here: str
    use: str = "remove it"
    harmless: tuple[Any, ...] = ()  # the first chomp's default, which changes nothing here


Rule = Moved | Fixed | Replaced

_CACHE = Replaced(
    "a cache is made for the text that is asked for, and is as long as it needs to be",
    "use --max-tokens of `chomp generate`, or samples.max_tokens",
)
_COMPONENT = "data.components.NAME"

RULES: dict[str, Rule] = {
    "model.backend": Replaced(
        "a template is the model and its training loop",
        "write template: megalodon, or base, or a folder, at the top level",
    ),
    "model.d_model": Replaced(
        "there is no dummy model",
        "use the width of the template's own model, such as model.model_dim or model.hidden_dim",
        harmless=(128,),
    ),
    "model.max_cache_len": _CACHE,
    "model.cache_unbounded": _CACHE,
    "model.max_positions": Replaced(
        "positions are computed and need no table",
        "use train.seq_len, and model.max_seq_len where the template has one",
    ),
    "model.gemm_backend": Replaced(
        "XLA chooses how matrices are multiplied",
        "use train.precision for their dtype, and XLA_FLAGS for XLA itself",
    ),
    "model.pad_token_id": Replaced(
        "padding has no token: it has the segment -1 and the weight 0", harmless=(0,)
    ),
    "model.use_checkpoint": Moved("model.remat", {True: "block", False: "none"}),
    "model.accum_dtype": Fixed(
        "float32", "losses and gradients are added up in float32", "remove it"
    ),
    "model.softmax_dtype": Fixed("float32", "a softmax is computed in float32", "remove it"),
    "data.seed": Moved("train.data_seed"),
    "data.repeat": Moved("data.stop_strategy", {True: "restart", False: "all_exhausted"}),
    "data.shuffle_buffer_size": Replaced(
        "all rows of a token store are permuted, without a buffer",
        f"use data.shuffle, or {_COMPONENT}.stream.window_documents for a stream",
        harmless=(10_000,),
    ),
    "data.max_retries": Replaced(
        "only a stream is read while a run trains",
        f"use {_COMPONENT}.stream.max_retries",
        harmless=(3,),
    ),
    "data.retry_delay_sec": Replaced(
        "only a stream is read while a run trains",
        f"use {_COMPONENT}.stream.retry_delay_s",
        harmless=(1.0,),
    ),
    "data.state_update_interval": Replaced(
        "a stream knows its exact position at every step", harmless=(2000,)
    ),
    "data.packing_buffer_docs": Replaced(
        "documents of a token store are packed once, all of them",
        f"use {_COMPONENT}.stream.window_documents for a stream",
        harmless=(128,),
    ),
    "data.packing_max_docs_per_bin": Moved(
        "data.packing.max_documents_per_row", is_null_left_out=True
    ),
    "data.max_eval_samples": Replaced(
        "held-out documents are evaluated by batches of rows",
        "use eval.max_eval_batches and eval.eval_batch_size",
        harmless=(1000,),
    ),
    "data.hf_eval_split": Fixed(
        None,
        "documents are held out by their hash, and never trained on",
        "use data.validation_fraction; another split is a component of weight 0",
    ),
    "data.grain_prefetch": Replaced(
        "up to 8 batches are made ahead of the step that needs them", harmless=(0,)
    ),
    "data.device_put": Replaced(
        "batches are placed on the devices ahead of the step",
        "remove it: mesh says where arrays lie",
    ),
    "data.tokenizer.hf_use_fast": Fixed(True, "a tokenizer is its tokenizer.json", "remove it"),
    "data.tokenizer.hf_trust_remote_code": Fixed(
        False, "code that comes with a tokenizer is never run", "use a tokenizer.json"
    ),
    "data.tokenizer.auto_set_special_tokens": Fixed(
        True,
        "special tokens are the tokenizer's own",
        "use data.tokenizer.eos and data.tokenizer.bos",
    ),
    "data.tokenizer.byte_offset": Fixed(
        0, "bytes are the ids 0 to 255, and 256 ends a document", "remove it"
    ),
    "data.tokenizer.add_bos": Fixed(
        False, "documents begin with the token that is named, if one is", "use data.tokenizer.bos"
    ),
    "data.tokenizer.add_eos": Fixed(
        True,
        "every document ends with its end token",
        "use data.train_on_eos=false to leave it out of the loss",
    ),
    "data.tokenizer.max_doc_tokens": Fixed(
        0,
        "documents are not cut, however long",
        "use data.packing.long_documents=truncate, which cuts them to rows",
        harmless=(None,),
    ),
    "train.jit": Replaced(
        "the step is always compiled",
        "set JAX_DISABLE_JIT=1 in the environment to run it operation by operation",
    ),
    "train.profile": Moved("train.profiler.enabled"),
    "train.profile_dir": Moved("train.log_dir"),
    "checkpoint.enabled": Fixed(
        True,
        "the state at the end is always saved",
        "use checkpoint.save_interval_s=null and checkpoint.save_every=null for that one alone",
    ),
    "checkpoint.root_dir": Fixed(
        None, "checkpoints lie in the run folder", "use --run-dir, which says where that is"
    ),
    "checkpoint.async_save": Fixed(
        True,
        "a run waits until its state is copied, and at its end until all is on disk",
        "use checkpoint.max_staged_bytes to bound the copy",
    ),
    "debug.nan_check": Moved("train.nonfinite_policy", {True: "raise", False: "skip"}),
    "debug.check_device_every": Replaced(
        "where arrays lie is part of the compiled step",
        "use mesh to say how they are cut",
        harmless=(100,),
    ),
}

# The one section that only the first chomp has: what is in it is known by the rules alone.
ONLY_EARLIER = "debug"

# Keys of which null asks for the default, where their fields have another word for that or none.
NULL_IS_DEFAULT = ("train.generate_temperature", "model.rope_base")

# Keys that say what is read, together; see earlier_data.py. With `-o` they are said by component.
OF_SOURCES: dict[str, str] = {
    "data.backend": "data.components.text.source={kind: ...}",
    "data.hf_dataset": "data.components.text.source.path",
    "data.hf_name": "data.components.text.source.name",
    "data.hf_split": "data.components.text.source.split",
    "data.text_key": "data.components.text.format.text_key",
    "data.local_text": "data.components.text.source.documents",
    "data.tokenizer.hf_name_or_path": "data.tokenizer.name",
    "data.tokenizer.vocab_size_multiple": "model.vocab_size",
    "model.bos_token_id": "data.tokenizer.bos",
    "model.eos_token_id": "data.tokenizer.eos",
    "model.param_dtype": "train.precision",
    "model.compute_dtype": "train.precision",
    "logging.run_dir": "--run-dir",
}
