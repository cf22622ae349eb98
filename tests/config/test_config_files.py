"""YAML of config files: read safely, mistakes in it are named, and what is written reads back."""

import json
from typing import Any

import pytest
import yaml
from config_samples import AdamConfig, read, run
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.config import config_to_mapping, config_to_yaml
from chomp.errors import ConfigError

TEXT = """\
model: {vocab_size: 1e3}
optim: &adam
  kind: adamw
  lr: 3e-4
fallback:
  <<: *adam
  lr: 1e-3
run_id: off
logging:
  tags: [2026-01-31, 12:30, 010, yes]
"""


def test_a_yaml_file_is_read_with_numbers_as_people_write_them_and_no_other_surprise():
    config = read(TEXT)
    assert config.model.vocab_size == 1000
    assert config.optimizer == AdamConfig(lr=3e-4)
    assert config.fallback == AdamConfig(lr=1e-3)
    assert config.run_id == "off"
    assert config.logging.tags == ("2026-01-31", "12:30", "010", "yes")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("1e3", 1000.0),
        ("-1.5E+2", -150.0),
        (".5", 0.5),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0", 0),
        ("~", None),
        ("", None),
        ("True", True),
        ("on", "on"),
        ("1:30", "1:30"),
        ("0o17", "0o17"),
        ("1.2.3", "1.2.3"),
        ("e5", "e5"),
    ],
)
def test_a_scalar_in_free_data_means(text: str, meant: Any):
    found = read(f"model: {{vocab_size: 1}}\nextra:\n  a: {text}\n").extra["a"]
    assert found == meant
    assert type(found) is type(meant)


def test_json_is_yaml_too_and_an_empty_file_is_all_defaults():
    config = run(steps=3)
    assert read(json.dumps(config_to_mapping(config))) == config
    assert read("", AdamConfig) == AdamConfig()


def test_yaml_text_reads_back_equal_here_and_with_plain_yaml():
    config = run(
        run_id="3e-4",
        extra={"words": ["no", "null", "1e3", "12:30", "a: b", "é", "\x85", "\u2028x"]},
    )
    text = config_to_yaml(config)
    assert read(text) == config
    assert yaml.safe_load(text) == config_to_mapping(config)
    assert text.startswith("model:\n  vocab_size: 256\n")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "model:\n  vocab_size: 1\n  hidden_dim: 2\n  vocab_size: 3\n",
            "line 4, column 3: the key 'vocab_size' is written twice, first in line 2",
        ),
        ("data:\n  stages:\n  - {start: 1, start: 1}\n", "the key 'start'"),
        ("model: [1\nsteps: 3\n", "cannot be read as YAML: line 2"),
        ("steps: 1\n---\nsteps: 2\n", "cannot be read as YAML"),
        ("steps: !!python/object/apply:os.getcwd []\n", "cannot be read as YAML"),
        ("extra: &a {b: *a}\n", "cannot be read as YAML"),
        ("- model\n", "the config is ['model'] (a list)"),
        ("ema_beta: !!timestamp 2026-01-31\n", "ema_beta=datetime.date(2026, 1, 31)"),
        ("ema_beta: .nan\n", "ema_beta=nan (a number). Allowed: a finite number"),
        ("model: {vocab_size: 1}\nstpes: 3\n", "did you mean steps?"),
    ],
)
def test_a_bad_text_is_named_with_what_is_wrong_in_it(text: str, told: str):
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value).startswith("run.yaml")
    assert told in str(caught.value)


def nested_aliases(link: str) -> str:
    """Nine lists of nine aliases each: half a kilobyte that stands for 9 ** 9 values."""
    rows = ["a0: &a0 {x: 1}"]
    rows += [f"a{n}: &a{n} " + link.format(", ".join([f"*a{n - 1}"] * 9)) for n in range(1, 10)]
    return "\n".join(rows)


@pytest.mark.parametrize(
    "text",
    [
        nested_aliases("[{}]"),
        nested_aliases("{{<<: [{}]}}"),
        "[" * 5000 + "]" * 5000,
        "run_id: " + "9" * 5000,
        "run_id: 0x" + "f" * 5000,
        "run_id: " + "x" * 5_000_000,
    ],
    ids=["aliases", "merge keys", "nesting", "an integer", "a hexadecimal integer", "size"],
)
def test_a_yaml_that_would_hang_or_fill_the_memory_is_refused(text: str):
    with pytest.raises(ConfigError):
        read(text)


# What YAML has for those who want to break a reader: tags, anchors, merges, keys that are no text.
HOSTILE = [
    *("!!int x", "!!float ''", "!!bool x", "!!timestamp x", "!!binary é", "!!set [a]", "!!null x"),
    *("!!omap [1]", "!!pairs 3", "!!map [1]", "!!seq {a: 1}", "!!str [1]", "!ours x", "<<: "),
    *("!!python/object/apply:os.system [ls]", "&a ", "*adam", "*b", "<<: [*adam, 1]", "- ", "~"),
    *("? [a]: b\n", "? {a: 1}\n: b\n", "---\n", "...\n", "%YAML 9.9\n---\n", "\t", "\0", "\ufeff"),
    *("{", "}", "[", "]", ":", "|", "> ", "'", '"', "\\", "#", "\n", "\n  ", "é", "\u2028"),
    *("1e999", "-.inf", ".nan", "0x", "1_", "9" * 40, "9" * 400, "a" * 300, "$variables.x"),
]


@given(st.lists(st.tuples(st.integers(0, len(TEXT)), st.integers(0, 6), st.sampled_from(HOSTILE))))
@settings(max_examples=300)
def test_a_damaged_file_is_refused_or_gives_a_config_that_reads_back_equal(changes: Any):
    text = TEXT
    for start, length, token in changes:
        text = text[:start] + token + text[start + length :]
    try:
        config = read(text)
    except ConfigError:
        return
    assert read(config_to_yaml(config)) == config
