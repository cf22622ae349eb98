"""Every key of the first chomp's files means a field, or is refused with what replaces it."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from chomp.cli.earlier_keys import OF_SOURCES, RULES, Moved
from chomp.cli.evaluated_config import require_evaluated
from chomp.cli.own_config import own_config, with_own_overrides
from chomp.cli.own_spelling import own_content
from chomp.cli.rounded_vocabulary import with_rounded_vocabulary
from chomp.config import config_from_mapping, config_to_mapping
from chomp.errors import ConfigError
from chomp.tokenize import train_bpe
from experiments.grug.base.launch import GrugBaseLaunchConfig
from experiments.grug.megalodon.launch import GrugMegalodonLaunchConfig

HF = {"data": {"backend": "hf", "hf_dataset": "a/b"}}
HUB = {"data": {"tokenizer": {"kind": "hf", "hf_name_or_path": "a/b"}}}
OWN_IDS: dict[str, Any] = copy.deepcopy(HUB)  # of the file, in the place of the tokenizer's
OWN_IDS["data"]["tokenizer"] |= {"auto_set_special_tokens": False, "add_bos": True}
MUON = {"optim": {"name": "muon"}}
PACKED = {"data": {"packing_mode": "bin"}}
TEXT = {"data": {"local_text": "text"}}
OF_TEXT = "data.components.text"

# Key -> a value, the field that it means, the field's value then, and what else the file has.
TAKEN: dict[str, tuple[Any, str, Any, dict[str, Any]]] = {
    "model.vocab_size": (300, "model.vocab_size", 300, {}),
    "model.num_layers": (3, "model.num_layers", 3, {}),
    "model.num_heads": (16, "model.num_heads", 16, {}),
    "model.use_checkpoint": (True, "model.remat", "block", {}),
    "model.bos_token_id": (3, "data.tokenizer.bos", 3, OWN_IDS),
    "model.eos_token_id": (4, "data.tokenizer.eos", 4, OWN_IDS),
    "model.param_dtype": ("bfloat16", "trainer.precision", "params=bfloat16", {}),
    "model.compute_dtype": ("bfloat16", "trainer.precision", "compute=bfloat16", {}),
    "data.backend": ("hf", f"{OF_TEXT}.source.kind", "hf", HF),
    "data.hf_dataset": ("a/b", f"{OF_TEXT}.source.path", "a/b", {}),
    "data.hf_name": ("sample", f"{OF_TEXT}.source.name", "sample", HF),
    "data.hf_split": ("test", f"{OF_TEXT}.source.split", "test", HF),
    "data.text_key": ("body", f"{OF_TEXT}.format.text_key", "body", HF),
    "data.shuffle": (False, "data.shuffle", False, {}),
    "data.shuffle_buffer_size": (9, f"{OF_TEXT}.stream.window_documents", 9, HF),
    "data.seed": (5, "trainer.data_seed", 5, {}),
    "data.repeat": (False, "data.stop_strategy", "all_exhausted", {}),
    "data.max_retries": (7, f"{OF_TEXT}.stream.max_retries", 7, HF),
    "data.retry_delay_sec": (2.5, f"{OF_TEXT}.stream.retry_delay_s", 2.5, HF),
    "data.local_text": ("a text", f"{OF_TEXT}.source.documents", ["a text"], {}),
    "data.packing_mode": ("bin", "data.packing_mode", "packed", {}),
    "data.packing_max_docs_per_bin": (6, "data.packing.max_documents_per_row", 6, PACKED),
    "data.mask_boundary_loss": (False, "data.mask_boundary_loss", False, {}),
    "data.train_on_eos": (False, "data.train_on_eos", False, {}),
    "data.max_eval_samples": (8, f"{OF_TEXT}.stream.max_validation_documents", 8, HF),
    "data.tokenizer": ({"kind": "byte"}, "data.tokenizer.kind", "byte", {}),
    "data.tokenizer.kind": ("hf", "data.tokenizer.kind", "hub", HUB),
    "data.tokenizer.hf_name_or_path": ("c/d", "data.tokenizer.name", "c/d", HUB),
    "train.seed": (3, "trainer.seed", 3, {}),
    "train.steps": (9, "trainer.steps", 9, {}),
    "train.batch_size": (4, "trainer.batch_size", 4, {}),
    "train.seq_len": (16, "trainer.seq_len", 16, {}),
    "train.grad_accum": (2, "trainer.grad_accum", 2, {}),
    "train.deterministic": (True, "trainer.deterministic", True, {}),
    "train.log_every": (7, "trainer.log_every", 7, {}),
    "train.eval_every": (0, "eval.steps_per_eval", None, {}),
    "train.generate_every": (50, "samples.every", 50, {}),
    "train.generate_input_len": (12, "samples.prompt_tokens", 12, {}),
    "train.generate_max_tokens": (13, "samples.max_tokens", 13, {}),
    "train.generate_temperature": (None, "samples.temperature", 1.0, {}),
    "train.generate_top_k": (None, "samples.top_k", None, {}),
    "train.generate_top_p": (0.5, "samples.top_p", 0.5, {}),
    "train.allow_cpu": (False, "mesh.allow_cpu", False, {}),
    "train.profile": (True, "trainer.profiler.enabled", True, {}),
    "train.profile_dir": ("traces", "trainer.log_dir", "traces", {}),
    "optim.name": ("muon", "optimizer.name", "muon", {}),
    "optim.lr": (3e-3, "optimizer.lr", 3e-3, {}),
    "optim.weight_decay": (0.2, "optimizer.weight_decay", 0.2, {}),
    "optim.grad_clip_norm": (0, "optimizer.grad_clip_norm", 0.0, {}),
    "optim.warmup_steps": (5, "optimizer.warmup_steps", 5, {}),
    "optim.decay_steps": (50, "optimizer.decay_steps", 50, {}),
    "optim.min_lr_ratio": (0.1, "optimizer.min_lr_ratio", 0.1, {}),
    "optim.muon": ({"ns_steps": 4}, "optimizer.muon.ns_steps", 4, MUON),
    "optim.adam": ({"b1": 0.8}, "optimizer.adam.b1", 0.8, {}),
    "optim.muon.lr_scale": (50.0, "optimizer.muon.lr_scale", 50.0, MUON),
    "optim.muon.weight_decay_mult": (0.5, "optimizer.muon.weight_decay_mult", 0.5, MUON),
    "optim.muon.momentum": (0.9, "optimizer.muon.momentum", 0.9, MUON),
    "optim.muon.ns_steps": (4, "optimizer.muon.ns_steps", 4, MUON),
    "optim.muon.nesterov": (False, "optimizer.muon.nesterov", False, MUON),
    "optim.muon.consistent_rms": (0.2, "optimizer.muon.consistent_rms", 0.2, MUON),
    "optim.muon.allow_all_2d": (True, "optimizer.muon.allow_all_2d", True, MUON),
    "optim.muon.allow_tied_embed": (True, "optimizer.muon.allow_tied_embed", True, MUON),
    "optim.adam.b1": (0.8, "optimizer.adam.b1", 0.8, {}),
    "optim.adam.b2": (0.9, "optimizer.adam.b2", 0.9, {}),
    "optim.adam.eps": (1e-6, "optimizer.adam.eps", 1e-6, {}),
    "optim.adam.nesterov": (True, "optimizer.adam.nesterov", True, {}),
    "checkpoint.save_every": (500, "checkpoint.every", 500, {}),
    "checkpoint.max_to_keep": (3, "checkpoint.keep_permanent", 3, {}),
    "logging.project": ("mine", "logging.project", "mine", {}),
    "logging.metrics_file": ("m.jsonl", "logging.metrics_file", "m.jsonl", {}),
    "logging.level": ("DEBUG", "logging.level", "DEBUG", {}),
    "logging.console_use_rich": (False, "logging.console_use_rich", False, {}),
    "logging.log_file": (None, "logging.log_file", None, {}),
    "logging.wandb": ({"enabled": False}, "logging.wandb.enabled", False, {}),
    "logging.wandb.enabled": (True, "logging.wandb.enabled", True, {}),
    "logging.wandb.project": ("p", "logging.wandb.project", "p", {}),
    "logging.wandb.entity": ("e", "logging.wandb.entity", "e", {}),
    "logging.wandb.run_name": ("r", "logging.wandb.run_name", "r", {}),
    "logging.wandb.mode": ("offline", "logging.wandb.mode", "offline", {}),
    "logging.wandb.tags": (["a", "b"], "logging.wandb.tags", ["a", "b"], {}),
    "debug.nan_check": (False, "trainer.nonfinite_policy", "skip", {}),
}

# Key -> a value that only says what is done anyway, one that is refused, and words of the refusal.
FIXED: dict[str, tuple[Any, Any, str]] = {
    "model.accum_dtype": ("float32", "bfloat16", "added up in float32"),
    "model.softmax_dtype": ("float32", "bfloat16", "computed in float32"),
    "data.hf_eval_split": (None, "test", "data.validation_fraction"),
    "data.tokenizer.hf_use_fast": (True, False, "tokenizer.json"),
    "data.tokenizer.hf_trust_remote_code": (False, True, "never run"),
    "data.tokenizer.auto_set_special_tokens": (True, False, "data.tokenizer.eos"),
    "data.tokenizer.byte_offset": (0, 3, "256 ends a document"),
    "data.tokenizer.add_bos": (False, True, "data.tokenizer.bos"),
    "data.tokenizer.add_eos": (True, False, "data.train_on_eos=false"),
    "data.tokenizer.max_doc_tokens": (None, 512, "data.packing.long_documents=truncate"),
    "checkpoint.enabled": (True, False, "checkpoint.save_interval_s=null"),
    "checkpoint.root_dir": (None, "elsewhere", "--run-dir"),
    "checkpoint.async_save": (True, False, "checkpoint.max_staged_bytes"),
}

# Key -> a value, and what its refusal names.
REFUSED: dict[str, tuple[Any, str]] = {
    "model.backend": ("megalodon", "template: megalodon"),
    "model.d_model": (64, "model.hidden_dim"),
    "model.max_cache_len": (64, "--max-tokens"),
    "model.cache_unbounded": (True, "--max-tokens"),
    "model.max_positions": (4096, "train.seq_len"),
    "model.gemm_backend": ("other", "train.precision"),
    "model.pad_token_id": (3, "segment -1"),
    "data.state_update_interval": (7, "exact position"),
    "data.packing_buffer_docs": (64, "stream.window_documents"),
    "data.grain_prefetch": (2, "8 batches"),
    "data.device_put": (True, "mesh says where arrays lie"),
    "train.jit": (False, "JAX_DISABLE_JIT=1"),
    "debug.check_device_every": (1, "mesh"),
}

# Keys that are refused whatever their value, even the first chomp's default -> that default.
ALWAYS_REFUSED: dict[str, Any] = {
    "model.backend": "megalodon",
    "model.max_cache_len": None,
    "model.cache_unbounded": False,
    "model.max_positions": 1_000_000,
    "model.gemm_backend": "default",
    "data.device_put": False,
    "train.jit": True,
}

# The first chomp's defaults of keys without a field of their own, as a file may write them out.
DEFAULTS: dict[str, Any] = {
    "model": {
        "d_model": 128,
        "rope_base": None,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "accum_dtype": "float32",
        "softmax_dtype": "float32",
    },
    "data": {
        "backend": "local_text",
        "hf_dataset": "Zyphra/Zyda-2",
        "hf_name": "sample-100BT",
        "hf_split": "train",
        "text_key": "text",
        "hf_eval_split": None,
        "shuffle_buffer_size": 10_000,
        "repeat": True,
        "max_retries": 3,
        "retry_delay_sec": 1,
        "state_update_interval": 2000,
        "packing_mode": "sequential",
        "packing_buffer_docs": 128,
        "packing_max_docs_per_bin": None,
        "grain_prefetch": 0,
        "max_eval_samples": 1000,
        "tokenizer": {
            "hf_name_or_path": "pszemraj/bytebpe-tokenizer-32k-mlm",
            "hf_use_fast": True,
            "hf_trust_remote_code": False,
            "vocab_size_multiple": 128,
            "auto_set_special_tokens": True,
            "byte_offset": 0,
            "add_bos": False,
            "add_eos": False,
            "max_doc_tokens": None,
        },
    },
    "train": {
        "eval_every": 2500,
        "generate_temperature": None,
        "profile": False,
        "profile_dir": None,
    },
    "checkpoint": {"enabled": True, "root_dir": None, "async_save": True},
    "logging": {"run_dir": None},
    "debug": {"nan_check": True, "check_device_every": 100},
}

# What only Megalodon has is a field of its template; here with another value than its default.
MEGALODONS_OWN: dict[str, Any] = {
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "hidden_dropout": 0.1,
    "model_dim": 512,
    "z_dim": 128,
    "value_dim": 512,
    "ffn_hidden_dim": 640,
    "cema_ndim": 8,
    "chunk_size": 32,
    "norm_num_groups": 8,
    "norm_eps": 1e-6,
    "rope_base": 5000.0,
    "swiglu": True,
    "rescale_nffn": True,
    "scale_emb": True,
    "norm_affine": False,
    "init_mode": "bert",
    "output_size": 384,
}


def merged(key: str, value: Any, around: dict[str, Any]) -> dict[str, Any]:
    """The content of a file with one key, and what goes with it."""
    content: dict[str, Any] = copy.deepcopy(around)
    content.setdefault("model", {}).setdefault("vocab_size", 300)
    *sections, name = key.split(".")
    here = content
    for section in sections:
        here = here.setdefault(section, {})
    here[name] = value
    return content


def parsed(content: dict[str, Any], cls: type = GrugBaseLaunchConfig) -> dict[str, Any]:
    """The launch config that a file means, of base unless told otherwise, as plain data."""
    said = own_content(cls, content, source="a file")
    return config_to_mapping(config_from_mapping(cls, said.config))


def at(mapping: Any, path: str) -> Any:
    for part in path.split("."):
        mapping = mapping[part]
    return mapping


def test_the_tables_name_every_key_once():
    keys = [*TAKEN, *FIXED, *REFUSED, *(f"model.{name}" for name in MEGALODONS_OWN)]
    # Less the two that say something beside the config: where a run goes, how sizes are rounded.
    apart = {"logging.run_dir", "data.tokenizer.vocab_size_multiple"}
    assert len(keys) == len(set(keys)) == 127 - len(apart)
    assert {*RULES, *OF_SOURCES} - apart <= set(keys)


@pytest.mark.parametrize("key", TAKEN)
def test_a_key_is_taken_for_the_field_that_means_the_same(key: str):
    value, field, meant, around = TAKEN[key]
    assert at(parsed(merged(key, value, around)), field) == meant


@pytest.mark.parametrize("key", FIXED)
def test_a_key_without_a_field_is_taken_where_it_says_what_is_done_anyway(key: str):
    fine, wrong, words = FIXED[key]
    assert parsed(merged(key, fine, {})) == parsed({"model": {"vocab_size": 300}, **_empty(key)})
    with pytest.raises(ConfigError) as caught:
        parsed(merged(key, wrong, {}))
    for part in (key, words, "Allowed: ", "Fix: ", "a file: "):
        assert part in str(caught.value)


def _empty(key: str) -> dict[str, Any]:
    """The sections of a key, which have their own defaults once they are there."""
    *sections, _ = key.split(".")
    found: Any = {"vocab_size": 300} if sections == ["model"] else {}
    for section in reversed(sections):
        found = {section: found}
    return found


@pytest.mark.parametrize("key", REFUSED)
def test_a_key_that_was_replaced_is_refused_with_what_replaces_it(key: str):
    value, words = REFUSED[key]
    with pytest.raises(ConfigError) as caught:
        parsed(merged(key, value, {}))
    for part in (f"{key} is no key here", words, "Allowed: ", "Fix: "):
        assert part in str(caught.value)


@pytest.mark.parametrize("cls", [GrugBaseLaunchConfig, GrugMegalodonLaunchConfig])
@pytest.mark.parametrize("key", ALWAYS_REFUSED)
def test_a_key_without_any_meaning_here_is_refused_even_with_its_default(key: str, cls: type):
    value, words = ALWAYS_REFUSED[key], REFUSED[key][1]
    with pytest.raises(ConfigError) as caught:
        parsed(merged(key, value, {}), cls)
    assert f"{key} is no key here. Allowed: nothing, since" in str(caught.value)
    assert words in str(caught.value).partition("Fix: ")[2]
    with pytest.raises(ConfigError, match=f"{key} is no key here"):
        with_own_overrides(cls(), [f"{key}={str(value).lower()}"])


@pytest.mark.parametrize("name", MEGALODONS_OWN)
def test_what_is_megalodons_own_is_a_field_of_its_template(name: str):
    content = merged(f"model.{name}", MEGALODONS_OWN[name], {})
    found = parsed(content, GrugMegalodonLaunchConfig)["model"]
    assert found[name] == MEGALODONS_OWN[name]
    default = parsed({"model": {"vocab_size": 300}}, GrugMegalodonLaunchConfig)["model"]
    assert {key for key in found if found[key] != default[key]} == {name}


def test_a_null_that_asked_for_the_default_gives_it():
    without = parsed({"model": {"vocab_size": 300}}, GrugMegalodonLaunchConfig)
    assert parsed(merged("model.rope_base", None, {}), GrugMegalodonLaunchConfig) == without


def test_the_folder_of_a_run_may_stand_in_the_file():
    content = merged("logging.run_dir", "runs/mine", {})
    said = own_content(GrugBaseLaunchConfig, content, source="a file")
    assert (said.run_dir, said.config["logging"]) == ("runs/mine", {})
    with pytest.raises(ConfigError, match=r"logging.run_dir=3\. Allowed: .*--run-dir"):
        own_content(GrugBaseLaunchConfig, merged("logging.run_dir", 3, {}), source="a file")


def test_all_problems_of_a_file_come_at_once():
    content = merged("train.jit", False, merged("debug.check_device_every", 1, {}))
    content |= {"data": {"backend": "parquet", "tokenizer": {"hf_name_or_path": "a/b"}}}
    content["logging"] = {"run_dir": 3}
    with pytest.raises(ConfigError, match="a file: 5 problems"):
        parsed(content)


@pytest.mark.parametrize("cls", [GrugBaseLaunchConfig, GrugMegalodonLaunchConfig])
def test_defaults_of_the_first_chomp_that_are_written_out_change_nothing(cls: type):
    small: dict[str, Any] = {
        "model": {"vocab_size": 384},
        "data": {"local_text": "text", "tokenizer": {"kind": "byte"}},
        "train": {"steps": 100},
        "checkpoint": {},
        "logging": {},
    }
    full = {section: {**small.get(section, {}), **DEFAULTS[section]} for section in DEFAULTS}
    full["data"]["tokenizer"] = {"kind": "byte", **DEFAULTS["data"]["tokenizer"]}
    assert parsed(full, cls) == parsed(small, cls)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"data": {"seed": 1}, "train": {"data_seed": 1}}, "data.seed and train.data_seed are the"),
        ({"data": {"seed": 1}, "trainer": {"data_seed": 2}}, "are the same field"),
        ({"debug": {"nan_check": "often"}}, "debug.nan_check='often'"),
        ({"data": {"backend": "hf"}}, "data.backend=hf without data.hf_dataset"),
        ({"data": {"backend": "parquet"}}, "data.backend='parquet'"),
        ({"data": {"hf_dataset": "a", "local_text": "b", "backend": "hf"}}, "does not read it"),
        ({"data": {"local_text": "b", "components": {}}}, "data.local_text with data.components"),
        ({**TEXT, "train": {"eval_every": 9}}, "train.eval_every=9 with data.local_text"),
        ({**TEXT, "eval": {"max_eval_batches": 2}}, "eval with data.local_text"),
        (
            {"data": {"tokenizer": {"kind": "byte", "hf_name_or_path": "tokenizer.json"}}},
            "data.tokenizer.hf_name_or_path='tokenizer.json' with data.tokenizer.kind=byte",
        ),
        (
            {
                "model": {"vocab_size": 300, "eos_token_id": 5},
                "data": {"tokenizer": {"kind": "byte"}},
            },
            "model.eos_token_id=5 with data.tokenizer.kind=byte",
        ),
        (
            {
                "model": {"vocab_size": 300, "compute_dtype": "bfloat16"},
                "train": {"precision": "compute=float32"},
            },
            ": model.compute_dtype and train.precision are the same field",
        ),
        ({"data": {"max_retries": 5}}, "data.components.NAME.stream.max_retries"),
        ({"debug": {"nan_chek": True}}, "debug.nan_chek is not a known key (did you mean"),
        ({"debug": {"foo": 1}}, "the keys of debug: debug.nan_check, debug.check_device_every"),
        ({"debug": 3}, "debug is not a known key"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(content: dict[str, Any], words: str):
    with pytest.raises(ConfigError) as caught:
        parsed({"model": {"vocab_size": 300}, **content})
    assert words in str(caught.value)
    assert "Fix: " in str(caught.value)


def test_a_tokenizer_in_a_folder_is_its_file(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text("{}")
    tokenizer = {"kind": "hf", "hf_name_or_path": str(tmp_path)}
    found = parsed(merged("data.tokenizer", tokenizer, {}))["data"]["tokenizer"]
    assert (found["kind"], found["file"]) == ("json", str(tmp_path / "tokenizer.json"))


IDS = {"bos_token_id": 1, "eos_token_id": 2}


def special_tokens(tokenizer: dict[str, Any], model: dict[str, Any] | None = None) -> list[Any]:
    """The `eos` and `bos` that a file of the first chomp comes to."""
    around = {"data": {"tokenizer": {"kind": "hf", "hf_name_or_path": "a/b", **tokenizer}}}
    found = parsed({"model": {"vocab_size": 300, **(IDS if model is None else model)}, **around})
    return [found["data"]["tokenizer"][key] for key in ("eos", "bos")]


@pytest.mark.parametrize(
    ("tokenizer", "model", "expected"),
    [
        ({"add_bos": False}, IDS, [None, None]),
        ({}, IDS, [None, None]),
        ({"auto_set_special_tokens": True, "eos": 7}, IDS, [7, None]),
        ({"auto_set_special_tokens": False}, IDS, [2, None]),
        ({"auto_set_special_tokens": False, "add_bos": True}, IDS, [2, 1]),
        ({"auto_set_special_tokens": False, "add_bos": True}, {}, [2, 1]),
        ({"add_bos": True, "bos": "<s>"}, IDS, [None, "<s>"]),
    ],
)
def test_a_document_begins_with_bos_only_where_a_file_adds_it(tokenizer, model, expected):
    assert special_tokens(tokenizer, model) == expected


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_the_special_tokens_of_a_tokenizers_own_folder_win(tmp_path: Path, file: str):
    (tmp_path / "tokenizer.json").write_text("{}")
    own = {"eos_token": {"content": "<end>", "special": True}, "bos_token": "<s>"}
    (tmp_path / file).write_text(json.dumps(own))
    folder = {"hf_name_or_path": str(tmp_path)}
    assert special_tokens(folder) == ["<end>", None]
    assert special_tokens({**folder, "add_bos": True}) == ["<end>", "<s>"]
    assert special_tokens({**folder, "auto_set_special_tokens": False}) == [2, None]


def test_special_tokens_that_a_file_does_not_settle_are_refused():
    for tokenizer, words in (
        ({"add_bos": True}, "data.tokenizer.bos"),
        ({"add_bos": "yes"}, "data.tokenizer.add_bos='yes'"),
        ({"auto_set_special_tokens": 1}, "data.tokenizer.auto_set_special_tokens=1"),
        ({"auto_set_special_tokens": False, "eos": 3}, "data.tokenizer.eos"),
    ):
        with pytest.raises(ConfigError) as caught:
            special_tokens(tokenizer)
        assert words in str(caught.value)
        assert "Fix: " in str(caught.value)


def test_an_id_that_the_tokenizers_own_replaces_is_said(caplog: pytest.LogCaptureFixture):
    assert special_tokens({}, {"eos_token_id": 5}) == [None, None]
    assert "model.eos_token_id=5" in caplog.text
    caplog.clear()
    special_tokens({}, IDS)  # the first chomp's defaults, which nobody asked for
    assert caplog.text == ""


def test_one_text_is_a_stream_that_nothing_is_held_out_of():
    found = parsed({"model": {"vocab_size": 300}, **TEXT})
    assert found["data"]["components"]["text"]["stream"] is not None
    assert found["data"]["validation_fraction"] < 1e-9
    assert found["eval"] is None


@pytest.mark.parametrize("key", [key for key, rule in RULES.items() if isinstance(rule, Moved)])
def test_an_override_of_a_key_that_moved_means_the_same_as_in_a_file(key: str):
    value, field, meant, around = TAKEN[key]
    said = own_content(GrugBaseLaunchConfig, merged("model.vocab_size", 300, around), source="f")
    config = config_from_mapping(GrugBaseLaunchConfig, said.config)
    text = f"{key}={str(value).lower() if isinstance(value, bool) else value}"
    assert at(config_to_mapping(with_own_overrides(config, [text])), field) == meant


def test_an_override_of_a_packing_key_keeps_what_the_file_says_of_packing():
    packing = {"packing_mode": "packed", "packing": {"long_documents": "truncate"}}
    for said in (packing, {}):
        content = {"model": {"vocab_size": 300}, "data": said}
        config = config_from_mapping(GrugBaseLaunchConfig, content)
        texts = ["data.packing_mode=bin", "data.packing_max_docs_per_bin=6"]
        found = config_to_mapping(with_own_overrides(config, texts))["data"]["packing"]
        default = {"long_documents": "split"}
        assert found == {**default, **said.get("packing", {}), "max_documents_per_row": 6}
        assert with_own_overrides(config, ["data.packing_max_docs_per_bin=null"]) == config


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("train.generate_temperature", 0.2, "samples.temperature"),
        ("trainer.generate_temperature", 0.2, "samples.temperature"),
        ("model.rope_base", 5000.0, "model.rope_base"),
    ],
)
def test_an_override_of_null_gives_the_default_as_in_a_file(key: str, value: Any, field: str):
    cls = GrugMegalodonLaunchConfig
    config = config_from_mapping(cls, merged(key, value, {}))
    changed = with_own_overrides(config, [f"{key}=null"])
    assert at(config_to_mapping(config), field) == value
    assert at(config_to_mapping(changed), field) == at(
        parsed({"model": {"vocab_size": 300}}, cls), field
    )
    base = GrugBaseLaunchConfig()
    assert with_own_overrides(base, ["model.rope_base=null"]) == base  # which has no such field


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train.jit=false", "JAX_DISABLE_JIT=1"),
        ("trainer.jit=false", "JAX_DISABLE_JIT=1"),
        ("debug.nan_chek=true", "did you mean debug.nan_check?"),
        ("checkpoint.enabled=false", "checkpoint.save_interval_s=null"),
        ("data.hf_dataset=a/b", "data.components.text.source.path"),
        ("model.param_dtype=bfloat16", "train.precision"),
        ("model.eos_token_id=5", "data.tokenizer.eos"),
        ("model.bos_token_id=5", "data.tokenizer.bos"),
    ],
)
def test_an_override_of_a_key_that_was_replaced_names_what_replaces_it(text: str, words: str):
    with pytest.raises(ConfigError) as caught:
        with_own_overrides(GrugBaseLaunchConfig(), [text])
    assert words in str(caught.value)
    assert repr(text) in str(caught.value)


def test_an_override_that_moved_is_judged_by_the_type_of_its_field():
    config = GrugBaseLaunchConfig()
    changed = with_own_overrides(config, ["train.profile_dir=a: [b"])
    assert changed.trainer.log_dir == "a: [b"
    with pytest.raises(ConfigError, match="nonfinite_policy"):
        with_own_overrides(config, ["debug.nan_check=[1]"])


def test_an_override_that_says_what_is_done_anyway_changes_nothing():
    changed = with_own_overrides(GrugBaseLaunchConfig(), ["checkpoint.enabled=true", "run_id=a"])
    assert changed == GrugBaseLaunchConfig(run_id="a")


def test_an_override_that_cannot_be_is_told_by_the_name_it_was_given():
    config = config_from_mapping(GrugBaseLaunchConfig, merged("model.vocab_size", 300, PACKED))
    with pytest.raises(ConfigError) as caught:
        with_own_overrides(config, ["data.packing_max_docs_per_bin=0", "data.seed=3"])
    told = str(caught.value)
    meant = "data.packing={max_documents_per_row: 0}"
    assert told.endswith(f"\n(data.packing_max_docs_per_bin=0 is {meant} here)")
    assert "data.seed" not in told  # nothing is wrong with that one
    # By its own name it needs no other.
    with pytest.raises(ConfigError) as caught:
        with_own_overrides(config, [meant])
    assert "here)" not in str(caught.value)


def test_a_key_of_a_file_that_cannot_be_is_told_by_its_own_name():
    content = merged("data.packing_max_docs_per_bin", 0, PACKED)
    with pytest.raises(ConfigError) as caught:
        own_config(GrugBaseLaunchConfig, content, source="a file")
    assert str(caught.value).startswith("a file: data.packing.max_documents_per_row=0. Allowed: ")
    told = "data.packing_max_docs_per_bin is data.packing.max_documents_per_row here"
    assert str(caught.value).endswith(f"\n({told})")


@pytest.mark.parametrize(("key", "near"), [("templat", "template"), ("variable", "variables")])
def test_a_misspelt_key_of_files_alone_is_told_with_the_right_one(key: str, near: str):
    with pytest.raises(ConfigError, match=rf"{key} is not a known key \(did you mean {near}\?\)"):
        parsed({key: "base"})


@pytest.mark.parametrize(
    ("text", "words"), [("template=moe", "use --template NAME"), ("variables.n=3", "or the file")]
)
def test_an_override_of_what_only_files_have_says_what_to_do(text: str, words: str):
    with pytest.raises(ConfigError, match=f"which only a YAML file has.*Fix: .*{words}"):
        with_own_overrides(GrugBaseLaunchConfig(), [text])


# ---- A vocabulary of a round size ------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "multiple", "rounded"),
    [(256, 128, 384), (257, 128, 384), (384, 128, 384), (300, 1, 300), (300, None, 300)],
)
def test_a_vocabulary_is_rounded_up_to_the_multiple_and_holds_the_tokenizers_ids(
    size: int, multiple: int | None, rounded: int, caplog: pytest.LogCaptureFixture
):
    tokenizer = {"kind": "byte", "vocab_size_multiple": multiple}
    content = {"model": {"vocab_size": size}, "data": {"tokenizer": tokenizer}}
    said = own_config(GrugBaseLaunchConfig, content, source="a file")
    config = with_rounded_vocabulary(said.config, said.vocab_multiple)
    assert config.model.vocab_size == rounded
    told = [f"model.vocab_size is {rounded}, not {size}: rounded up to a multiple of {multiple}"]
    assert [each in caplog.text for each in told] == [rounded != size]


def test_a_vocabulary_is_rounded_up_to_hold_the_ids_of_a_json_tokenizer(tmp_path: Path):
    file = tmp_path / "tokenizer.json"
    file.write_text(train_bpe(iter(["on and on and on"] * 3), vocab_size=262).to_json())
    tokenizer = {"kind": "json", "file": str(file), "vocab_size_multiple": 128}
    content = {"model": {"vocab_size": 200}, "data": {"tokenizer": tokenizer}}
    said = own_config(GrugBaseLaunchConfig, content, source="a file")
    assert with_rounded_vocabulary(said.config, said.vocab_multiple).model.vocab_size == 384


def test_a_vocabulary_that_an_override_gives_is_rounded_up_as_well():
    content = {"model": {"vocab_size": 300}, "data": {"tokenizer": {"vocab_size_multiple": 64}}}
    said = own_config(GrugBaseLaunchConfig, content, source="a file")
    changed = with_own_overrides(said.config, ["model.vocab_size=5000"])
    assert with_rounded_vocabulary(changed, said.vocab_multiple).model.vocab_size == 5056
    with pytest.raises(ConfigError, match=r"a YAML file may have.* Fix: use model.vocab_size"):
        with_own_overrides(said.config, ["data.tokenizer.vocab_size_multiple=64"])


@pytest.mark.parametrize("multiple", [0, -1, True, "128", 1.5])
def test_a_multiple_that_is_no_number_of_ids_is_refused(multiple: Any):
    with pytest.raises(ConfigError, match=r"vocab_size_multiple=.* Allowed: a whole number of 1"):
        parsed(merged("data.tokenizer.vocab_size_multiple", multiple, {}))


# ---- One text, of which nothing is held out ------------------------------------------------


def of_one_text() -> GrugBaseLaunchConfig:
    said = own_content(GrugBaseLaunchConfig, merged("model.vocab_size", 300, TEXT), source="f")
    return config_from_mapping(GrugBaseLaunchConfig, said.config)


@pytest.mark.parametrize("value", ["0", "null"])
def test_an_evaluation_that_is_none_already_may_be_turned_off(value: str):
    config = of_one_text()
    assert with_own_overrides(config, [f"train.eval_every={value}"]) == config


def test_the_last_period_of_an_evaluation_wins_where_there_is_none():
    periods = ["train.eval_every=2", "train.eval_every=0"]
    assert with_own_overrides(of_one_text(), periods) == of_one_text()
    changed = with_own_overrides(of_one_text(), [*periods, "train.eval_every=3"])
    assert changed.eval is not None
    assert changed.eval.steps_per_eval == 3


def test_an_evaluation_of_nothing_is_refused_while_the_config_is_read():
    words = "with 1 document in the config, of which none is held out. Allowed: "
    for override in ("train.eval_every=2", "eval={steps_per_eval: 2}"):
        changed = with_own_overrides(of_one_text(), [override])
        with pytest.raises(ConfigError, match=f"eval {words}"):
            require_evaluated(changed)


@pytest.mark.parametrize("turn", [1, -1])
def test_an_evaluation_is_judged_by_all_overrides_in_whatever_order(turn: int):
    overrides = ["data.validation_fraction=0.999", "train.eval_every=10"][::turn]
    changed = with_own_overrides(of_one_text(), overrides)
    require_evaluated(changed)
    assert changed.eval is not None
    assert changed.eval.steps_per_eval == 10


def test_an_evaluation_of_something_or_of_what_is_not_known_yet_is_let_through():
    require_evaluated(of_one_text())
    require_evaluated(GrugBaseLaunchConfig())
    more = ["data.components.text.source.documents=[a, b]", "data.validation_fraction=0.999"]
    require_evaluated(with_own_overrides(of_one_text(), [*more, "eval={steps_per_eval: 2}"]))
