"""Which folders are variants: by what they hold, never by importing them."""

from pathlib import Path

from chomp.variants.checkout import variant_folders

ROOT = Path(__file__).parents[2]


def planted(root: Path, *files: str) -> Path:
    for name in files:
        path = root / "experiments/grug" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return root


def names(root: Path) -> list[str]:
    return [variant.name for variant in variant_folders(root)]


def test_every_folder_with_python_in_it_is_a_variant_in_the_order_of_names(tmp_path: Path):
    planted(tmp_path, "wide/model.py", "base/train.py", "base/model.py", "odd/only.py")
    assert names(tmp_path) == ["base", "odd", "wide"]
    (base, *_) = variant_folders(tmp_path)
    assert base.folder == tmp_path / "experiments/grug/base"
    assert base.root == tmp_path
    assert base.file_path("train.py") == "experiments/grug/base/train.py"
    assert base.not_verified is None


def test_what_is_left_hidden_or_being_made_is_no_variant(tmp_path: Path):
    planted(
        tmp_path,
        "__init__.py",
        "loose.py",
        "__pycache__/model.py",
        ".half/model.py",
        "package/__init__.py",
        "notes/README.md",
        "deep/inner/model.py",
    )
    assert names(tmp_path) == []


def test_a_folder_without_templates_has_no_variants(tmp_path: Path):
    assert names(tmp_path) == []


def test_a_variant_that_cannot_be_imported_is_one_all_the_same(tmp_path: Path):
    planted(tmp_path, "broken/train.py")
    (tmp_path / "experiments/grug/broken/train.py").write_text(
        "# GRUG NOVERIFY: half of it is missing, until 2100-01-01\ndef (\n"
    )
    (variant,) = variant_folders(tmp_path)
    assert variant.not_verified is not None
    assert variant.not_verified.reason == "half of it is missing"


def test_this_checkout_has_base():
    assert "base" in names(ROOT)
