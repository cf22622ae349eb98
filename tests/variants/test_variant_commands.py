"""`chomp variant`: a template copied, compared, listed and retired in a checkout under git."""

import importlib
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

import experiments.grug
from chomp.cli.main import exit_code
from chomp.executor.status import StepInfo, StepStatus, write_info, write_status
from chomp.ledger.pages import MARKDOWN, stale_pages
from chomp.ledger.results import RESULTS
from chomp.tracking import JsonlTracker
from chomp.variants import checkout as checkouts
from chomp.variants.archive import (
    ARCHIVE,
    ARCHIVE_PAGE,
    ArchiveEntry,
    archive_problems,
    fill_in_commits,
    read_archive,
)
from chomp.variants.lifecycle import copy_variant
from experiments.grug.base import launch as base_launch
from tests.variants.small_checkout import ROOT, Checkout, small_checkout


@dataclass(frozen=True)
class Told:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


Chomp = Callable[..., Told]
PURPOSE = ("--purpose", "To try something.")


@pytest.fixture
def chomp(capfd: pytest.CaptureFixture[str]) -> Chomp:
    """The command, run in this process; what processes of its own say is told too."""

    def run(*arguments: str) -> Told:
        capfd.readouterr()
        code = exit_code(["variant", *arguments])
        said = capfd.readouterr()
        return Told(code, said.out, said.err)

    return run


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkout(tmp_path_factory.mktemp("commands") / "checkout").root


@pytest.fixture(scope="module")
def mine_once(made_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Checkout(Path(shutil.copytree(made_once, tmp_path_factory.mktemp("mine") / "checkout")))
    copy_variant(made.root, origin="base", name="mine", purpose="To try something.")
    made.commit("mine")
    return made.root


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a checkout will be in which the commands run, without what would lead elsewhere."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "CHOMP_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    # The contracts of a small checkout need no plugins, which take seconds to load.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return tmp_path / "checkout"


@pytest.fixture
def checkout(made_once: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """A checkout with base alone: a copy, in whose root the commands run."""
    shutil.copytree(made_once, place)
    monkeypatch.chdir(place)
    return Checkout(place)


@pytest.fixture
def mine(mine_once: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """The same with a committed variant `mine`."""
    shutil.copytree(mine_once, place)
    monkeypatch.chdir(place)
    return Checkout(place)


def entry(checkout: Checkout, name: str) -> ArchiveEntry:
    return read_archive(checkout.root)[name]


def rows(told: Told) -> dict[str, list[str]]:
    """The cells of each row of the printed table, by the first."""
    split = [line.strip("│").split("│") for line in told.out.splitlines() if "│" in line]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in split}


def below(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but git's own."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


# --- new ----------------------------------------------------------------------------------------


def test_a_new_variant_is_a_renamed_copy_with_an_entry_a_page_and_its_contracts_run(
    checkout: Checkout, chomp: Chomp
):
    checkout.write("experiments/grug/base/__pycache__/model.cpython-311.pyc", "old")
    checkout.write("experiments/grug/base/outputs/metrics.jsonl", "{}")
    checkout.write("experiments/grug/base/README.md", "# base\n")
    checkout.write("experiments/grug/base/parts/table.txt", "experiments/grug/base\n")
    told = chomp("new", "wide_mlp", "--from", "base", *PURPOSE)
    assert told.code == 0, told.err
    folder = checkout.root / "experiments/grug/wide_mlp"
    assert set(below(folder)) == {
        *("__init__.py", "model.py", "train.py", "launch.py", "README.md", "parts/table.txt")
    }
    launch = (folder / "launch.py").read_text()
    assert 'VARIANT = "wide_mlp"' in launch
    assert "class GrugWideMlpLaunchConfig(GrugRunConfig)" in launch
    assert "experiments.grug.base" not in launch
    head = checkout.git("rev-parse", "--short=7", "HEAD~")
    page = (folder / "README.md").read_text()
    assert "To try something." in page
    assert f"Origin: base at `{head}` and uncommitted changes" in page
    assert "uv run experiments/grug/wide_mlp/launch.py" in page
    assert entry(checkout, "wide_mlp") == ArchiveEntry(
        origin="base",
        status="active",
        purpose="To try something.",
        diff="`uv run chomp variant diff wide_mlp`",
    )
    assert "- Introduced: not committed yet\n" in checkout.read(ARCHIVE_PAGE)
    assert archive_problems(checkout.root) == []
    assert "1 passed" in told.out, "the contracts of the new one, and of no other"
    assert "uv run experiments/grug/wide_mlp/launch.py" in told.out


def test_a_copy_of_the_real_base_asks_for_the_same_run_under_its_own_name(
    mine: Checkout, monkeypatch: pytest.MonkeyPatch
):
    folders = [*experiments.grug.__path__, str(mine.root / "experiments/grug")]
    monkeypatch.setattr(experiments.grug, "__path__", folders)
    monkeypatch.delenv("GRUG_RUN_ID", raising=False)
    copy = importlib.import_module("experiments.grug.mine.launch")
    for name in [name for name in sys.modules if name.startswith("experiments.grug.mine")]:
        monkeypatch.delitem(sys.modules, name)  # not there for tests after this one
    theirs, own = base_launch.GrugBaseLaunchConfig(), copy.GrugMineLaunchConfig()
    assert Path(copy.__file__).is_relative_to(mine.root)
    assert (copy.VARIANT, own.run_id, theirs.run_id) == ("mine", "mine", "base")
    assert asdict(replace(own, run_id="base")) == asdict(theirs)
    assert copy.train_mine.__module__ == "experiments.grug.mine.launch"


def test_without_a_purpose_the_archive_asks_for_one(checkout: Checkout, chomp: Chomp):
    told = chomp("new", "mine", "--no-check")
    assert told.code == 0
    assert "and its Purpose in the archive" in told.out
    assert "-k '[mine] or [mine-'" in told.out, "how to run the contracts that were left out"
    assert [found.what for found in archive_problems(checkout.root)] == [
        "mine: no purpose. Allowed: one sentence"
    ]


def test_contracts_that_do_not_hold_end_the_command_but_leave_the_variant(
    checkout: Checkout, chomp: Chomp
):
    told = chomp("new", "broken", *PURPOSE)
    assert told.code == 1
    assert "contracts failed" in told.err
    assert (checkout.root / "experiments/grug/broken/model.py").is_file()
    told = chomp("new", "roke", *PURPOSE)
    assert told.code == 0, "the contracts of a variant whose name contains it are not run"


def test_without_pytest_the_command_says_how_to_run_the_contracts(
    checkout: Checkout, chomp: Chomp, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checkouts.importlib.util, "find_spec", lambda name: None)
    told = chomp("new", "mine", *PURPOSE)
    assert told.code == 1
    assert "pytest is not installed" in told.err
    command = (
        "uv run --group test pytest tests/test_grug_variant_contracts.py -k '[mine] or [mine-'"
    )
    assert command in told.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["my-run"], "the name 'my-run'"),
        (["class"], "the name 'class'"),
        (["base"], "experiments/grug/base already exists"),
        (["gone"], "the archive lists gone as deleted (git checkout"),
        (["wide_"], "the name 'wide_'"),
        (["wide__mlp"], "the name 'wide__mlp'"),
        (["outputs"], "git ignores experiments/grug/outputs"),
        (["x" * 80], "characters long. Allowed: a name that keeps lines within 100"),
        (["mine", "--purpose", "None"], "--purpose 'None'"),
        (["mine", "--purpose", " "], "--purpose ' '"),
        (["mine", "--purpose", "to be filled in"], "--purpose 'to be filled in'"),
        (["mine", "--from", "bass"], "there is no variant 'bass' to copy. Allowed: base"),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(
    checkout: Checkout, chomp: Chomp, arguments: list[str], words: str
):
    before = below(checkout.root)
    told = chomp("new", *arguments)
    assert (told.code, told.out) == (2, "")
    assert words in " ".join(told.err.split())
    assert below(checkout.root) == before


def test_a_copy_that_fails_half_way_leaves_neither_folder_nor_entry(
    checkout: Checkout, chomp: Chomp
):
    checkout.write("experiments/grug/base/train.py", "x = (\n")
    before = below(checkout.root)
    told = chomp("new", "mine")
    assert told.code == 2
    assert "train.py is not Python" in told.err
    assert below(checkout.root) == before
    assert not list((checkout.root / "experiments/grug").glob(".*"))


# --- diff and list ------------------------------------------------------------------------------


def test_diff_counts_the_lines_of_each_file_and_writes_a_page(mine: Checkout, chomp: Chomp):
    checkout = mine
    model = checkout.read("experiments/grug/mine/model.py")
    checkout.write("experiments/grug/mine/model.py", model + "one = 1\ntwo = 2\n")
    told = chomp("diff", "mine", "--out", "report")
    assert told.code == 0, told.err
    assert (checkout.root / "report/index.html").is_file()
    table = rows(told)
    assert table["model.py"] == ["changed", "+3", "-1"]
    assert table["README.md"][0] == "added"
    assert "__init__.py" not in table
    assert "Report: report/index.html" in told.out
    # As the list counts: not what only says its name, and no README.
    assert "Lines of Python, but for its own name: +2 -0" in told.out

    checkout.commit()
    assert chomp("new", "second", "--from", "mine", *PURPOSE, "--no-check").code == 0
    own = rows(chomp("diff", "second"))
    assert own["model.py"] == ["changed", "+1", "-1"], "against its origin, which is mine"
    other = rows(chomp("diff", "second", "--against", "base", "--out", "other"))
    assert other["model.py"] == ["changed", "+3", "-1"]


@pytest.mark.parametrize("arguments", [["mine", "--against", "../../.."], ["../grug/mine"]])
def test_diff_reads_nothing_but_variants(mine: Checkout, chomp: Chomp, arguments: list[str]):
    told = chomp("diff", *arguments, "--out", "report")
    assert (told.code, told.out) == (2, "")
    assert f"the name {arguments[-1]!r}" in told.err
    assert not (mine.root / "report").exists()


def test_list_shows_origin_lines_status_and_the_last_finished_run(mine: Checkout, chomp: Chomp):
    for name, state, loss, finished in [
        ("mine-1", "SUCCESS", 4.5, 10.0),
        ("mine-2", "SUCCESS", 4.25, 20.0),
        ("mine-3", "FAILED", 1.0, 30.0),
    ]:
        plant_run(mine.root / "outputs/grug" / name, "train_mine", state, loss, finished)
    (mine.root / "outputs/grug/broken").mkdir()
    mine.write("outputs/grug/broken/.executor_info", "{")
    told = chomp("list")
    assert told.code == 0, told.err
    table = rows(told)
    assert list(table) == ["base", "mine"]
    assert table["base"] == ["-", "-", "active", "-", "-"]
    *words, run = table["mine"]
    assert words == ["base", "+0 -0", "active", "-"], "its name alone is no change"
    assert run == "eval/loss 4.2500 at step 8 (outputs/grug/mine-2)"
    assert "The archive also has gone" in told.out


def plant_run(folder: Path, function: str, state: str, loss: float, finished: float) -> None:
    folder.mkdir(parents=True)
    info = {"values": {}, "config": {}, "description": "", "dependencies": [], "sources": {}}
    more = {"name": "grug/x", "identity": "1", "fn": f"__main__.{function}", "started": 1.0}
    write_info(str(folder), StepInfo(**info, **more, output_path=str(folder)))
    status = {"identity": "1", "attempt": 1, "host": "here", "pid": 1, "started": 1.0}
    write_status(str(folder), StepStatus(state=state, finished=finished, **status))
    tracker = JsonlTracker(folder / "metrics.jsonl", attempt=1)
    tracker.log({"eval/loss": loss}, step=7)
    tracker.log({"train/loss": 1.0}, step=8)
    tracker.finish()


def test_list_says_of_a_folder_that_it_is_not_verified_or_not_in_the_archive(
    checkout: Checkout, chomp: Chomp
):
    mark = "# GRUG NOVERIFY: it is half done, until 2999-01-31\n"
    checkout.write("experiments/grug/half/train.py", mark)
    assert rows(chomp("list"))["half"] == [
        *("-", "-", "not in the archive, not verified until 2999-01-31", "-", "-")
    ]


# --- retire -------------------------------------------------------------------------------------


def test_a_retired_variant_leaves_an_entry_from_which_it_can_be_compared_and_brought_back(
    mine: Checkout, chomp: Chomp
):
    model = mine.read("experiments/grug/mine/model.py") + "one = 1\n"
    mine.write("experiments/grug/mine/model.py", model)
    last = mine.commit("better")
    mine.write("experiments/grug/mine/__pycache__/model.pyc", "a cache is nobody's work")
    mine.write("other.md", "a later commit that has nothing to do with it\n")
    mine.commit()
    told = chomp("retire", "mine", "--status", "deleted", "--reason", "No better than base.")
    assert told.code == 0, told.err
    assert not (mine.root / "experiments/grug/mine").exists()
    assert not list((mine.root / "experiments/grug").glob(".*"))
    kept = entry(mine, "mine")
    assert (kept.status, kept.last_known_good) == ("deleted", last)
    assert kept.reason == "No better than base."
    assert archive_problems(mine.root) == []

    # Base goes on; what the variant was stays what it was.
    mine.write("experiments/grug/base/model.py", "x = 1\n")
    mine.commit("base goes on")
    table = rows(chomp("list", "--all"))
    assert table["mine"][:4] == ["base", "+1 -0", "deleted", "No better than base."]
    compared = chomp("diff", "mine", "--out", "report")
    assert compared.code == 0, compared.err
    assert rows(compared)["model.py"] == ["changed", "+2", "-1"]
    assert f"experiments/grug/mine at {last}" in compared.out
    mine.git("checkout", last, "--", "experiments/grug/mine")
    assert mine.read("experiments/grug/mine/model.py") == model


def test_a_superseded_variant_names_its_successor(mine: Checkout, chomp: Chomp):
    told = chomp("retire", "mine", "--status", "superseded", "--superseded-by", "base")
    assert told.code == 0, told.err
    kept = entry(mine, "mine")
    assert (kept.status, kept.superseded_by) == ("superseded", "base")


def unchanged(checkout: Checkout) -> None:
    pass


def edited(checkout: Checkout) -> None:
    checkout.write("experiments/grug/mine/model.py", "x = 1\n")


def untracked(checkout: Checkout) -> None:
    checkout.write("experiments/grug/mine/notes.md", "mine\n")


def with_outputs(checkout: Checkout) -> None:
    checkout.write("experiments/grug/mine/outputs/metrics.jsonl", "{}\n")


def imported(checkout: Checkout) -> None:
    checkout.write(
        "experiments/speedrun/race.py", "def f():\n    from experiments.grug import mine\n"
    )


def trained_by_config(checkout: Checkout) -> None:
    checkout.write("configs/a.yaml", "run_id: a\ntemplate: experiments/grug/mine/  # this one\n")


def trained_by_name(checkout: Checkout) -> None:
    checkout.write("configs/a.yaml", "run_id: a\ntemplate: mine # this one\n")


def trained_by_variable(checkout: Checkout) -> None:
    text = 'variables: {arm: mine}\nrun_id: a\n"template": "$variables.arm"\n'
    checkout.write("configs/a.yml", text)


def trained_from_beside(checkout: Checkout) -> None:
    checkout.write("configs/a.yaml", "{template: ../experiments/grug/mine, run_id: a}\n")


DELETED = ("--status", "deleted", "--reason", "why")
REFUSALS = {
    "base": (unchanged, ["base", *DELETED], "retiring base"),
    "one that is not": (unchanged, ["nine", *DELETED], "the archive does not know it"),
    "one that is retired": (unchanged, ["gone", *DELETED], "the archive calls it deleted"),
    "no reason": (unchanged, ["mine", "--status", "deleted"], "without a reason"),
    "no successor": (unchanged, ["mine", "--status", "superseded"], "no --superseded-by"),
    "an unknown successor": (
        unchanged,
        ["mine", "--status", "superseded", "--superseded-by", "bass"],
        "--superseded-by bass",
    ),
    "an edited file": (edited, ["mine", *DELETED], "no commit has experiments/grug/mine/model.py"),
    "a new file": (untracked, ["mine", *DELETED], "no commit has experiments/grug/mine/notes.md"),
    "outputs that git ignores": (
        with_outputs,
        ["mine", *DELETED],
        "no commit has experiments/grug/mine/outputs/",
    ),
    "an import": (imported, ["mine", *DELETED], "is used by experiments/speedrun/race.py:2"),
    "a config": (trained_by_config, ["mine", *DELETED], "is used by configs/a.yaml:2"),
    "a config by name": (trained_by_name, ["mine", *DELETED], "is used by configs/a.yaml:2"),
    "by a variable": (trained_by_variable, ["mine", *DELETED], "is used by configs/a.yml:3"),
    "a path": (trained_from_beside, ["mine", *DELETED], "is used by configs/a.yaml:1"),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
def test_retiring_is_refused_where_something_would_be_lost_or_break(
    mine: Checkout, chomp: Chomp, refusal: tuple[Callable[[Checkout], None], list[str], str]
):
    plant, arguments, words = refusal
    plant(mine)
    before = below(mine.root)
    told = chomp("retire", *arguments)
    assert (told.code, told.out) == (2, "")
    assert words in " ".join(told.err.split())
    assert below(mine.root) == before


def test_the_last_good_commit_is_one_that_holds_the_folder_not_its_deletion(
    mine: Checkout, chomp: Chomp
):
    replaced = mine.read(ARCHIVE).replace("mine:\n", "mine:\n  introduced: '0123456'\n")
    mine.write(ARCHIVE, replaced)  # as a squash leaves it
    good = mine.git("rev-parse", "--short=7", "HEAD")
    mine.git("rm", "-r", "--quiet", "--cached", "experiments/grug/mine")
    mine.git("commit", "--quiet", "--message=taken away")
    told = chomp("retire", "mine", *DELETED, "--force")
    assert told.code == 0, told.err
    assert entry(mine, "mine").last_known_good == good
    assert entry(mine, "mine").introduced == good
    assert archive_problems(mine.root) == []


def test_force_gives_up_what_no_commit_holds_but_never_a_variant_without_a_commit(
    mine: Checkout, chomp: Chomp
):
    edited(mine)
    assert chomp("retire", "mine", *DELETED, "--force").code == 0
    mine.commit()
    assert chomp("new", "fresh", *PURPOSE, "--no-check").code == 0
    told = chomp("retire", "fresh", *DELETED, "--force")
    assert told.code == 2
    assert "experiments/grug/fresh is in no commit" in told.err
    assert (mine.root / "experiments/grug/fresh").is_dir()


def test_configs_that_name_another_template_or_are_no_config_do_not_stop_it(
    mine: Checkout, chomp: Chomp
):
    mine.write("configs/a.yaml", "template: base\nmodel: {template: mine}\n")
    mine.write("configs/b.yaml", "- template: mine\n")
    mine.write("configs/c.yaml", "template: [mine\n")
    assert chomp("retire", "mine", *DELETED).code == 0


# --- the ledger ---------------------------------------------------------------------------------


def commit_as_told(checkout: Checkout, told: Told) -> None:
    """Do what the command said, and find that it was all."""
    [line] = [line.strip() for line in told.out.splitlines() if "git add" in line]
    command = line[line.index("git add") :]
    assert command.endswith("&& git commit")
    checkout.git(*shlex.split(command.removesuffix("&& git commit"))[1:])
    checkout.git("commit", "--quiet", "--message=as told")
    assert checkout.git("status", "--porcelain") == ""
    for _ in range(2):
        assert archive_problems(checkout.root) == []
        assert stale_pages(checkout.root) == []
        fill_in_commits(checkout.root)  # what pre-commit's --fix does later


def test_after_new_and_retire_the_ledger_is_up_to_date_and_part_of_the_commit(
    checkout: Checkout, chomp: Chomp
):
    assert chomp("ledger").code == 0
    checkout.commit("a ledger")
    commit_as_told(checkout, chomp("new", "mine", *PURPOSE, "--no-check"))
    assert "| mine | not measured" in checkout.read(MARKDOWN)
    checkout.commit("its commit is filled in")
    commit_as_told(checkout, chomp("retire", "mine", *DELETED))


def test_without_a_ledger_none_is_begun(checkout: Checkout, chomp: Chomp):
    assert MARKDOWN not in chomp("new", "mine", *PURPOSE, "--no-check").out
    assert not (checkout.root / MARKDOWN).exists()


def test_a_ledger_that_cannot_be_made_stops_retiring_before_anything_is_lost(
    mine: Checkout, chomp: Chomp
):
    mine.write(f"{RESULTS}/odd.json", "{}")
    before = below(mine.root)
    told = chomp("retire", "mine", *DELETED)
    assert told.code == 2
    assert "odd.json" in told.err
    assert below(mine.root) == before


# --- the recipe ---------------------------------------------------------------------------------


def test_the_commands_of_the_recipe_do_what_it_says_in_their_order(
    checkout: Checkout, chomp: Chomp
):
    page = (ROOT / "docs/recipes/change_grug.md").read_text()
    lines = re.findall(r"^uv run (?:--group test )?chomp variant (.*)$", page, re.MULTILINE)
    commands = [shlex.split(line) for line in lines]
    assert [words[0] for words in commands] == ["new", "list", "diff", "retire"]
    for words in commands:
        told = chomp(*words)
        assert told.code == 0, told.err
        fill_in_commits(checkout.root)  # what pre-commit's --fix does
        assert archive_problems(checkout.root) == []
        checkout.commit(f"[grug/wide_mlp] {words[0]}")
    assert entry(checkout, "wide_mlp").superseded_by == "base"


# --- where --------------------------------------------------------------------------------------


def test_the_commands_work_below_the_root_and_say_so_outside_of_a_checkout(
    checkout: Checkout, chomp: Chomp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(checkout.root / "experiments/grug")
    assert list(rows(chomp("list"))) == ["base"]
    monkeypatch.chdir(tmp_path)
    for arguments in (["list"], ["new", "mine"], ["diff", "mine"], ["retire", "mine", *DELETED]):
        told = chomp(*arguments)
        assert told.code == 2
        assert "is not in a checkout" in told.err
