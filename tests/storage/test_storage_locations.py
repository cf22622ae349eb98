"""The text of paths: joining, normalising and telling local from remote."""

import posixpath
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.errors import StorageError
from chomp.storage import is_local, join, name_of, normalise, parent_of
from chomp.storage.paths import without_dots

names = st.text(st.characters(codec="utf-8", exclude_characters="/\0:"), min_size=1).filter(
    lambda name: name not in (".", "..")
)
bases = st.sampled_from(
    ["/", "/data", "runs", "s3://bucket", "memory://", "file:///tmp", "gs://b/k/"]
)


@settings(deadline=None)  # a busy machine is no bug
@given(bases, st.lists(names, max_size=4), st.lists(names, min_size=1, max_size=4))
def test_joining_keeps_the_place_and_parent_and_name_undo_it(
    base: str, first: list[str], second: list[str]
):
    path = join(base, *first, *second)
    assert join(join(base, *first), *second) == path == normalise(path)
    assert is_local(path) == is_local(base)
    assert name_of(path) == second[-1]
    assert parent_of(path) == join(base, *first, *second[:-1])
    assert join("/data", *second) == posixpath.join("/data", *second)


@pytest.mark.parametrize(
    ("given_path", "normal"),
    [
        ("file:///data/run", "/data/run"),
        ("file://localhost/data/run", "/data/run"),
        ("local:///data/run/", "/data/run"),
        ("file:///", "/"),
        ("/data/run//", "/data/run"),
        ("runs/../other", "runs/../other"),
        ("s3://bucket/run/", "s3://bucket/run"),
        ("memory://", "memory://"),
        ("simplecache::s3://bucket/x", "simplecache::s3://bucket/x"),
        ("what a://name", "what a://name"),
        (Path("/data") / "run", "/data/run"),
    ],
)
def test_every_place_has_one_spelling(given_path: str | Path, normal: str):
    assert normalise(given_path) == normal
    is_address = "://" in normal and " " not in normal
    assert is_local(given_path) == (not is_address)


def test_empty_parts_are_left_out():
    assert join("s3://bucket", "", "run") == "s3://bucket/run"


@pytest.mark.parametrize("part", ["/etc", "../up", "a/../../b", "s3://other/x"])
def test_a_part_cannot_lead_out_of_its_base(part: str):
    with pytest.raises(StorageError, match="Allowed: relative parts"):
        join("/data/run", part)


@pytest.mark.parametrize("path", ["", "a\0b", "file://runs/x", "file://", "\ud800"])
def test_a_path_that_names_no_place_is_refused(path: str):
    with pytest.raises(StorageError, match="Fix: "):
        normalise(path)


def test_an_address_that_went_through_pathlib_is_refused():
    with pytest.raises(StorageError, match="pass addresses as str"):
        normalise(Path("s3://bucket/run"))


def test_the_bucket_is_its_own_parent():
    assert parent_of("s3://bucket") == "s3://bucket"
    assert parent_of("memory://run") == "memory://"
    assert parent_of("/") == "/"
    assert parent_of("run") == "."


def test_importing_the_rooms_without_jax_loads_nothing_heavy(
    start: Callable[..., subprocess.Popen[str]],
):
    heavy = "{'jax', 'jaxlib', 'numpy', 'fsspec', 'rich'}"
    code = "import sys, chomp.storage, chomp.storage.screen, chomp.config\n"
    process = start(f"{code}print({heavy} & set(sys.modules))")
    assert process.communicate(timeout=120)[0] == "set()\n"


def test_dots_are_followed_as_the_system_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "far/inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("far/inner")
    assert without_dots("a/../b") == "b"
    assert without_dots("a/b") == "a/b"
    assert without_dots("s3://bucket/a/../b") == "s3://bucket/a/../b"
    assert without_dots("link/../b") == str((tmp_path / "far/b").resolve())
