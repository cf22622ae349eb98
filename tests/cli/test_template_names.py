"""`template: NAME`: a folder of the checkout, a path, or the default."""

from pathlib import Path

import pytest
import yaml

from chomp.cli.templates import template_folder, template_name
from chomp.errors import ConfigError

ROOT = Path(__file__).parents[2]


def launch_file(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "launch.py").write_text("")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, a checkout with two templates."""
    root = tmp_path / "checkout"
    for name in ("base", "moe"):
        launch_file(root / "experiments/grug" / name)
    (root / "configs").mkdir()
    monkeypatch.chdir(root)
    return root


def test_a_name_is_a_folder_of_the_checkout_from_anywhere_inside(checkout: Path, monkeypatch):
    assert template_folder("moe") == Path("experiments/grug/moe")
    monkeypatch.chdir(checkout / "configs")
    assert template_folder("moe") == checkout / "experiments/grug/moe"


def test_outside_of_a_checkout_that_of_the_file_counts(checkout: Path, monkeypatch, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    beside = str(checkout / "configs/mine.yaml")
    assert template_folder("moe", beside=beside) == checkout / "experiments/grug/moe"


def test_the_default_is_megalodon_and_base_until_there_is_one(checkout: Path):
    assert template_folder(None) == Path("experiments/grug/base")
    launch_file(checkout / "experiments/grug/megalodon")
    assert template_folder(None) == Path("experiments/grug/megalodon")


@pytest.mark.parametrize("named", ["mine", "./mine", "experiments/grug/base"])
def test_a_path_is_a_path_and_a_name_that_the_checkout_has_not_is_one_too(checkout, named: str):
    launch_file(checkout / "mine")
    assert template_folder(named) == Path(named)


@pytest.mark.parametrize(
    "named", ["moe", "experiments/grug/moe", "./experiments/grug/base", "./mine"]
)
def test_what_is_told_of_a_template_finds_it_again(checkout: Path, named: str):
    launch_file(checkout / "mine")
    told = template_name(template_folder(named))
    assert told == Path(named).name
    assert template_folder(told).resolve() == template_folder(named).resolve()


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("bse", ["template bse", "did you mean base?", "(base, moe)"]),
        ("./base", ["there is no base/launch.py"]),
        ("nowhere/at/all", ["there is no nowhere/at/all/launch.py"]),
    ],
)
def test_a_template_that_is_not_there_is_refused_with_those_that_are(checkout, named, words):
    with pytest.raises(ConfigError) as caught:
        template_folder(named)
    for part in (*words, "Allowed: ", "Fix: pass --template FOLDER"):
        assert part in str(caught.value)


def test_without_a_checkout_the_default_says_so(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="there is no experiments/grug here: this is no checkout"):
        template_folder(None, beside="mine.yaml")


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_a_config_that_comes_along_names_a_template_that_comes_along(path: Path):
    named = yaml.safe_load(path.read_text()).get("template")
    folder = template_folder(named, beside=str(path)).resolve()
    assert folder.parent == ROOT / "experiments/grug"
