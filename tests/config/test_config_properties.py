"""Laws that hold for every config: round trips, and fingerprints that ignore order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


@settings(max_examples=60, deadline=None)
@given(configs, st.data())
def test_a_config_survives_its_mapping_json_and_yaml_in_any_order_of_keys(config, data):
    assert validated(config) == config
    mapping = config_to_mapping(config)
    assert config_from_mapping(RunConfig, json.loads(json.dumps(mapping))) == config
    assert read(config_to_yaml(config)) == config
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
@given(
    whole, finite, st.booleans(), st.sampled_from(["float32", "bfloat16"]), st.sampled_from(Level)
)
def test_a_scalar_override_is_that_scalar(number, rate, flag, dtype, level):
    texts = [f"steps={number}", f"ema_beta={rate!r}", f"jit={str(flag).lower()}"]
    texts += [f"model.dtype={dtype}", f"logging.level={level.value}"]
    found = apply_overrides(run(), texts)
    values = (found.steps, found.ema_beta, found.jit, found.model.dtype, found.logging.level)
    assert values == (number, rate, flag, dtype, level)


@law
@given(words)
def test_a_text_override_is_the_text_between_its_ends_or_its_quotes(text):
    bare = text.strip()
    if bare != "null" and bare[:1] not in ("'", '"'):
        assert apply_overrides(run(), [f"run_id={bare}"]).run_id == bare
    if text.isprintable():
        quoted = json.dumps(text, ensure_ascii=False)
        assert apply_overrides(run(), [f"run_id={quoted}"]).run_id == text


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
