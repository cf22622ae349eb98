"""Keys that config files of the first chomp have and configs here do not, with what replaces each.

They are refused like any unknown key, with the hint. `scripts/convert_chomp_yaml.py` converts a
file. Keys that still work are aliases: beside their fields, or in `load_config.ALIASES`.
"""

from collections.abc import Sequence

from chomp.errors import ConfigError

_STREAM = "data.components.NAME.stream"
_GENERATE = "use --max-tokens of `chomp generate`, or samples.max_tokens"
_REMOVE = "remove it"
_ALLOWED = "the keys in docs/references/config.md"

HINTS: dict[str, str] = {
    "model.backend": "write template: megalodon, or base, at the top level",
    "model.d_model": "use the width of the template's own model, such as model.hidden_dim",
    "model.max_cache_len": _GENERATE,
    "model.cache_unbounded": _GENERATE,
    "model.max_positions": "use train.seq_len, and model.max_seq_len where the template has one",
    "model.gemm_backend": "use train.precision for the dtype of products, XLA_FLAGS for XLA itself",
    "model.pad_token_id": f"{_REMOVE}: padding has no token, but the segment -1 and the weight 0",
    "model.bos_token_id": "use data.tokenizer.bos",
    "model.eos_token_id": "use data.tokenizer.eos",
    "model.param_dtype": "use train.precision, as in params=float32",
    "model.compute_dtype": "use train.precision, as in compute=bfloat16",
    "model.accum_dtype": f"{_REMOVE}: losses and gradients are summed in float32",
    "model.softmax_dtype": f"{_REMOVE}: a softmax is computed in float32",
    "data.backend": "use data.components.NAME.source={kind: hf} or another kind",
    "data.hf_dataset": "use data.components.NAME.source.path",
    "data.hf_name": "use data.components.NAME.source.name",
    "data.hf_split": "use data.components.NAME.source.split",
    "data.hf_eval_split": "use data.validation: {NAME: {source: {kind: hf, split: validation}}}",
    "data.text_key": "use data.components.NAME.format.text_key",
    "data.local_text": "use data.components.NAME.source={kind: memory, documents: [...]}",
    "data.repeat": "use data.stop_strategy: restart or all_exhausted",
    "data.shuffle_buffer_size": f"use data.shuffle, or {_STREAM}.window_documents for a stream",
    "data.max_retries": f"use {_STREAM}.max_retries",
    "data.retry_delay_sec": f"use {_STREAM}.retry_delay_s",
    "data.state_update_interval": f"{_REMOVE}: a stream knows its exact position at every step",
    "data.packing_buffer_docs": f"{_REMOVE}; for a stream use {_STREAM}.window_documents",
    "data.packing_max_docs_per_bin": "use data.packing.max_documents_per_row",
    "data.max_eval_samples": "use eval.max_eval_batches and eval.eval_batch_size",
    "data.grain_prefetch": f"{_REMOVE}: up to 8 batches are made ahead of the step",
    "data.device_put": f"{_REMOVE}: mesh says where arrays lie",
    "data.tokenizer.hf_name_or_path": "use data.tokenizer={kind: hub, name: ...}, or kind: json",
    "data.tokenizer.hf_use_fast": f"{_REMOVE}: a tokenizer is its tokenizer.json",
    "data.tokenizer.hf_trust_remote_code": f"{_REMOVE}: code of a tokenizer is never run",
    "data.tokenizer.vocab_size_multiple": "round model.vocab_size up yourself",
    "data.tokenizer.auto_set_special_tokens": "use data.tokenizer.eos and data.tokenizer.bos",
    "data.tokenizer.byte_offset": f"{_REMOVE}: bytes are the ids 0 to 255, 256 ends a document",
    "data.tokenizer.add_bos": "use data.tokenizer.bos",
    "data.tokenizer.add_eos": "use data.train_on_eos=false to leave the end out of the loss",
    "data.tokenizer.max_doc_tokens": "use data.packing.long_documents=truncate",
    "train.jit": "set JAX_DISABLE_JIT=1 in the environment to run without compiling",
    "train.profile": "use train.profiler.enabled",
    "train.profile_dir": "use train.log_dir",
    "checkpoint.enabled": "use checkpoint.save_interval_s=null and checkpoint.save_every=null",
    "checkpoint.root_dir": "use --run-dir: checkpoints lie in the run folder",
    "checkpoint.async_save": f"{_REMOVE}; checkpoint.max_staged_bytes bounds the copy in memory",
    "logging.run_dir": "use --run-dir",
    "debug.check_device_every": f"{_REMOVE}: the compiled step decides where arrays lie",
}


def legacy_keys_error(names: Sequence[str], *, source: str) -> ConfigError:
    """The error for such keys of a file or an override, with what replaces each."""
    problems = [
        ConfigError(
            f"{source}: {name} is not a known key, but one of the first chomp",
            allowed=_ALLOWED,
            fix=f"{HINTS[name]}; scripts/convert_chomp_yaml.py converts a whole file",
        )
        for name in names
    ]
    if len(problems) == 1:
        return problems[0]
    listed = "".join(f"  - {name}: {HINTS[name]}\n" for name in names)
    return ConfigError(
        f"{source}: {len(names)} unknown keys, which the first chomp had:\n{listed}",
        allowed=_ALLOWED,
        fix=f"convert the file: python scripts/convert_chomp_yaml.py {source} > new.yaml",
        problems=problems,
    )
