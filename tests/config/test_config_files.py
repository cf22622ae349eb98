"""Config files: YAML and JSON are read safely, and mistakes in them are named."""

import contextlib
import json
from pathlib import Path

import pytest
import yaml
from config_samples import AdamConfig, MuonConfig, RunConfig, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chomp.config import config_to_mapping, config_to_yaml, load_config
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


def written(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_yaml_file_is_read_with_numbers_as_people_write_them_and_no_other_surprise(tmp_path):
    config = load_config(RunConfig, written(tmp_path, TEXT))
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
def test_a_scalar_in_free_data_means(tmp_path, text, meant):
    path = written(tmp_path, f"model: {{vocab_size: 1}}\nextra:\n  a: {text}\n")
    found = load_config(RunConfig, path).extra["a"]
    assert found == meant
    assert type(found) is type(meant)


def test_a_json_file_is_read(tmp_path):
    config = run(optimizer=MuonConfig(), steps=3)
    path = written(tmp_path, json.dumps(config_to_mapping(config)), "run.json")
    assert load_config(RunConfig, str(path)) == config


@pytest.mark.parametrize("name", ["empty.yaml", "empty.json"])
def test_an_empty_file_is_all_defaults(tmp_path, name):
    assert load_config(AdamConfig, written(tmp_path, "", name)) == AdamConfig()


def test_yaml_text_reads_back_equal_here_and_with_plain_yaml(tmp_path):
    config = run(
        run_id="3e-4",
        extra={"words": ["no", "null", "1e3", "12:30", "a: b", "é", "\x85", "\u2028x"]},
    )
    text = config_to_yaml(config)
    assert load_config(RunConfig, written(tmp_path, text)) == config
    assert yaml.safe_load(text) == config_to_mapping(config)
    assert text.startswith("model:\n  vocab_size: 256\n")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (
            "twice.yaml",
            "model:\n  vocab_size: 1\n  hidden_dim: 2\n  vocab_size: 3\n",
            "line 4, column 3: the key 'vocab_size' is written twice, first in line 2",
        ),
        ("deep.yaml", "data:\n  stages:\n  - {start: 1, start: 1}\n", "the key 'start'"),
        ("twice.json", '{"model": {"vocab_size": 1, "vocab_size": 1}}', "the key 'vocab_size'"),
        ("broken.yaml", "model: [1\nsteps: 3\n", "cannot be read as YAML: line 2"),
        ("broken.json", '{"model": }', "cannot be read as JSON: Expecting value: line 1"),
        ("nan.json", '{"ema_beta": NaN}', "NaN is no JSON number"),
        ("two.yaml", "steps: 1\n---\nsteps: 2\n", "cannot be read as YAML"),
        ("code.yaml", "steps: !!python/object/apply:os.getcwd []\n", "cannot be read as YAML"),
        ("self.yaml", "extra: &a {b: *a}\n", "cannot be read as YAML"),
        ("list.yaml", "- model\n", "the config is ['model'] (a list)"),
        ("date.yaml", "ema_beta: !!timestamp 2026-01-31\n", "ema_beta=datetime.date(2026, 1, 31)"),
        ("nan.yaml", "ema_beta: .nan\n", "ema_beta=nan (a number). Allowed: a finite number"),
        ("wrong.yaml", "model: {vocab_size: 1}\nstpes: 3\n", "did you mean steps?"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong_in_it(tmp_path, name, text, told):
    path = written(tmp_path, text, name)
    with pytest.raises(ConfigError) as caught:
        load_config(RunConfig, path)
    assert str(caught.value).startswith(str(path))
    assert told in str(caught.value)


def test_a_missing_file_is_named_with_the_nearest_one(tmp_path):
    written(tmp_path, "", "small.yaml")
    with pytest.raises(ConfigError) as caught:
        load_config(RunConfig, tmp_path / "smal.yaml")
    assert str(caught.value) == (
        f"there is no config file {tmp_path}/smal.yaml (did you mean small.yaml?). "
        f"Allowed: the path of a YAML or JSON file. Fix: pass {tmp_path}/small.yaml."
    )


def test_a_missing_folder_and_an_unreadable_file_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no config file .*nowhere/run\.yaml\. "):
        load_config(RunConfig, tmp_path / "nowhere" / "run.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(RunConfig, tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"run_id: caf\xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml cannot be read: .*utf-8"):
        load_config(RunConfig, tmp_path / "latin.yaml")


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
def test_a_yaml_that_would_hang_or_fill_the_memory_is_refused(text: str, tmp_path):
    with pytest.raises(ConfigError):
        load_config(RunConfig, written(tmp_path, text))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"run_id": ' + "9" * 5000 + "}"])
def test_a_json_file_that_python_cannot_hold_is_refused(text: str, tmp_path):
    with pytest.raises(ConfigError):
        load_config(RunConfig, written(tmp_path, text, "run.json"))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32", "latin-1"])
def test_a_file_in_another_encoding_is_refused_or_means_the_same(encoding: str, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes("model: {vocab_size: 1}\nrun_id: café\n".encode(encoding))
    with contextlib.suppress(ConfigError):
        assert load_config(RunConfig, path).run_id == "café"


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
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_refused_or_gives_a_config_that_reads_back_equal(tmp_path, changes):
    text = TEXT
    for start, length, token in changes:
        text = text[:start] + token + text[start + length :]
    try:
        config = load_config(RunConfig, written(tmp_path, text))
    except ConfigError:
        return
    assert load_config(RunConfig, written(tmp_path, config_to_yaml(config))) == config
