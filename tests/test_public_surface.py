"""No name that users rely on is lost, or comes in, without being looked at.

`tests/golden/public_surface.txt` lists them. After a change that is meant, write it anew and look
at the difference: `uv run --group test python -m tests.golden.regenerate`.
"""

import importlib

import pytest

from tests.public_surface import RECORDED, surface

# What the documents that this project grew from promise by name, as lines of the list.
PROMISED = """
command: chomp train CONFIG
command: chomp train --dry-run
command: chomp train --resume
command: chomp train --max-steps
command: chomp variant diff NAME
command: launch.py --plan
config: run_id
config: output_path
config: model.chunk_size (megalodon)
config: trainer
config: optimizer
config: eval
config: resources
config: train.steps
config: train.seq_len
config: train.deterministic
config: train.log_every
config: train.eval_every
config: train.generate_every
config: train.generate_input_len
config: train.generate_max_tokens
config: train.generate_temperature
config: train.generate_top_k
config: train.generate_top_p
config: train.z_loss_weight
config: train.ema_beta
config: train.load_checkpoint
config: train.load_checkpoint_path
config: train.log_dir
config: optim.name
config: optim.lr
config: optim.warmup_steps
config: optim.decay_steps
config: optim.min_lr_ratio
config: optim.adam.b1
config: optim.adam.b2
config: optim.adam.eps
config: optim.adam.nesterov
config: optim.muon.allow_all_2d
config: optim.muon.allow_tied_embed
config: optim.muon.lr_scale
config: optim.muon.weight_decay_mult
config: optim.muon.consistent_rms
config: data.mask_boundary_loss
config: data.train_on_eos
config: logging.metrics_file
config: logging.log_file
config: logging.wandb.enabled
metric: train/loss
metric: global_step
metric: run_progress
metric: optim/*
metric: throughput/duration
metric: throughput/examples_per_second
metric: throughput/tokens_per_second
metric: throughput/total_tokens
metric: throughput/gflops_per_second
metric: throughput/total_gflops
metric: throughput/mfu
metric: throughput/hook_time
metric: throughput/loading_time
metric: throughput/flops_per_token_analytic
metric: throughput/flops_per_example_analytic
metric: throughput/flops_per_example
metric: throughput/device_kind
metric: throughput/theoretical_flops_per_device
metric: throughput/theoretical_flops
metric: mixture/stage
metric: mixture/weight/<dataset_name>
metric: eval/loss
metric: eval/loading_time
metric: eval/total_time
metric: eval/ema/*
metric: eval/macro_loss
metric: eval/bpb
metric: eval/macro_bpb
metric: eval/<tag>/loss
metric: eval/<tag>/micro_loss
metric: eval/<tag>/macro_loss
metric: eval/<tag>/bpb
metric: eval/<tag>/macro_bpb
metric: data/tensorstore/*
metric: grad/*
metric: params/*
metric: updates/*
metric: opt_state/*
metric: loss
metric: grad_norm
metric: lr
metric: tokens_seen
metric: tokens_per_sec
metric: packing_mode
metric: packing_utilization
metric: first_step_compile_time_s
metric: peak_memory_gb
metric: eval_loss
environment: GRUG_RUN_ID
environment: FERRY_DATE
environment: LEVANTER_LOG_TENSORSTORE_METRICS_EVERY
name: chomp.checkpoint.restore_latest_or_initialize
name: chomp.config.validated
name: chomp.checkpoint.save_step_checkpoint
name: chomp.checkpoint.save_temporary_checkpoint
name: chomp.data.GrugLmExample
name: chomp.data.LmDataConfig
name: chomp.data.build_train_dataset
name: chomp.data.build_train_loader
name: chomp.data.iter_from_step
name: chomp.evaluation.TaggedEvaluator
name: chomp.executor.ExecutorStep
name: chomp.executor.output_path_of
name: chomp.executor.this_output_path
name: chomp.executor.versioned
name: chomp.kernels.attention.AttentionMask
name: chomp.launch.executor_main
name: chomp.mesh.create_mesh
name: chomp.optim.GrugOptimizerConfig
name: chomp.training.build_tagged_eval_callback
name: chomp.training.open_run
""".strip().splitlines()


@pytest.fixture(scope="module")
def shown() -> list[str]:
    return surface()


def test_the_public_names_are_those_of_the_list(shown: list[str]):
    recorded = RECORDED.read_text(encoding="utf-8").splitlines()
    assert sorted(set(recorded) - set(shown)) == [], "no longer there"
    assert sorted(set(shown) - set(recorded)) == [], "not on the list"


def test_what_was_promised_is_there(shown: list[str]):
    assert [name for name in PROMISED if name not in shown and not is_importable(name)] == []


def is_importable(line: str) -> bool:
    """Whether a line `name: package.Name` names something that the library has."""
    kind, _, name = line.partition(": ")
    module, _, attribute = name.rpartition(".")
    return kind == "name" and hasattr(importlib.import_module(module), attribute)
