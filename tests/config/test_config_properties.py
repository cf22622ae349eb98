"""Laws that hold for every config: round trips, and fingerprints that ignore order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from config_samples import (
    AdamConfig,
    AttentionConfig,
    BlockConfig,
    ComponentConfig,
    DataConfig,
    Level,
    LoggingConfig,
    ModelConfig,
    MuonConfig,
    Priority,
    RunConfig,
    StageConfig,
    read,
    run,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.config import (
    apply_overrides,
    canonical_json,
    config_difference,
    config_from_mapping,
    config_hash,
    config_to_mapping,
    config_to_yaml,
    fingerprint,
    validated,
)
from chomp.errors import ConfigError

# The first example of a run builds pydantic's validators, so time says nothing here.
law = settings(deadline=None)

finite = st.floats(allow_nan=False, allow_infinity=False)
whole = st.integers(-(10**20), 10**20)
words = st.text(max_size=8) | st.sampled_from(
    ["no", "null", "1e3", "5", "~", "a: b", "<<", "0x1", "\x85", "\u2028 "]
)
plain = st.recursive(
    st.none() | st.booleans() | whole | finite | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
names = words.filter(str.strip)  # items of lists are not blank
paths = names.filter(lambda text: "\0" not in text).map(Path)
positive = st.floats(1e-300, 1e300)


attentions = st.integers(1, 64).flatmap(
    lambda kv: st.builds(
        AttentionConfig,
        num_kv_heads=st.just(kv),
        num_heads=st.integers(0, 9).map(lambda times: kv * times),
        window=st.none() | whole,
    )
)
optimizers = st.builds(AdamConfig, lr=positive, betas=st.tuples(finite, finite)) | st.builds(
    MuonConfig, lr=finite, ns_steps=whole
)
configs = st.builds(
    RunConfig,
    model=st.builds(
        ModelConfig,
        vocab_size=whole,
        block=st.builds(BlockConfig, attention=attentions),
        norm_eps=finite,
        dtype=st.sampled_from(["float32", "bfloat16"]),
        dropout=st.floats(0, 1, exclude_max=True),
    ),
    optimizer=optimizers,
    data=st.builds(
        DataConfig,
        components=st.dictionaries(
            words,
            st.builds(ComponentConfig, weight=finite, paths=st.lists(paths, max_size=2).map(tuple)),
            max_size=3,
        ),
        stages=st.lists(
            st.builds(StageConfig, start=whole, weights=st.dictionaries(words, finite, max_size=2)),
            max_size=2,
        ).map(tuple),
        seed=whole,
    ),
    logging=st.builds(
        LoggingConfig,
        level=st.sampled_from(Level),
        tags=st.lists(names, max_size=3).map(tuple),
        log_file=st.none() | paths,
    ),
    fallback=st.none() | optimizers,
    run_id=words,
    ema_beta=st.none() | finite,
    jit=st.booleans(),
    priority=st.sampled_from(Priority),
    width_or_name=whole | words,
    extra=st.dictionaries(words, plain, max_size=3),
)


def shuffled(value: Any, draw: Any) -> Any:
    """The same plain data with the keys of every mapping in another order."""
    if isinstance(value, dict):
        keys = draw(st.permutations(list(value)))
        return {key: shuffled(value[key], draw) for key in keys}
    if isinstance(value, list):
        return [shuffled(item, draw) for item in value]
    return value


def refusal(action: Callable[[], RunConfig]) -> str:
    """The message of the ConfigError an action ends with; a stock one if it gives a config."""
    try:
        assert isinstance(action(), RunConfig)
    except ConfigError as error:
        return str(error)
    return "Allowed: all of it"


@law
@given(configs)
def test_a_config_survives_its_mapping_and_json(config):
    mapping = config_to_mapping(config)
    assert config_from_mapping(RunConfig, json.loads(json.dumps(mapping))) == config
    assert validated(config) == config


@settings(max_examples=60, deadline=None)
@given(configs)
def test_a_config_survives_its_yaml_text(config):
    assert read(config_to_yaml(config)) == config


@law
@given(configs, st.data())
def test_the_order_of_keys_changes_neither_canonical_json_nor_hash(config, data):
    mapping = config_to_mapping(config)
    other = shuffled(mapping, data.draw)
    assert canonical_json(other) == canonical_json(mapping) == canonical_json(config)
    assert fingerprint(other) == fingerprint(mapping)
    assert config_hash(config_from_mapping(RunConfig, other)) == config_hash(config)
    assert config_difference(config, other) == []


@law
@given(plain, plain)
def test_canonical_json_is_the_same_only_for_the_same_value(one, other):
    assert json.loads(canonical_json(one)) == one
    same_text = canonical_json(one) == canonical_json(other)
    assert same_text <= (one == other)


@law
@given(whole)
def test_an_integer_override_is_that_integer(number):
    assert apply_overrides(run(), [f"steps={number}"]).steps == number


@law
@given(finite)
def test_a_float_override_is_that_float(number):
    assert apply_overrides(run(), [f"ema_beta={number!r}"]).ema_beta == number


@law
@given(st.booleans())
def test_a_boolean_override_is_that_boolean(value):
    assert apply_overrides(run(), [f"jit={str(value).lower()}"]).jit is value


@law
@given(st.sampled_from(["float32", "bfloat16"]), st.sampled_from(Level))
def test_a_choice_override_is_that_choice(dtype, level):
    config = apply_overrides(run(), [f"model.dtype={dtype}", f"logging.level={level.value}"])
    assert (config.model.dtype, config.logging.level) == (dtype, level)


@law
@given(words)
def test_a_text_override_is_the_text_between_its_ends(text):
    text = text.strip()
    is_quoted = text[:1] in ("'", '"')
    if text != "null" and not is_quoted:
        assert apply_overrides(run(), [f"run_id={text}"]).run_id == text


@law
@given(words.filter(str.isprintable))
def test_a_quoted_text_override_is_what_the_quotes_hold(text):
    assert apply_overrides(run(), [f"run_id={json.dumps(text, ensure_ascii=False)}"]).run_id == text


@law
@given(st.lists(whole.map(str) | st.sampled_from(["a", "no", "true", "1e3", "0x1F", "1_0"])))
def test_a_list_override_of_text_keeps_each_item_as_it_is_written(items):
    tags = apply_overrides(run(), [f"logging.tags=[{', '.join(items)}]"]).logging.tags
    assert tags == tuple(items)


@law
@given(st.text(st.characters(codec="utf-8", exclude_characters="\"'"), max_size=6), finite)
def test_every_key_of_a_mapping_can_be_reached_by_its_quoted_name(key, weight):
    config = run(data=DataConfig(components={key: ComponentConfig(weight=1.0)}))
    changed = apply_overrides(config, [f'data.components."{key}".weight={weight!r}'])
    assert changed.data.components == {key: ComponentConfig(weight=weight)}


@law
@given(plain)
def test_no_plain_data_gives_anything_but_a_config_or_a_config_error(value):
    for mapping in (value, {"model": value}, {"model": {"vocab_size": 1}, "optim": value}):
        assert "Allowed: " in refusal(lambda given=mapping: config_from_mapping(RunConfig, given))


@law
@given(st.text(max_size=20))
def test_no_override_text_gives_anything_but_a_config_or_a_config_error(text):
    for override in (text, f"steps={text}", f"extra={text}", f"data.components.{text}"):
        assert "Allowed: " in refusal(lambda given=override: apply_overrides(run(), [given]))


@pytest.mark.parametrize("value", [True, False, "x", [], {}, 1.5])
def test_a_wrong_value_is_refused_at_every_integer_of_a_run(value):
    for path in (("steps",), ("data", "seed"), ("model", "block", "attention", "num_heads")):
        mapping = config_to_mapping(run())
        inner = mapping
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        with pytest.raises(ConfigError, match=rf"^config: {'.'.join(path)}="):
            config_from_mapping(RunConfig, mapping)
