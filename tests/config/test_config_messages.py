"""What a user reads when a config is wrong: whole messages, compared to the letter."""

import pytest
from config_samples import MODEL, AdamConfig, RunConfig

from chomp.config import config_from_mapping
from chomp.errors import ConfigError

RUN_KEYS = (
    "model, optimizer (or optim), data, logging, fallback, run_id, steps (or num_steps), ema_beta, "
    "jit, priority, width_or_name, extra"
)

GOLDEN = {
    "an unknown key four deep": (
        {"model": {**MODEL, "block": {"attention": {"num_head": 8}}}},
        "config: model.block.attention.num_head is not a known key (did you mean num_heads?). "
        "Allowed: the keys of AttentionConfig: num_heads, num_kv_heads, window. "
        "Fix: rename it to num_heads.",
    ),
    "an unknown key far from any known one": (
        {"model": MODEL, "xyzzy": 1},
        f"config: xyzzy is not a known key. Allowed: the keys of RunConfig: {RUN_KEYS}. "
        "Fix: remove xyzzy.",
    ),
    "an unknown key near an alias": (
        {"model": MODEL, "optim": {"kind": "adamw", "learning_rat": 1}},
        "config: optim.learning_rat is not a known key (did you mean learning_rate?). "
        "Allowed: the keys of AdamConfig: kind, lr (or learning_rate, rate), betas. "
        "Fix: rename it to learning_rate.",
    ),
    "a fraction for an integer": (
        {"model": MODEL, "steps": 1.5},
        "config: steps=1.5 (a number). Allowed: an integer. "
        "Fix: set steps to a whole number, in digits.",
    ),
    "a number for text": (
        {"model": MODEL, "run_id": 5},
        "config: run_id=5 (an integer). Allowed: a string. Fix: write it in quotes: '5'.",
    ),
    "a number for text under a list": (
        {"model": MODEL, "logging": {"tags": ["a", 7]}},
        "config: logging.tags.1=7 (an integer). Allowed: a string. Fix: write it in quotes: '7'.",
    ),
    "text for a list": (
        {"model": MODEL, "logging": {"tags": "a,b"}},
        "config: logging.tags='a,b' (a string). Allowed: a list, each item a string. "
        "Fix: write a list: [a,b].",
    ),
    "a choice that is nearly right": (
        {"model": {**MODEL, "dtype": "bfloat"}},
        "config: model.dtype='bfloat' (a string). Allowed: one of 'float32', 'bfloat16'. "
        "Fix: write 'bfloat16'.",
    ),
    "a required field left out": (
        {"model": {}},
        "config: model.vocab_size is missing. Allowed: an integer. Fix: add vocab_size to model.",
    ),
    "a required config left out": (
        {},
        "config: model is missing. Allowed: a mapping with the keys of ModelConfig: vocab_size, "
        "hidden_dim, block, norm_eps, dtype, dropout. Fix: add model to the config.",
    ),
    "a scalar for a config": (
        {"model": MODEL, "data": 3},
        "config: data=3 (an integer). Allowed: a mapping with the keys of DataConfig: components, "
        "stages, seed. Fix: give data as such a mapping.",
    ),
    "a number out of its bounds": (
        {"model": {**MODEL, "dropout": 1}},
        "config: model.dropout=1.0. Allowed: at least 0 and below 1. "
        "Fix: set model.dropout to a number in that range, such as 0.0.",
    ),
    "an unknown kind": (
        {"model": MODEL, "optim": {"kind": "adam"}},
        "config: optim.kind='adam' (a string). Allowed: one of 'adamw', 'muon'. "
        "Fix: write 'adamw'.",
    ),
    "no kind": (
        {"model": MODEL, "fallback": {"lr": 1}},
        "config: fallback.kind is missing. Allowed: one of 'adamw', 'muon'. "
        "Fix: add kind to fallback.",
    ),
    "a key of the other member of a union": (
        {"model": MODEL, "optim": {"kind": "adamw", "ns_steps": 3}},
        "config: optim.ns_steps is not a known key. Allowed: the keys of AdamConfig: kind, "
        "lr (or learning_rate, rate), betas. Fix: remove optim.ns_steps.",
    ),
    "a scalar for a union of configs": (
        {"model": MODEL, "fallback": "adamw"},
        "config: fallback='adamw' (a string). Allowed: a mapping whose kind is one of 'adamw', "
        "'muon' or null. Fix: give fallback as such a mapping.",
    ),
    "a union of scalars": (
        {"model": MODEL, "width_or_name": 1.5},
        "config: width_or_name=1.5 (a number). Allowed: an integer or a string. "
        "Fix: write it in quotes: '1.5'.",
    ),
    "a list of the wrong length": (
        {"model": MODEL, "optim": {"kind": "adamw", "betas": [0.9]}},
        "config: optim.betas=[0.9] (a list). Allowed: a list of 2 items: a number, a number. "
        "Fix: set optim.betas to a list of 2 items: a number, a number.",
    ),
    "a number as the key of named entries": (
        {"model": MODEL, "data": {"components": {5: {"weight": 1}}}},
        "config: data.components has the key 5 (an integer). Allowed: keys that are each a string. "
        "Fix: write it in quotes: '5'.",
    ),
    "a key with a dot in it": (
        {"model": MODEL, "data": {"components": {"web.edu": {"weight": None}}}},
        'config: data.components."web.edu".weight=null. Allowed: a number. '
        'Fix: set data.components."web.edu".weight to a number.',
    ),
    "an object JSON cannot hold, where anything goes": (
        {"model": MODEL, "extra": {"a": [{1}]}},
        "config: extra.a.0={1} (a set). Allowed: null, true, false, numbers, text, lists, "
        "mappings, configs, enums and paths. Fix: write the value as one of these.",
    ),
    "not a mapping at all": (
        ["model"],
        "config: the config is ['model'] (a list). Allowed: a mapping with the keys of RunConfig: "
        f"{RUN_KEYS}. Fix: give the config as such a mapping.",
    ),
}


@pytest.mark.parametrize(("mapping", "text"), GOLDEN.values(), ids=GOLDEN)
def test_the_message_is(mapping, text):
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(RunConfig, mapping)
    assert str(caught.value) == text
    assert caught.value.__cause__ is None  # the machinery behind it is not shown


def test_all_problems_are_listed_each_once():
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(
            RunConfig,
            {
                "model": {"vocab_size": "many", "hiden_dim": 3},
                "optim": {"kind": "muon", "lr": True, "ns_steps": 1.5},
                "data": {"stages": [{"start": None}, {"weights": {"a": "b"}}]},
                "jit": 1,
            },
            source="run.yaml",
        )
    lines = str(caught.value).splitlines()
    assert lines[0] == "run.yaml: 7 problems"
    told = sorted(line.removeprefix("  - ").partition(".  ")[0] for line in lines[1:])
    assert [line.split("=")[0].split(" ")[0] for line in told] == [
        "data.stages.0.start",
        "data.stages.1.weights.a",
        "jit",
        "model.hiden_dim",
        "model.vocab_size",
        "optim.lr",
        "optim.ns_steps",
    ]


def test_a_long_value_is_cut():
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(AdamConfig, {"lr": "x" * 1000})
    assert str(caught.value).startswith("config: lr='xxxx")
    assert len(str(caught.value)) < 200


def test_a_check_names_what_was_given_for_a_field_by_another_name():
    given = {"model": {"vocab_size": 3}, "optimizer": {"kind": "adamw", "rate": -1}}
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(RunConfig, given)
    told = "config: optimizer (lr is given as optimizer.rate): lr=-1.0. Allowed: lr above 0. "
    assert str(caught.value).startswith(told)


def test_a_field_of_a_section_that_is_looked_for_outside_of_it_is_named_with_its_section():
    with pytest.raises(ConfigError, match=r"vocab_size .*\(did you mean model\.vocab_size"):
        config_from_mapping(RunConfig, {"vocab_size": 3, "model": {"vocab_size": 3}})
