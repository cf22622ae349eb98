"""A run's own copy of its template: which file is loaded, under which name, and whose code."""

import os
import py_compile
import shutil
import sys
import traceback
from functools import partial
from importlib.util import cache_from_source
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest

from chomp.cli.templates import load_template
from chomp.errors import ConfigError
from chomp.tracking.run_files import (
    is_remembered,
    remember_template,
    sources_hash,
    template_sources,
)

ROOT = Path(__file__).parents[2]
trusted = partial(load_template, is_trusted=True)
# No such package can be imported: the checkout that the copies came from is gone.
PACKAGE = "experiments.grug.vanished"
MODEL = "VALUE = {value}\n\n\ndef fails():\n    raise RuntimeError('here')\n"
# Each leaves a function `value` that gives what the model of the same folder holds.
STYLES = {
    "from package.model import": f"from {PACKAGE}.model import VALUE\ndef value(): return VALUE\n",
    "from package import model": f"from {PACKAGE} import model\ndef value(): return model.VALUE\n",
    "import as": f"import {PACKAGE}.model as m\ndef value(): return m.VALUE\n",
    "import in full": f"import {PACKAGE}.model\ndef value(): return {PACKAGE}.model.VALUE\n",
    "relative": "from .model import VALUE\ndef value(): return VALUE\n",
    "when called": f"def value():\n    from {PACKAGE}.model import VALUE\n    return VALUE\n",
}


def template(folder: Path, train: str, *, value: int = 7, **others: str) -> Path:
    """A template of a few lines in a folder."""
    folder.mkdir(parents=True)
    for name, text in {"model": MODEL.format(value=value), "train": train, **others}.items():
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.mark.parametrize("style", STYLES)
def test_a_copy_imports_its_own_files_however_they_are_imported(style: str, tmp_path: Path):
    copy = template(tmp_path / "template", STYLES[style])
    assert trusted(copy).part("value")() == 7


def test_two_copies_of_one_template_live_side_by_side(tmp_path: Path):
    train = STYLES["when called"]
    first = trusted(template(tmp_path / "a", train, value=1))
    second = trusted(template(tmp_path / "b", train, value=2))
    assert (first.part("value")(), second.part("value")()) == (1, 2)


def test_a_copy_is_not_the_checkouts_file_of_the_same_name(tmp_path: Path, monkeypatch):
    checkout = template(tmp_path / "experiments/grug/vanished", "", value=1)
    for folder in (checkout, checkout.parent, checkout.parents[1]):
        (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    copy = template(tmp_path / "template", STYLES["from package.model import"], value=2)
    assert trusted(copy).part("value")() == 2
    assert not any(name.startswith(PACKAGE) for name in sys.modules)


def test_loading_leaves_other_modules_and_the_folder_as_they_were(tmp_path: Path):
    copy = template(tmp_path / "template", STYLES["from package.model import"], value=3)
    before = dict(sys.modules)
    trusted(copy)
    new = {name for name in sys.modules if name not in before}
    assert {name.split(".")[0] for name in new} == {trusted(copy).train.__package__}
    assert all(sys.modules[name] is module for name, module in before.items())
    assert sorted(path.name for path in copy.iterdir()) == ["model.py", "train.py"]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (b"VALUE = 1\n\ndef (:\n", "model.py, line 3, is no Python: "),
        (b"VALUE = 1\0\n", "model.py is no Python: "),
        (b"VALUE = '\xff'\n", "model.py is no Python: "),
        (b"VALUE = " + b"(" * 100_000, "model.py, line 1, is no Python: "),
        (b"VALUE = " + b"-" * 100_000 + b"1\n", "model.py is no Python: "),
        (b"\nVALUE = VALVE\n", "NameError: name 'VALVE' is not defined ({}/model.py, line 2)"),
    ],
)
def test_a_damaged_file_of_a_copy_is_named_with_its_line(tmp_path: Path, damage: bytes, told: str):
    copy = template(tmp_path / "template", STYLES["from package.model import"])
    (copy / "model.py").write_bytes(damage)
    with pytest.raises(ConfigError) as refused:
        load_template(copy, is_trusted=True)
    assert told.format(copy) in str(refused.value)
    assert "--template" in str(refused.value)


def test_an_error_in_a_copy_shows_its_own_file_and_line(tmp_path: Path):
    train = f"\n\nfrom {PACKAGE}.model import fails\n"
    copy = template(tmp_path / "template", train, value=4)
    with pytest.raises(RuntimeError) as caught:
        trusted(copy).part("fails")()
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.lineno) == (str(copy / "model.py"), 5)
    assert last.line == "raise RuntimeError('here')"


def test_a_file_named_like_a_library_does_not_stand_for_it(tmp_path: Path):
    train = (
        "from email.message import Message\nfrom json.decoder import JSONDecoder\n"
        f"from {PACKAGE}.model import VALUE\nfrom {PACKAGE}.message import TEXT\n"
        "def value(): return VALUE, TEXT, Message.__module__\n"
    )
    copy = template(tmp_path / "template", train, message="TEXT = 'own'\n")
    assert trusted(copy).part("value")() == (7, "own", "email.message")


def test_two_packages_that_could_both_be_the_templates_own_are_refused(tmp_path: Path):
    train = f"from {PACKAGE}.model import VALUE\nfrom somebody.model import OTHER\n"
    with pytest.raises(ConfigError, match=r"under experiments\.grug\.vanished and somebody"):
        trusted(template(tmp_path / "template", train))


def test_what_a_template_lacks_is_named(tmp_path: Path):
    loaded = trusted(template(tmp_path / "template", "fresh_state = None\n"))
    with pytest.raises(ConfigError, match=r"train\.py without scores_of.*--template"):
        loaded.part("scores_of")


def test_an_import_that_cannot_be_found_is_told_with_its_name(tmp_path: Path):
    copy = template(tmp_path / "template", "import no_such_package\n")
    with pytest.raises(ConfigError, match="cannot be imported: No module named 'no_such_package'"):
        trusted(copy)


@pytest.mark.parametrize("makes_folder", [True, False])
def test_a_folder_without_a_train_file_is_no_template(makes_folder: bool, tmp_path: Path):
    if makes_folder:
        (tmp_path / "template").mkdir()
    with pytest.raises(ConfigError, match="no train.py" if makes_folder else "no folder"):
        trusted(tmp_path / "template")


def ran_marker(folder: Path) -> str:
    """Source that leaves a file when it is run."""
    return f"from pathlib import Path\nPath({str(folder / 'ran')!r}).touch()\n"


def test_code_of_unknown_origin_is_not_run_unless_it_is_trusted(tmp_path: Path):
    copy = template(tmp_path / "template", ran_marker(tmp_path))
    with pytest.raises(ConfigError, match=r"run it: model\.py, train\.py \(hash .*--trust"):
        load_template(copy)
    assert not (tmp_path / "ran").exists()
    load_template(copy, is_trusted=True)
    assert (tmp_path / "ran").exists()
    # Trusted once is not trusted for ever.
    with pytest.raises(ConfigError, match="--trust"):
        load_template(copy)


def test_code_that_equals_a_template_of_the_checkout_is_run_until_it_differs(tmp_path: Path):
    copy = tmp_path / "template"
    shutil.copytree(ROOT / "experiments/grug/base", copy)
    assert load_template(copy).part("GrugRunConfig")
    (copy / "jax.py").write_text("")  # all files count, whoever imports them
    with pytest.raises(ConfigError, match=r"jax\.py"):
        load_template(copy)


def test_a_template_around_the_current_folder_makes_no_copy_known(tmp_path: Path, monkeypatch):
    copy = template(tmp_path / "template", "x = 1\n")
    template(tmp_path / "experiments/grug/theirs", "x = 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="of unknown origin"):
        load_template(copy)


def test_a_template_of_a_run_of_this_user_is_known_wherever_its_copy_lies(tmp_path: Path):
    copy = template(tmp_path / "template", "x = 1\n")
    remember_template(sources_hash(template_sources(copy)))
    shutil.copytree(copy, tmp_path / "moved")
    assert load_template(tmp_path / "moved").part("x") == 1
    # The names are part of what is known, and so is each file that was added since.
    (copy / "model.py").rename(copy / "other.py")
    (tmp_path / "moved/added.py").touch()
    for folder in (copy, tmp_path / "moved"):
        with pytest.raises(ConfigError, match="of unknown origin"):
            load_template(folder)


def test_what_is_not_source_stands_for_nothing_in_a_known_template(tmp_path: Path):
    copy = template(tmp_path / "template", STYLES["from package.model import"])
    remember_template(sources_hash(template_sources(copy)))
    planted = tmp_path / "planted.py"
    planted.write_text(ran_marker(tmp_path))
    for name in ("model", "train", "__init__"):
        pyc = cache_from_source(str(copy / f"{name}.py"))
        # One that Python would take without a look at its source.
        py_compile.compile(str(planted), pyc, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
        py_compile.compile(str(planted), str(copy / f"{name}.pyc"))
    for package in ("model", "train", "jax"):  # folders go before files of the same name
        (copy / package).mkdir()
        shutil.copy(planted, copy / package / "__init__.py")
    os.mkfifo(copy / "pipe.py")
    assert load_template(copy).part("value")() == 7
    assert not (tmp_path / "ran").exists()


def test_what_was_judged_is_what_is_run_though_the_files_change(tmp_path: Path):
    lazily = STYLES["when called"] + ran_marker(tmp_path).replace("ran", "first")
    copy = template(tmp_path / "template", lazily, value=11)
    remember_template(sources_hash(template_sources(copy)))
    loaded = load_template(copy)
    (copy / "model.py").write_text("VALUE = 12\n")
    assert loaded.part("value")() == 11


def test_templates_are_known_by_notes_that_only_this_user_can_write(
    tmp_path: Path, monkeypatch, caplog: pytest.LogCaptureFixture
):
    notes = tmp_path / "chomp/templates"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    remember_template("a" * 64)
    assert is_remembered("a" * 64)
    assert not caplog.records
    (tmp_path / "target").touch()
    (notes / ("b" * 64)).symlink_to(tmp_path / "target")
    notes.chmod(0o777)
    remember_template("c" * 64)
    assert "not this user's alone" in caplog.text
    assert not any(map(is_remembered, ("a" * 64, "b" * 64, "c" * 64)))
    notes.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert not is_remembered("a" * 64)


@pytest.mark.parametrize(
    "home", [{"XDG_STATE_HOME": "here"}, {"HOME": "/dev/null"}, {"HOME": "here"}]
)
def test_without_a_home_nothing_is_known_and_nothing_fails(
    home: dict[str, str], tmp_path: Path, monkeypatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/dev/null")
    for name, value in home.items():
        monkeypatch.setenv(name, value)
    remember_template("a" * 64)
    assert "may ask for --trust" in caplog.text
    assert not is_remembered("a" * 64)
    assert list(tmp_path.iterdir()) == []  # the current folder may be anybody's


def test_the_name_of_a_copy_tells_its_sources_and_not_its_place(tmp_path: Path):
    first = trusted(template(tmp_path / "a", "x = 1\n"))
    moved = trusted(template(tmp_path / "b", "x = 1\n"))
    other = trusted(template(tmp_path / "c", "x = 2\n"))
    names = [loaded.train.__package__ for loaded in (first, moved, other)]
    assert names[0] == names[1] != names[2]
    assert all(len(name) == len("run_template_") + 12 for name in names)
