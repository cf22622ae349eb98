"""Dotted overrides change a config as the declared types say, or say why not."""

from dataclasses import replace
from pathlib import Path

import pytest
from config_samples import (
    AdamConfig,
    ComponentConfig,
    DataConfig,
    Level,
    LoggingConfig,
    ModelConfig,
    MuonConfig,
    RunConfig,
    StageConfig,
    run,
)

from chomp.config import apply_overrides
from chomp.config.overrides import find_field
from chomp.errors import ConfigError

DATA = DataConfig(
    components={
        "web": ComponentConfig(weight=1.0, paths=(Path("a"),)),
        "web.edu": ComponentConfig(weight=2.0),
        "": ComponentConfig(weight=3.0),
    },
    stages=(StageConfig(weights={"web": 1.0}), StageConfig(start=10)),
)
RUN = run(data=DATA, fallback=MuonConfig(), extra={"depth": 3})


def value_at(config: object, *names: str | int) -> object:
    for name in names:
        inside = isinstance(config, dict | tuple | list)
        config = config[name] if inside else getattr(config, str(name))  # type: ignore[index]
    return config


@pytest.mark.parametrize(
    ("override", "where", "expected"),
    [
        ("model.hidden_dim=64", ("model", "hidden_dim"), 64),
        ("model.hidden_dim=1e3", ("model", "hidden_dim"), 1000),
        ("model.block.attention.window=16", ("model", "block", "attention", "window"), 16),
        ("model.block.attention.window=null", ("model", "block", "attention", "window"), None),
        ("optimizer.lr=3e-4", ("optimizer", "lr"), 3e-4),
        ("optim.learning_rate=1", ("optimizer", "lr"), 1.0),
        ("optim.betas=[0.8, 9e-1]", ("optimizer", "betas"), (0.8, 0.9)),
        ("optim.betas.1=0.5", ("optimizer", "betas"), (0.9, 0.5)),
        ("num_steps=7", ("steps",), 7),
        ("ema_beta=null", ("ema_beta",), None),
        ("ema_beta=0.5", ("ema_beta",), 0.5),
        ("jit=false", ("jit",), False),
        ("jit=no", ("jit",), False),
        ("jit=On", ("jit",), True),
        ("steps=1_000", ("steps",), 1000),
        ("steps=007", ("steps",), 7),
        ("run_id=5", ("run_id",), "5"),
        ("run_id=1e3", ("run_id",), "1e3"),
        ("run_id=true", ("run_id",), "true"),
        ("run_id='5'", ("run_id",), "5"),
        ('run_id="null"', ("run_id",), "null"),
        ("run_id=", ("run_id",), ""),
        ("run_id=a=b: [c # d", ("run_id",), "a=b: [c # d"),
        ("logging.log_file=2026-01-31", ("logging", "log_file"), Path("2026-01-31")),
        ("logging.log_file=null", ("logging", "log_file"), None),
        ("logging.level=debug", ("logging", "level"), Level.DEBUG),
        ("logging.tags=[a,b]", ("logging", "tags"), ("a", "b")),
        ("logging.tags=[1, no, '2']", ("logging", "tags"), ("1", "no", "2")),
        ("logging.tags=[]", ("logging", "tags"), ()),
        ("width_or_name=5", ("width_or_name",), 5),
        ("width_or_name=five", ("width_or_name",), "five"),
        ("width_or_name='5'", ("width_or_name",), "5"),
        ("width_or_name=1.5", ("width_or_name",), "1.5"),
        ("data.components.web.weight=0.5", ("data", "components", "web", "weight"), 0.5),
        ('data.components."web.edu".weight=3', ("data", "components", "web.edu", "weight"), 3.0),
        ('data.components."".weight=4', ("data", "components", "", "weight"), 4.0),
        ("data.components.web.paths.0=b", ("data", "components", "web", "paths"), (Path("b"),)),
        (
            "data.components.code={weight: 2, paths: [x]}",
            ("data", "components", "code"),
            ComponentConfig(weight=2.0, paths=(Path("x"),)),
        ),
        ("data.stages.1.start=20", ("data", "stages", 1, "start"), 20),
        ("data.stages.0.weights.web=2", ("data", "stages", 0, "weights", "web"), 2.0),
        ("data.stages.1.weights={a: 1, 2: 3}", ("data", "stages", 1, "weights", "2"), 3.0),
        ("extra={a: 3e-4, b: [true, no, null]}", ("extra", "b"), [True, "no", None]),
        ("extra.depth=4", ("extra", "depth"), 4),
        ("fallback.ns_steps=6", ("fallback", "ns_steps"), 6),
        ("fallback=null", ("fallback",), None),
        ("optim.kind=adamw", ("optimizer", "kind"), "adamw"),
    ],
)
def test_an_override_sets_the_value_its_type_means(override, where, expected):
    found = value_at(apply_overrides(RUN, [override]), *where)
    assert found == expected
    assert type(found) is type(expected)


def test_nothing_else_changes():
    changed = apply_overrides(RUN, ["steps=7"])
    assert changed.steps == 7
    assert apply_overrides(changed, ["steps=100"]) == RUN == apply_overrides(RUN, [])


def test_a_mapping_replaces_a_config_and_does_not_merge_into_it():
    config = run(model=ModelConfig(vocab_size=256, hidden_dim=999))
    changed = apply_overrides(config, ["model={vocab_size: 10}"])
    assert changed.model == ModelConfig(vocab_size=10)


def test_a_union_changes_its_kind_as_a_whole_and_its_parts_may_follow():
    changed = apply_overrides(RUN, ["optim={kind: muon}", "optim.ns_steps=9", "optimizer.lr=1"])
    assert changed.optimizer == MuonConfig(lr=1.0, ns_steps=9)


@pytest.mark.parametrize(
    ("overrides", "lr"),
    [
        (["optim.lr=3e-4", "optimizer.rate=0.5"], 0.5),
        (["optim.lr=1", "optim.lr=2", "optim.lr=1"], 1.0),
        (["optim={kind: adamw, lr: 1}", "optim={kind: adamw, lr: 2}"], 2.0),
    ],
    ids=["by an alias", "the first value again", "a section"],
)
def test_the_last_value_of_a_key_wins(overrides: list[str], lr: float):
    assert apply_overrides(RUN, overrides).optimizer == AdamConfig(lr=lr)


GOLDEN = {
    "no equals sign": (
        ["model.hidden_dim"],
        "override: 'model.hidden_dim': this is not of the form path=value. Allowed: a dotted path, "
        "'=' and a value, such as model.hidden_dim=64. Fix: write the path, '=' and the value.",
    ),
    "a path of blanks": (
        ["model. =3"],
        "override: 'model. =3': this is not of the form path=value. Allowed: a dotted path, "
        "'=' and a value, such as model.hidden_dim=64. Fix: write the path, '=' and the value.",
    ),
    "an unknown path": (
        ["model.block.atention.window=3"],
        "override: 'model.block.atention.window=3': model.block.atention is not a known key "
        "(did you mean attention?). Allowed: the keys of BlockConfig: attention. "
        "Fix: rename it to attention.",
    ),
    "an unknown entry": (
        ["data.components.wbe.weight=3"],
        "override: 'data.components.wbe.weight=3': data.components.wbe does not exist (did you "
        'mean web?). Allowed: the keys of data.components: web, "web.edu", "". Fix: rename it to '
        "web, or add the entry as a whole: data.components.wbe={...}.",
    ),
    "a new entry of scalars": (
        ["data.stages.0.weights.code=3"],
        "override: 'data.stages.0.weights.code=3': data.stages.0.weights.code does not exist. "
        "Allowed: the keys of data.stages.0.weights: web. Fix: give data.stages.0.weights as a "
        "whole: data.stages.0.weights={...}.",
    ),
    "an index out of range": (
        ["data.stages.2.start=3"],
        "override: 'data.stages.2.start=3': data.stages.2 does not exist: data.stages is "
        "[{'start': 0, 'weights': {'web': 1.0}}, {'start': 10, 'weights': {}}] (a list). "
        "Allowed: the indexes 0 to 1. Fix: give data.stages as a whole.",
    ),
    "a path through a scalar": (
        ["steps.first=3"],
        "override: 'steps.first=3': steps.first does not exist: steps is 100 (an integer). "
        "Allowed: paths through configs, mappings and lists. Fix: give steps as a whole.",
    ),
    "no value": (
        ["ema_beta="],
        "override: 'ema_beta=': ema_beta is given no value. Allowed: a number or null. "
        "Fix: write the value after '='.",
    ),
    "no YAML": (
        ["logging.tags=[a"],
        "override: 'logging.tags=[a': the value cannot be read as YAML: line 1, column 3: "
        "expected ',' or ']', but got '<stream end>'. Allowed: one YAML document of plain data, "
        "each key once. Fix: correct the text at that point.",
    ),
    "another kind": (
        ["optim.kind=muon"],
        "override: 'optim.kind=muon': optim.kind='muon' would keep the fields of kind 'adamw'. "
        "Allowed: another kind only with all of optim. Fix: write optim={kind: muon, ...}.",
    ),
    "a whole after its part": (
        ["optim.lr=3", "optim={kind: muon}"],
        "override: 'optim={kind: muon}': optim replaces optim.lr, which is given before "
        "it. Allowed: a whole first, then its parts. Fix: put optim first.",
    ),
    "an unknown key inside a value": (
        ["data.stages.0={starts: 3}"],
        "override: 'data.stages.0={starts: 3}': data.stages.0.starts is not a known key (did you "
        "mean start?). Allowed: the keys of StageConfig: start, weights. Fix: rename it to start.",
    ),
    "a wrong type": (
        ["model.hidden_dim=wide"],
        "config with overrides: model.hidden_dim='wide' (a string). Allowed: an integer. "
        "Fix: set model.hidden_dim to an integer.",
    ),
    "a wrong type by another spelling": (
        ["optim.lr=abc"],
        "config with overrides: optim.lr='abc' (a string). Allowed: a number. "
        "Fix: set optim.lr to a number.",
    ),
    "an unknown key by another spelling": (
        ["optim.lrr=3"],
        "override: 'optim.lrr=3': optim.lrr is not a known key (did you mean lr?). Allowed: the "
        "keys of AdamConfig: kind, lr (or learning_rate, rate), betas. Fix: rename it to lr.",
    ),
    "a null that is not allowed": (
        ["run_id=null"],
        "config with overrides: run_id=null. Allowed: a string. Fix: set run_id to a string.",
    ),
    "a check of a class": (
        ["model.block.attention.num_kv_heads=3"],
        "config with overrides: model.block.attention: num_heads=8 with num_kv_heads=3. Allowed: "
        "num_kv_heads that divides num_heads. Fix: set num_kv_heads to a divisor of num_heads.",
    ),
}


@pytest.mark.parametrize(("overrides", "text"), GOLDEN.values(), ids=GOLDEN)
def test_the_message_is(overrides, text):
    with pytest.raises(ConfigError) as caught:
        apply_overrides(RUN, overrides)
    assert str(caught.value) == text


def test_all_overrides_that_lead_nowhere_are_listed():
    with pytest.raises(ConfigError) as caught:
        apply_overrides(RUN, ["stps=1", "steps=2", "jitt=no"])
    lines = str(caught.value).splitlines()
    assert lines[0] == "override: 2 problems"
    assert [line.split(":")[0] for line in lines[1:]] == ["  - 'stps=1'", "  - 'jitt=no'"]


def test_a_config_that_was_wrong_before_is_told_apart():
    with pytest.raises(ConfigError, match=r"^RunConfig: jit=3"):
        apply_overrides(RunConfig(model=ModelConfig(vocab_size=1), jit=3), ["steps=2"])


def test_an_override_leaves_the_given_config_alone():
    before = run(logging=LoggingConfig(tags=("a",)), extra={"a": {"b": 1}})
    apply_overrides(before, ["extra.a.b=2", "logging.tags.0=z"])
    assert before.extra == {"a": {"b": 1}}
    assert before.logging.tags == ("a",)


# ---- Finding fields ---------------------------------------------------------------------------


FOUND = {
    "model.hidden_dim": (("model", "hidden_dim"), "identity"),
    "num_steps": (("steps",), "schedule"),
    "optim.rate": (("optimizer", "lr"), "identity"),
    "optim": (("optimizer",), "identity"),
    "logging.tags.0": (("logging", "tags", 0), "cosmetic"),  # the section's mark covers it
    "data.stages.1.start": (("data", "stages", 1, "start"), "identity"),
    "data.seed": (("data", "seed"), "schedule"),
    'data.components."web.edu".weight': (("data", "components", "web.edu", "weight"), "identity"),
    **dict.fromkeys(["", "hidden_dim", "model.stepz", "steps.0", "data.stages.2"]),
    "data.components.web.edu": None,
}


@pytest.mark.parametrize("name", FOUND)
def test_any_spelling_leads_to_the_field_and_the_loosest_mark_on_the_way(name: str):
    assert find_field(replace(RUN, logging=LoggingConfig(tags=("a",))), name) == FOUND[name]
