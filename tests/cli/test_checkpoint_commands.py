"""`chomp checkpoint`: saved states listed, verified, compared and exported."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from safetensors import safe_open
from safetensors.numpy import load_file

from chomp.checkpoint import read_step_folder, save_step_checkpoint, save_temporary_checkpoint
from chomp.checkpoint.arrays import checked_arrays, read_each
from chomp.checkpoint.format import move_aside, write_metadata
from chomp.storage import read_json
from chomp.tokenize import ByteTokenizer, load_tokenizer, save_tokenizer, train_bpe
from tests.checkpoint.checkpoint_samples import about
from tests.cli.conftest import Chomp, Told, assert_refused

ROWS, COLUMNS = 512, 256  # 512 KiB: enough for a file of its own and for the hash on devices
SMALL: dict[str, np.dtype[Any]] = {
    "layers/0/scale": np.dtype(ml_dtypes.bfloat16),
    "layers/1/scale": np.dtype(np.float16),
    "mask": np.dtype(np.bool_),
    "bins": np.dtype(np.uint8),
}


def numbers(step: int, *, with_ema: bool = True) -> dict[str, np.ndarray]:
    """The leaves of a state: most change with the step, `mask` and `ema_params` do not."""
    rng = np.random.default_rng(step)
    leaves = {"step": np.asarray(step, np.int32)}
    leaves["params/embed"] = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    for name, dtype in SMALL.items():
        drawn = rng.integers(0, 2, 48) if name == "bins" else np.arange(48) % 2
        drawn = rng.standard_normal(48) if "scale" in name else drawn
        leaves[f"params/{name}"] = drawn.astype(dtype).reshape(6, 8)
    if with_ema:
        leaves["ema_params/embed"] = np.linspace(-1, 1, 64, dtype=np.float32)
    return leaves


def state_of(leaves: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """The same as a state: on the mesh, the table cut over it."""
    specs = {name: P("data", "model") if name.endswith("/embed") else P() for name in leaves}
    specs["ema_params/embed"] = P("data")
    placed = {name: NamedSharding(mesh, specs[name]) for name in leaves}
    return {name: jax.device_put(leaf, placed[name]) for name, leaf in leaves.items()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, eight_device_mesh: Mesh) -> Path:
    """A run folder with a permanent checkpoint and a later temporary one of the next attempt."""
    run = tmp_path_factory.mktemp("runs") / "mine"
    folder = str(run / "checkpoints")
    early = about(step=6, tokens_seen=6000, tokenizer_hash=ByteTokenizer().content_hash)
    continues = {"path": f"{folder}/step-6", "run_id": "tiny", "attempt": 1, "step": 6}
    config = {"optimizer": {"lr": 0.2}, "run_id": "tiny"}
    late = replace(early, step=12, tokens_seen=12345, attempt=2, continues=continues, config=config)
    with jax.set_mesh(eight_device_mesh):
        save_step_checkpoint(folder, state_of(numbers(6), eight_device_mesh), early)
        save_temporary_checkpoint(folder, state_of(numbers(12), eight_device_mesh), late)
    save_tokenizer(ByteTokenizer(), str(run / "tokenizer"))
    (run / "template").mkdir()
    (run / "template/model.py").write_text("# the model")
    return run


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    """A copy, so that a test may damage it."""
    return Path(shutil.copytree(saved, tmp_path / "mine"))


def step(run: Path, number: int) -> Path:
    """The folder of a checkpoint."""
    return run / "checkpoints" / f"step-{number}"


def row(told: Told, name: str) -> list[str]:
    """The cells of the line of a table that begins with a name."""
    lines = [line.replace("│", " ").split() for line in told.out.splitlines()]
    (cells,) = [cells for cells in lines if cells[:1] == [name]]
    return cells


# ---- list ----


def test_list_tells_kind_size_tokens_and_lineage_of_each_checkpoint(
    chomp: Chomp, saved: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    told = chomp("checkpoint", "list", str(saved))
    assert told.code == 0
    first, second = row(told, "6"), row(told, "12")
    assert first[1] == "permanent"
    assert "6,000" in first
    assert first[-1] == second[-1] == "complete"
    assert second[1] == "temporary"
    assert " ".join(second).endswith("2 12,345 step 6 complete")
    assert told.out.index("permanent") < told.out.index("temporary")
    # In a terminal of the usual width no line is broken.
    assert max(len(line.rstrip()) for line in told.out.splitlines()[1:]) <= 80


def test_list_tells_weights_that_a_run_began_with_from_a_step_it_went_on_from(
    chomp: Chomp, run: Path
):
    weights = {"path": "w/step-3", "run_id": "tiny", "attempt": 1, "step": 3}
    weights["initialize_from"] = "w/step-3"
    own = weights | {"path": str(step(run, 6)), "step": 6}  # a later attempt hands it on
    for number, continues in ((6, weights), (12, own)):
        found = read_step_folder(str(step(run, number)))
        write_metadata(found.path, replace(found.metadata, continues=continues))
    told = chomp("checkpoint", "list", str(run))
    assert " ".join(row(told, "6")).endswith("weights of w/step-3 complete")
    assert " ".join(row(told, "12")).endswith("12,345 step 6 complete")


@pytest.mark.parametrize("place", ["checkpoints", "checkpoints/step-12"])
def test_a_place_is_a_run_its_checkpoints_or_one_of_them(chomp: Chomp, saved: Path, place: str):
    told = chomp("checkpoint", "list", str(saved / place))
    assert row(told, "12")[-1] == "complete"
    assert ("permanent" in told.out) == (place == "checkpoints")


def test_list_shows_what_is_no_checkpoint_with_the_reason(chomp: Chomp, run: Path):
    shutil.copytree(step(run, 6), step(run, 7))
    shutil.copytree(step(run, 6), run / "checkpoints/step-8.writing")
    (step(run, 6) / "metadata.json").write_text("{")
    move_aside(str(step(run, 12)), why="damaged", attempt=3)
    told = chomp("checkpoint", "list", str(run))
    assert told.code == 0
    assert " ".join(row(told, "6")[3:]).startswith("unreadable: ")
    assert "it holds the checkpoint of step 6" in " ".join(row(told, "7"))
    assert row(told, "8.writing")[-1] == "unfinished"
    assert row(told, "12.damaged-3")[-2:] == ["moved", "aside"]


def test_list_sees_missing_array_files_without_reading_any(chomp: Chomp, run: Path):
    shutil.rmtree(step(run, 12) / "state")
    told = chomp("checkpoint", "list", str(run))
    assert "damaged: state/ lacks" in " ".join(row(told, "12"))
    assert row(told, "6")[-1] == "complete"


def test_a_run_that_has_not_saved_yet_has_an_empty_list(chomp: Chomp, tmp_path: Path):
    (tmp_path / "checkpoints").mkdir()
    told = chomp("checkpoint", "list", str(tmp_path))
    assert (told.code, told.out.splitlines()[-1]) == (0, "no checkpoints yet")


# ---- verify


def test_verify_reads_the_newest_or_all(chomp: Chomp, saved: Path):
    newest, every = (chomp("checkpoint", "verify", str(saved), *more) for more in ([], ["--all"]))
    assert (newest.code, every.code) == (0, 0)
    assert [line.split(",")[0] for line in newest.out.splitlines()] == [f"whole: {step(saved, 12)}"]
    assert "7 arrays" in newest.out
    assert every.out.count("whole: ") == 2


def test_verify_says_what_is_gone_by_now_and_goes_on(
    chomp: Chomp, run: Path, monkeypatch: pytest.MonkeyPatch
):
    def read_and_delete(path: str) -> object:  # as a live run would, meanwhile
        content = read_json(path)
        if "step-12" in path:
            shutil.rmtree(step(run, 6), ignore_errors=True)
        return content

    monkeypatch.setattr("chomp.checkpoint.format.read_json", read_and_delete)
    told = chomp("checkpoint", "verify", str(run), "--all")
    assert told.code == 0
    assert f"gone: {step(run, 6)}" in told.out
    assert f"whole: {step(run, 12)}" in told.out


def largest_file(folder: Path) -> Path:
    """The file that holds the largest array."""
    return max(folder.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)


def flip(path: Path, place: float = 0.5) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 0x10
    path.write_bytes(content)


def saying(field: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., None]:
    """Let the metadata of a checkpoint say something else than what was saved."""

    def harm(folder: Path) -> None:
        found = read_step_folder(str(folder)).metadata
        write_metadata(str(folder), replace(found, **{field: change(getattr(found, field))}))

    return harm


def step_as(dtype: str) -> Callable[..., None]:
    return saying("arrays", lambda arrays: arrays | {"step": {"shape": [], "dtype": dtype}})


other_hash = saying("receipt", lambda receipt: receipt | {"params/bins": "0" * 32})
lost_hash = saying("receipt", lambda receipt: {k: v for k, v in receipt.items() if k != "step"})


def edit(name: str, old: str, new: str, count: int = -1) -> Callable[..., None]:
    """Replace a text in a file of the checkpoint."""

    def harm(folder: Path) -> None:
        text = (folder / name).read_text(errors="surrogateescape")
        (folder / name).write_text(text.replace(old, new, count), errors="surrogateescape")

    return harm


HARM: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a flipped bit": (lambda folder: flip(largest_file(folder)), "  params/embed: "),
    "a shorter file": (
        lambda folder: os.truncate(path := largest_file(folder), path.stat().st_size - 100),
        " bytes instead of ",
    ),
    "a missing file": (lambda folder: largest_file(folder).unlink(), "  params/embed: "),
    "an added file": (lambda folder: (folder / "state/x").write_text("x"), "has x besides"),
    "no arrays": (lambda folder: shutil.rmtree(folder / "state"), "  all 7 arrays: cannot be read"),
    "a broken index": (lambda folder: flip(folder / "state/manifest.ocdbt"), "all 7 arrays: "),
    "what Orbax needs": (
        edit("state/_METADATA", "params/bins", "params/bims"),
        "Orbax describes other arrays: ['params/bims', 'params/bins']",
    ),
    "what Orbax needs, unreadable": (
        edit("state/_METADATA", "{", "[", 1),
        "Orbax cannot read its own description",
    ),
    "no metadata": (lambda folder: (folder / "metadata.json").unlink(), "no metadata.json"),
    "another hash": (other_hash, "  params/bins: differs from the receipt"),
    "another dtype": (step_as("uint32"), "  step: is int32 [], saved was uint32 []"),
    "an unknown dtype": (step_as("iot32"), "the metadata describes step as "),
    "a lost hash": (lost_hash, "  step: the metadata has only"),
}


@pytest.mark.parametrize("harm", HARM)
def test_verify_finds_the_harm_and_names_what_is_harmed(chomp: Chomp, run: Path, harm: str):
    do_harm, told_of = HARM[harm]
    do_harm(step(run, 12))
    told = chomp("checkpoint", "verify", str(run), "--all")
    assert_refused(told, f"1 of 2 checkpoints damaged: {step(run, 12)}", code=1, out=None)
    assert f"whole: {step(run, 6)}" in told.out
    assert told_of in told.out
    assert len(told.out.splitlines()) <= 4  # and only that


@pytest.mark.parametrize("place", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_no_flipped_bit_in_an_array_goes_unnoticed(chomp: Chomp, run: Path, place: float):
    flip(largest_file(step(run, 12)), place)
    told = chomp("checkpoint", "verify", str(step(run, 12)))
    assert told.code == 1
    assert "  params/embed: " in told.out


@pytest.mark.parametrize("ahead_bytes", [0, 600, 1 << 30])
def test_arrays_come_back_in_order_whatever_is_read_ahead(saved: Path, ahead_bytes: int):
    found = read_step_folder(str(step(saved, 6)))
    items = dict(read_each(found, ahead_bytes=ahead_bytes))
    assert list(items) == list(found.metadata.arrays)
    for name, value in items.items():
        assert not isinstance(value, str), value
        assert value.dtype == numbers(6)[name].dtype
        assert value.tobytes() == numbers(6)[name].tobytes()


# ---- diff


def test_diff_tells_how_far_each_array_moved(chomp: Chomp, saved: Path):
    told = chomp("checkpoint", "diff", str(step(saved, 6)), str(saved))
    assert told.code == 0
    assert "2 of 7 arrays are equal" in told.out.splitlines()[2]
    lines = [line.lstrip("│ ") for line in told.out.splitlines()]
    names = [line.split()[0] for line in lines if line.startswith("params/")]
    changes = []
    for name in names:
        old, new = (numbers(n)[name].astype(np.float64) for n in (6, 12))
        told_row = row(told, name)
        differing, share = np.count_nonzero(old != new), f"of {old.size:,}"
        assert " ".join(told_row).find(f"{differing:,} {share} {np.abs(new - old).max():.3g}") > 0
        if numbers(6)[name].dtype != np.uint8:
            changes.append(np.linalg.norm(new - old) / np.linalg.norm(old))
            assert told_row[-1] == f"{changes[-1]:.3g}"
    assert changes == sorted(changes, reverse=True)
    assert names[-1] == "params/bins"  # what is not floating-point comes last
    assert "params/mask" not in told.out


def test_diff_tells_where_in_training_both_are_and_what_config(chomp: Chomp, saved: Path):
    told = chomp("checkpoint", "diff", str(step(saved, 6)), str(saved))
    assert row(told, "tokens_seen")[1:] == ["6,000", "12,345"]
    assert row(told, "attempt")[1:] == ["1", "2"]
    assert row(told, "optimizer.lr")[1:] == ["0.1", "0.2"]
    assert "run_id" not in told.out


def test_diff_reads_nothing_of_arrays_whose_receipts_agree(chomp: Chomp, run: Path, tmp_path: Path):
    shutil.rmtree(step(run, 6) / "state")
    other = shutil.copytree(step(run, 6), tmp_path / "other/step-6")
    told = chomp("checkpoint", "diff", str(step(run, 6)), str(other), "--all")
    assert told.code == 0
    assert "7 of 7 arrays are equal; config fields that differ: none" in told.out
    assert row(told, "params/mask")[-1] == "equal"


def test_diff_puts_what_only_one_has_first(chomp: Chomp, run: Path, eight_device_mesh: Mesh):
    leaves = numbers(6, with_ema=False)
    leaves |= {"params/bins": np.zeros((2, 8), np.uint8), "extra": np.ones(8, np.float32)}
    with jax.set_mesh(eight_device_mesh):
        other = str(run.parent / "other")
        path = save_step_checkpoint(other, state_of(leaves, eight_device_mesh), about(step=6))
    told = chomp("checkpoint", "diff", str(step(run, 12)), path)
    assert " ".join(row(told, "extra")).endswith("float32 [8] only in B")
    assert " ".join(row(told, "ema_params/embed")).endswith("only in A")
    assert "uint8 [6, 8] -> uint8 [2, 8]" in " ".join(row(told, "params/bins"))
    tables = told.out[told.out.index("dtype and shape") :]
    assert tables.index("extra") < tables.index("│ params/bins") < tables.index("│ params/embed")


def test_diff_refuses_to_compare_with_a_damaged_array(chomp: Chomp, run: Path):
    flip(largest_file(step(run, 12)))
    told = chomp("checkpoint", "diff", str(step(run, 6)), str(run))
    assert_refused(told, f"{step(run, 12)} is damaged: params/embed", code=1, out=None)


@pytest.mark.parametrize("name", ["step-3", "step-007", "step-6.damaged-1", "checkpoints"])
def test_a_run_folder_is_one_whatever_its_name(chomp: Chomp, run: Path, name: str):
    renamed = run.rename(run.parent / name)
    for place in (str(renamed), f"file://{renamed}"):
        assert [row(chomp("checkpoint", "list", place), step)[0] for step in ("6", "12")]
        assert chomp("checkpoint", "verify", place, "--all").code == 0


def test_a_pipe_in_the_place_of_an_array_file_is_not_waited_for(chomp: Chomp, run: Path):
    (array_file, *_) = (step(run, 12) / "state/ocdbt.process_0/d").iterdir()
    array_file.unlink()
    os.mkfifo(array_file)
    assert_refused(chomp("checkpoint", "verify", str(run)), f"{step(run, 12)}", code=1, out=None)
    assert_refused(
        chomp("checkpoint", "diff", str(step(run, 6)), str(run)), "pipe", code=1, out=None
    )


# ---- export


def test_an_export_holds_the_weights_bit_for_bit_and_what_they_need(
    chomp: Chomp, saved: Path, tmp_path: Path
):
    out = tmp_path / "deep" / "exported"
    told = chomp("checkpoint", "export", str(saved), "--out", str(out))
    assert (told.code, told.err) == (0, "")
    assert told.out.startswith(f"{out}: 5 arrays")
    wanted = {
        name.removeprefix("params/").replace("/", "."): leaf
        for name, leaf in numbers(12).items()
        if name.startswith("params/")
    }
    found = load_file(out / "model.safetensors")
    assert found.keys() == wanted.keys()
    for name, leaf in wanted.items():
        assert (found[name].dtype, found[name].shape) == (leaf.dtype, leaf.shape)
        assert found[name].tobytes() == leaf.tobytes()
    assert json.loads((out / "config.json").read_text())["optimizer"] == {"lr": 0.2}
    exported = load_tokenizer(str(out / "tokenizer"))
    assert exported.content_hash == ByteTokenizer().content_hash
    assert (out / "template/model.py").read_text() == "# the model"
    with safe_open(out / "model.safetensors", framework="np") as file:
        header = file.metadata()
    assert (header["step"], header["run_id"]) == ("12", "tiny")
    assert header["tokenizer_hash"] == ByteTokenizer().content_hash
    assert "step 12" in (out / "README.md").read_text()
    modes = {(out / name).stat().st_mode for name in ("model.safetensors", "README.md")}
    assert len(modes) == 1  # whoever may read one may read the other
    assert [path.name for path in out.parent.iterdir()] == ["exported"]


def test_an_export_can_be_of_the_average_and_of_another_dtype(
    chomp: Chomp, saved: Path, tmp_path: Path
):
    for weights, dtype in (("ema", np.float16), ("params", ml_dtypes.bfloat16)):
        out, name = tmp_path / weights, np.dtype(dtype).name
        place = str(step(saved, 6))
        options = ("--out", str(out), "--weights", weights, "--dtype", name)
        assert chomp("checkpoint", "export", place, *options).code == 0
        found = load_file(out / "model.safetensors")
        wanted = numbers(6)["ema_params/embed" if weights == "ema" else "params/embed"]
        assert found["embed"].dtype == dtype
        assert found["embed"].tobytes() == wanted.astype(dtype).tobytes()
    assert found["bins"].dtype == np.uint8  # only what is floating-point is rounded


def test_an_export_of_a_checkpoint_outside_a_run_says_what_is_missing(
    chomp: Chomp, saved: Path, tmp_path: Path
):
    alone = shutil.copytree(step(saved, 6), tmp_path / "step-6")
    told = chomp("checkpoint", "export", str(alone), "--out", str(tmp_path / "out"))
    assert told.code == 0
    for name in ("tokenizer", "template"):
        assert f"without {name}/: {alone} is in no run folder" in told.out
        assert not (tmp_path / "out" / name).exists()


def other_tokenizer(run: Path) -> None:
    """Let the run have a tokenizer that its checkpoints were not trained with."""
    save_tokenizer(train_bpe(["some other words"], vocab_size=260), str(run / "tokenizer"))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        *(
            (lambda run, harm=HARM[name][0]: harm(step(run, 12)), "checkpoints/step-12")
            for name in ("a flipped bit", "an added file", "no metadata", "another hash")
        ),
        # Seen when half of it is written.
        (lambda run: (run / "tokenizer/gone").symlink_to(run / "nowhere"), "gone"),
        (other_tokenizer, "/tokenizer has the hash "),
    ],
)
def test_what_is_not_as_it_was_saved_is_not_exported_and_leaves_nothing(
    chomp: Chomp, run: Path, tmp_path: Path, harm: Callable[[Path], Any], words: str
):
    harm(run)
    told = chomp("checkpoint", "export", str(run), "--out", str(tmp_path / "out"))
    assert_refused(told, words, str(run), code=1, out=None)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_export_never_touches_a_folder_that_is_there(chomp: Chomp, saved: Path, tmp_path: Path):
    told = chomp("checkpoint", "export", str(saved), "--out", str(tmp_path))
    assert_refused(told, f"{tmp_path} already exists", code=1, out=None)
    assert not list(tmp_path.iterdir())


def test_weights_too_large_for_a_dtype_are_refused_by_name(
    chomp: Chomp, tmp_path: Path, one_device_mesh: Mesh
):
    leaves = {"params/embed": np.full((8, 8), 1e6, np.float32)}
    with jax.set_mesh(one_device_mesh):
        path = save_step_checkpoint(
            str(tmp_path / "checkpoints"), state_of(leaves, one_device_mesh), about(step=1)
        )
    export = ("checkpoint", "export", path, "--out", str(tmp_path / "out"))
    told = chomp(*export, "--dtype", "float16")
    assert_refused(told, "params/embed has values up to 1e+06", code=2, out=None)
    assert not (tmp_path / "out").exists()
    told = chomp(*export, "--weights", "ema")
    assert_refused(told, "has no arrays under ema_params/", code=1, out=None)
    assert chomp(*export, "--dtype", "bfloat16").code == 0


# ---- all of them


@pytest.mark.parametrize("command", ["list", "verify", "diff", "export"])
def test_a_place_without_checkpoints_is_told_in_three_parts(
    chomp: Chomp, saved: Path, tmp_path: Path, command: str
):
    more = {"diff": [str(saved)], "export": ["--out", str(tmp_path / "out")]}.get(command, [])
    for place, fault in (
        (tmp_path / "nowhere", "does not exist"),
        (tmp_path, "a folder without checkpoints"),
        (saved / "checkpoints/step-7", "does not exist"),
        (tmp_path / "step-012", "is not the name of a checkpoint"),
        (tmp_path / "step-12.forked-2", "a checkpoint that was moved aside"),
    ):
        if place.parent == tmp_path and place.name != "nowhere":
            place.mkdir()
        told = chomp("checkpoint", command, str(place), *more)
        assert_refused(told, fault, code=2, out=None)
        # What there is instead, or what it has to be called.
        assert ("step-12" in told.err) == ("step-" in place.name)


@pytest.mark.parametrize("command", ["verify", "diff", "export"])
def test_a_newest_checkpoint_that_cannot_be_read_is_never_passed_over(
    chomp: Chomp, run: Path, tmp_path: Path, command: str
):
    (step(run, 12) / "metadata.json").unlink()
    more = {"diff": [str(step(run, 6))], "export": ["--out", str(tmp_path / "out")]}
    told = chomp("checkpoint", command, str(run), *more.get(command, []))
    assert_refused(told, str(step(run, 12)), code=1, out=None)


def test_arrays_are_given_only_as_they_were_saved(run: Path):
    found = read_step_folder(str(step(run, 12)))
    names = [name for name, _ in checked_arrays(found, ["params/mask", "step"])]
    assert names == ["params/mask", "step"]
    other_hash(step(run, 12))
    with pytest.raises(RuntimeError, match=r"params/bins: differs from the receipt"):
        list(checked_arrays(read_step_folder(str(step(run, 12)))))
