"""Files of the first chomp, as people have them, converted and read by `chomp train`."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from chomp.cli.load_config import config_of_file
from experiments.grug.megalodon.launch import GrugMegalodonLaunchConfig
from scripts.convert_chomp_yaml import converted, main

# A run on web text, with most of its defaults written out.
WEB = """
model:
  backend: megalodon
  vocab_size: 32000
  model_dim: 512
  num_layers: 8
  z_dim: 128
  value_dim: 1024
  ffn_hidden_dim: 1280
  chunk_size: 512
  norm_num_groups: 32
  rope_base: null
  use_checkpoint: true
  pad_token_id: 0
  bos_token_id: 1
  eos_token_id: 2
  param_dtype: float32
  compute_dtype: bfloat16
  accum_dtype: float32
  softmax_dtype: float32
data:
  backend: hf
  hf_dataset: Zyphra/Zyda-2
  hf_name: sample-100BT
  hf_split: train
  hf_eval_split: null
  text_key: body
  shuffle: true
  shuffle_buffer_size: 5000
  seed: 7
  repeat: true
  max_retries: 5
  retry_delay_sec: 2.0
  state_update_interval: 2000
  packing_mode: bin
  packing_buffer_docs: 128
  packing_max_docs_per_bin: 12
  mask_boundary_loss: true
  train_on_eos: false
  max_eval_samples: 500
  grain_prefetch: 0
  device_put: false
  tokenizer:
    kind: hf
    hf_name_or_path: pszemraj/bytebpe-tokenizer-32k-mlm
    hf_use_fast: true
    hf_trust_remote_code: false
    vocab_size_multiple: 128
    auto_set_special_tokens: true
    add_bos: false
    add_eos: true
    max_doc_tokens: null
train:
  seed: 1
  steps: 20000
  batch_size: 16
  seq_len: 2048
  grad_accum: 2
  jit: true
  deterministic: true
  log_every: 25
  eval_every: 1000
  generate_every: 5000
  generate_temperature: null
  profile: false
  profile_dir: null
optim:
  name: muon
  lr: 3.0e-3
  warmup_steps: 500
  decay_steps: 20000
  min_lr_ratio: 0.1
  muon: {lr_scale: 100.0, weight_decay_mult: 1.0}
  adam: {b1: 0.9, b2: 0.95}
checkpoint: {enabled: true, root_dir: null, async_save: true, save_every: 5000, max_to_keep: 3}
logging: {project: chomp, run_dir: null, wandb: {enabled: true, project: chomp}}
debug: {nan_check: true, check_device_every: 100}
"""

# The smallest file: one text, over and over.
TEXT = """
model: {backend: megalodon, vocab_size: 256, model_dim: 64, z_dim: 32, value_dim: 128}
data:
  backend: local_text
  local_text: "a short text"
  tokenizer: {kind: byte, add_bos: false, add_eos: false, vocab_size_multiple: 64}
train: {steps: 100, batch_size: 2, seq_len: 32, eval_every: 2500}
debug: {nan_check: false}
"""


def read(text: str) -> Any:
    """The launch config that a converted file means."""
    content, problems = converted(yaml.safe_load(text))
    assert problems == []
    assert content.pop("template") == "megalodon"
    return config_of_file(GrugMegalodonLaunchConfig, content, source="a file")


def test_a_run_on_web_text_is_the_same_run():
    config = read(WEB)
    assert (config.model.vocab_size, config.model.remat) == (32000, "block")
    trainer = config.trainer
    assert (trainer.precision, trainer.data_seed) == ("params=float32,compute=bfloat16", 7)
    assert (trainer.nonfinite_policy, trainer.profiler.enabled) == ("raise", False)
    [(name, component)] = config.data.components.items()
    source, stream = component.source, component.stream
    assert (name, source.path, source.name) == ("text", "Zyphra/Zyda-2", "sample-100BT")
    assert (source.split, source.streaming) == ("train", True)
    assert (stream.window_documents, stream.max_retries, stream.retry_delay_s) == (5000, 5, 2.0)
    assert (component.format.text_key, stream.max_validation_documents) == ("body", 500)
    assert (config.data.packing_mode, config.data.packing.max_documents_per_row) == ("packed", 12)
    assert (config.data.tokenizer.kind, config.data.tokenizer.eos) == ("hub", None)
    assert (config.eval.steps_per_eval, config.samples.every) == (1000, 5000)
    assert (config.checkpoint.every, config.checkpoint.keep_permanent) == (5000, 3)
    assert config.optimizer.muon.lr_scale == 100.0


def test_one_text_is_a_stream_that_nothing_is_held_out_of():
    config = read(TEXT)
    assert config.data.components["text"].source.documents == ("a short text",)
    assert config.data.components["text"].stream is not None
    assert config.data.validation_fraction < 1e-9
    assert config.eval is None
    assert (config.model.vocab_size, config.trainer.nonfinite_policy) == (320, "skip")


@pytest.mark.parametrize(
    ("tokenizer", "ids", "expected"),
    [
        ({}, {}, [None, None]),
        ({"eos": 7}, {}, [7, None]),
        ({"auto_set_special_tokens": False}, {}, [2, None]),
        ({"auto_set_special_tokens": False, "add_bos": True}, {}, [2, 1]),
        ({"auto_set_special_tokens": False, "add_bos": True}, {"bos_token_id": 5}, [2, 5]),
        ({"add_bos": True, "bos": "<s>"}, {}, [None, "<s>"]),
    ],
)
def test_a_document_begins_with_bos_only_where_a_file_adds_it(tokenizer, ids, expected):
    hub = {"kind": "hf", "hf_name_or_path": "a/b", **tokenizer}
    content, problems = converted({"model": ids, "data": {"tokenizer": hub}})
    assert problems == []
    found = content["data"]["tokenizer"]
    assert [found.get(name) for name in ("eos", "bos")] == expected


def test_a_tokenizer_in_a_folder_is_its_file_with_its_own_special_tokens(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text("{}")
    own = {"eos_token": {"content": "<end>", "special": True}, "bos_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(own))
    tokenizer = {"kind": "hf", "hf_name_or_path": str(tmp_path), "add_bos": True}
    content, problems = converted({"data": {"tokenizer": tokenizer}})
    own = {"eos": "<end>", "bos": "<s>"}
    file = str(tmp_path / "tokenizer.json")
    assert content["data"]["tokenizer"] == {"kind": "json", "file": file, **own}
    assert problems == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"model": {"backend": "dummy"}}, "model.backend: write template: megalodon"),
        ({"model": {"accum_dtype": "bfloat16"}}, "model.accum_dtype"),
        ({"train": {"jit": False}}, "JAX_DISABLE_JIT=1"),
        ({"checkpoint": {"root_dir": "elsewhere"}}, "--run-dir"),
        ({"logging": {"run_dir": "runs/mine"}}, "--run-dir"),
        ({"data": {"backend": "parquet"}}, "data.components"),
        ({"debug": {"nan_check": "often"}}, "debug.nan_check='often'"),
        ({"data": {"tokenizer": {"kind": "hf"}}}, "hf_name_or_path"),
        (
            {"data": {"local_text": "a"}, "train": {"eval_every": 5, "steps": 9}},
            "nothing is held out",
        ),
        ({"data": {"tokenizer": {"kind": "byte"}}, "model": {"eos_token_id": 5}}, "eos_token_id"),
    ],
)
def test_what_cannot_be_converted_is_listed_with_what_to_use(content: dict[str, Any], words: str):
    _, problems = converted(content)
    assert len(problems) == 1
    assert words in problems[0]


def test_the_script_prints_a_file_that_can_be_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    old = tmp_path / "old.yaml"
    old.write_text(TEXT)
    assert main([str(old)]) == 0
    printed = capsys.readouterr()
    assert (yaml.safe_load(printed.out)["template"], printed.err) == ("megalodon", "")
    old.write_text("train: {jit: false}")
    assert main([str(old)]) == 1
    assert capsys.readouterr().err.startswith("not converted: train.jit: ")
