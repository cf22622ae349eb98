"""A copy's source: what carried the origin's name carries the copy's, and nothing else changes."""

import ast

import pytest

from chomp.variants.lifecycle import Renaming, is_variant_name
from tests.variants.small_checkout import ROOT

BASE_FILES = ["__init__", "model", "train", "launch"]


def renamed(source: str, origin: str = "base", name: str = "wide_mlp") -> str:
    return Renaming(origin, name).source(source)


CHANGED = {
    "from experiments.grug.base.model import M": "from experiments.grug.wide_mlp.model import M",
    "import experiments.grug.base": "import experiments.grug.wide_mlp",
    "class GrugBaseLaunchConfig(Config): ...": "class GrugWideMlpLaunchConfig(Config): ...",
    "def train_base(x: GrugBaseLaunchConfig): ...": (
        "def train_wide_mlp(x: GrugWideMlpLaunchConfig): ..."
    ),
    'VARIANT = "base"': 'VARIANT = "wide_mlp"',
    "VARIANT: str = 'base'  # base": "VARIANT: str = 'wide_mlp'  # base",
    'run_id: str = setting(default="base", mark="base")': (
        'run_id: str = setting(default="wide_mlp", mark="wide_mlp")'
    ),
    'f(\n    1,\n    run_id="base",\n    mode="base",\n)': (
        'f(\n    1,\n    run_id="wide_mlp",\n    mode="base",\n)'
    ),
    '"""run experiments/grug/base/launch.py"""': '"""run experiments/grug/wide_mlp/launch.py"""',
    "x = f'experiments/grug/base/{y}/base'": "x = f'experiments/grug/wide_mlp/{y}/base'",
    "# see GrugBaseLaunchConfig in base": "# see GrugWideMlpLaunchConfig in base",
    '"""The base model: a base run."""': '"""The wide_mlp model: a wide_mlp run."""',
}
KEPT = [
    "# verbatim: base",
    'x = {"base": base, "kind": "base"}',
    "base = 10_000.0  # the base of the rotary angles",
    "from experiments.grug.base_wide.model import M",
    "import other.experiments_grug.base",
    "class GrugBaseLaunchConfigs: ...",
    "def train_base_only(): ...",
    '"""The base frequency; experiments/grug/base_wide."""',
    "x = b'base'",
    "x = '\u2028' 'base'\nbase = 1",
]


@pytest.mark.parametrize(("source", "wanted"), CHANGED.items())
def test_what_carries_the_name_is_renamed(source: str, wanted: str):
    assert renamed(source + "\n") == wanted + "\n"


@pytest.mark.parametrize("source", KEPT)
def test_what_only_looks_like_the_name_stays(source: str):
    assert renamed(source + "\n") == source + "\n"


@pytest.mark.parametrize("file", BASE_FILES)
def test_base_renamed_and_renamed_back_is_base(file: str):
    source = (ROOT / f"experiments/grug/base/{file}.py").read_text()
    there = renamed(source, "base", "zz")
    ast.parse(there)
    assert "grug.base" not in there
    assert "grug/base" not in there
    assert renamed(there, "zz", "base") == source


def test_a_sentence_gives_way_where_the_longer_name_would_make_its_line_too_long():
    said = f'"""The base model {"of many words " * 6}."""\n'
    assert renamed(said, "base", "a_name_that_is_very_long") == said
    assert renamed('"""Of the base model."""\n', "base", "array") == '"""Of the array model."""\n'
    assert renamed('"""Of a base run."""\n', "base", "array") == '"""Of an array run."""\n'


@pytest.mark.parametrize(
    "name", ["", "Mine", "my-run", "1st", "class", "_x", "a/b", "naïve", "a ", "."]
)
def test_a_name_that_could_not_be_imported_everywhere_is_none(name: str):
    assert not is_variant_name(name)
    assert is_variant_name("a1_b")
