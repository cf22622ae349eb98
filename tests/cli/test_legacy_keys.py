"""Other names of fields in files and overrides, and what replaces the keys of the first chomp."""

import copy
import re
from typing import Any

import pytest

from chomp.cli.legacy_keys import HINTS
from chomp.cli.load_config import config_of_file, has_field, require_held_out, with_overrides
from chomp.config import config_from_mapping, config_to_mapping
from chomp.errors import ConfigError
from experiments.grug.base.launch import GrugBaseLaunchConfig
from experiments.grug.megalodon.launch import GrugMegalodonLaunchConfig

MUON = {"optim": {"name": "muon"}}

# Key -> a value, the field that it means, the field's value then, and what else the file has.
TAKEN: dict[str, tuple[Any, str, Any, dict[str, Any]]] = {
    "model.vocab_size": (300, "model.vocab_size", 300, {}),
    "model.use_checkpoint": (True, "model.remat", "block", {}),
    "data.seed": (5, "trainer.data_seed", 5, {}),
    "data.packing_mode": ("bin", "data.packing_mode", "packed", {}),
    "data.mask_boundary_loss": (False, "data.mask_boundary_loss", False, {}),
    "data.train_on_eos": (False, "data.train_on_eos", False, {}),
    "train.steps": (9, "trainer.steps", 9, {}),
    "train.seq_len": (16, "trainer.seq_len", 16, {}),
    "train.grad_accum": (2, "trainer.grad_accum", 2, {}),
    "train.deterministic": (True, "trainer.deterministic", True, {}),
    "train.log_every": (7, "trainer.log_every", 7, {}),
    "train.eval_every": (0, "eval.steps_per_eval", None, {}),
    "train.generate_every": (50, "samples.every", 50, {}),
    "train.generate_input_len": (12, "samples.prompt_tokens", 12, {}),
    "train.generate_max_tokens": (13, "samples.max_tokens", 13, {}),
    "train.generate_temperature": (None, "samples.temperature", 1.0, {}),
    "trainer.generate_temperature": (None, "samples.temperature", 1.0, {}),
    "train.generate_top_k": (None, "samples.top_k", None, {}),
    "train.generate_top_p": (0.5, "samples.top_p", 0.5, {}),
    "train.allow_cpu": (False, "mesh.allow_cpu", False, {}),
    "optim.lr": (3e-3, "optimizer.lr", 3e-3, {}),
    "optim.decay_steps": (50, "optimizer.decay_steps", 50, {}),
    "optim.muon.weight_decay_mult": (0.5, "optimizer.muon.weight_decay_mult", 0.5, MUON),
    "optim.muon.consistent_rms": (0.2, "optimizer.muon.consistent_rms", 0.2, MUON),
    "optim.muon.allow_all_2d": (True, "optimizer.muon.allow_all_2d", True, MUON),
    "optim.adam.nesterov": (True, "optimizer.adam.nesterov", True, {}),
    "checkpoint.save_every": (500, "checkpoint.every", 500, {}),
    "checkpoint.max_to_keep": (3, "checkpoint.keep_permanent", 3, {}),
    "logging.metrics_file": ("m.jsonl", "logging.metrics_file", "m.jsonl", {}),
    "logging.wandb.enabled": (True, "logging.wandb.enabled", True, {}),
    "debug.nan_check": (False, "trainer.nonfinite_policy", "skip", {}),
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
    return config_to_mapping(config_of_file(cls, content, source="a file"))


def at(mapping: Any, path: str) -> Any:
    for part in path.split("."):
        mapping = mapping[part]
    return mapping


# ---- Other names of fields -------------------------------------------------------------------


@pytest.mark.parametrize("key", TAKEN)
def test_a_key_means_its_field_in_a_file_and_in_an_override(key: str):
    value, field, meant, around = TAKEN[key]
    assert at(parsed(merged(key, value, around)), field) == meant
    config = config_from_mapping(GrugBaseLaunchConfig, around)
    text = f"{key}={'null' if value is None else str(value).lower()}"
    assert at(config_to_mapping(with_overrides(config, [text])), field) == meant


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"data": {"seed": 1}, "train": {"data_seed": 1}}, "data.seed and train.data_seed are the"),
        ({"data": {"seed": 1}, "trainer": {"data_seed": 2}}, "are the same field"),
        ({"debug": {"nan_check": "often"}}, "debug.nan_check='often'"),
        ({"debug": {"nan_chek": True}}, "debug is not a known key"),
        ({"debug": 3}, "debug is not a known key"),
        ({"templat": "base"}, "templat is not a known key (did you mean template?)"),
        ({"variable": {}}, "variable is not a known key (did you mean variables?)"),
    ],
)
def test_what_cannot_be_in_a_file_is_refused_with_its_place(content: dict[str, Any], words: str):
    with pytest.raises(ConfigError) as caught:
        parsed({"model": {"vocab_size": 300}, **content})
    assert caught.value.given.startswith("a file: ")
    assert words in caught.value.given
    assert caught.value.fix


def test_a_wrong_value_is_told_by_the_name_that_was_written():
    with pytest.raises(ConfigError) as caught:
        parsed(merged("data.seed", -1, {}))
    assert caught.value.__notes__ == ["(data.seed is train.data_seed here)"]
    with pytest.raises(ConfigError) as caught:
        with_overrides(GrugBaseLaunchConfig(), ["debug.nan_check=often", "data.seed=3"])
    assert caught.value.__notes__ == [
        "(debug.nan_check=often is train.nonfinite_policy=often here)"
    ]
    with pytest.raises(ConfigError) as caught:  # by its own name it needs no other
        with_overrides(GrugBaseLaunchConfig(), ["train.nonfinite_policy=often"])
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize(
    ("text", "words"), [("template=moe", "use --template NAME"), ("variables.n=3", "or the file")]
)
def test_an_override_of_what_only_files_have_says_what_to_do(text: str, words: str):
    with pytest.raises(ConfigError, match="which only a YAML file has") as caught:
        with_overrides(GrugBaseLaunchConfig(), [text])
    assert words in caught.value.fix


# ---- Keys that are gone ----------------------------------------------------------------------


@pytest.mark.parametrize("key", HINTS)
def test_a_key_of_the_first_chomp_is_refused_with_what_replaces_it(key: str):
    for cls in (GrugBaseLaunchConfig, GrugMegalodonLaunchConfig):
        assert not has_field(cls, key)
        with pytest.raises(ConfigError) as in_file:
            parsed(merged(key, None, {}), cls)
        with pytest.raises(ConfigError) as in_override:
            with_overrides(cls(), [f"{key}=1"])
        for error in (in_file.value, in_override.value):
            assert f"{key} is not a known key" in error.given
            assert HINTS[key] in error.fix
            assert "scripts/convert_chomp_yaml.py" in error.fix
        assert repr(f"{key}=1") in in_override.value.given


def test_the_fields_that_hints_name_are_there():
    for key, hint in HINTS.items():
        for name in re.findall(r"\b(?:train|eval|checkpoint|samples|data|model)(?:\.\w+)+", hint):
            # Components are named by the file.
            name = name.partition(".NAME")[0]
            assert has_field(GrugBaseLaunchConfig, name), f"{key}: {name}"


def test_all_problems_of_a_file_come_at_once():
    content = merged("train.jit", False, merged("debug.check_device_every", 1, {}))
    content["trainer"] = {"profile": True}
    with pytest.raises(ConfigError) as caught:
        parsed(content)
    assert len(caught.value.problems) == 3
    assert caught.value.given.count("\n  - ") == 3
    assert "convert_chomp_yaml.py a file" in caught.value.fix


# ---- An evaluation where nothing is held out -------------------------------------------------


def of_one_text() -> GrugBaseLaunchConfig:
    text = {"source": {"kind": "memory", "documents": ["text"]}}
    content = {"data": {"components": {"text": text}, "validation_fraction": 1e-12}, "eval": None}
    return config_of_file(GrugBaseLaunchConfig, content, source="f")


@pytest.mark.parametrize("value", ["0", "null"])
def test_an_evaluation_that_is_none_already_may_be_turned_off(value: str):
    config = of_one_text()
    assert with_overrides(config, [f"train.eval_every={value}"]) == config


def test_the_last_period_of_an_evaluation_wins_where_there_is_none():
    periods = ["train.eval_every=2", "train.eval_every=0"]
    assert with_overrides(of_one_text(), periods) == of_one_text()
    changed = with_overrides(of_one_text(), [*periods, "train.eval_every=3"])
    assert changed.eval is not None
    assert changed.eval.steps_per_eval == 3


def test_an_evaluation_of_nothing_is_refused_while_the_config_is_read():
    for override in ("train.eval_every=2", "eval={steps_per_eval: 2}"):
        changed = with_overrides(of_one_text(), [override])
        with pytest.raises(ConfigError, match="eval with 1 document in the config, none"):
            require_held_out(changed)


@pytest.mark.parametrize("turn", [1, -1])
def test_an_evaluation_is_judged_by_all_overrides_in_whatever_order(turn: int):
    overrides = ["data.validation_fraction=0.999", "train.eval_every=10"][::turn]
    changed = with_overrides(of_one_text(), overrides)
    require_held_out(changed)
    assert changed.eval is not None
    assert changed.eval.steps_per_eval == 10


def test_an_evaluation_of_something_or_of_what_is_not_known_yet_is_let_through():
    require_held_out(of_one_text())
    require_held_out(GrugBaseLaunchConfig())
    more = ["data.components.text.source.documents=[a, b]", "data.validation_fraction=0.999"]
    require_held_out(with_overrides(of_one_text(), [*more, "eval={steps_per_eval: 2}"]))
