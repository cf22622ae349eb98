"""`chomp compare` and `chomp variant ledger`: runs made, compared, kept, and shown on pages."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import jaxtyping
import pytest

from chomp.cli.main import exit_code
from chomp.executor.status import read_info
from chomp.ledger.curves import curve_of
from chomp.ledger.results import RESULTS, read_results
from chomp.report.record import read_record
from chomp.variants.archive import ARCHIVE
from experiments.grug.base.train import GrugEvalConfig, run_grug
from tests import tiny
from tests.chromium_pipe import MISSING, ChromiumPage, browser
from tests.ledger.made_runs import COMMIT, config_of, make_run, make_side
from tests.variants.small_checkout import Checkout, small_checkout

# Trains nothing, but leaves what a run leaves: a config and a record whose end depends on its seed.
LAUNCH = """
from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from chomp.config import Config, setting
from chomp.errors import DataError, NonFiniteError
from chomp.executor import ExecutorStep, this_output_path, versioned
from tests.ledger.made_runs import config_of, make_run


@dataclass(frozen=True, kw_only=True)
class Trainer(Config):
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class MadeLaunchConfig(Config):
    trainer: Trainer = setting(default_factory=Trainer, aliases=("train",))
    gain: float = GAIN
    lost_seed: int | None = None
    diverging_seed: int | None = None
    output_path: str = ""


def train_NAME(launch):
    seed = launch.trainer.seed
    if seed == launch.lost_seed:
        raise DataError("no data. Allowed: some. Fix: none.")
    folder = Path(launch.output_path)
    made = folder / "made"
    end = 4.0 + 0.01 * seed - launch.gain + 0.001 * launch.gain * seed
    outcome = "NonFiniteError" if seed == launch.diverging_seed else "finished"
    config = config_of(seed, optimizer__lr=launch.gain)
    make_run(made, seed=seed, end=end, config=config, outcome=outcome)
    for name in ("config_resolved.json", "metrics.jsonl", "checkpoints"):
        (made / name).rename(folder / name)
    if outcome == "NonFiniteError":
        raise NonFiniteError("a loss is NaN. Allowed: a finite one. Fix: lower the rate.")


def steps(launch):
    config = replace(
        launch,
        trainer=versioned(launch.trainer),
        gain=versioned(launch.gain),
        output_path=this_output_path(),
    )
    return [ExecutorStep(name="grug/NAME", fn=train_NAME, config=config)]
"""


@dataclass(frozen=True)
class Told:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


Chomp = Callable[..., Told]
MINE = "a = 1\nb = 2\nc = 3\ndef train_mine(): ...\n"


@pytest.fixture
def chomp(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Chomp:
    """The command, run in this process."""
    monkeypatch.delenv("CHOMP_PREFIX", raising=False)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)

    def run(*arguments: str) -> Told:
        capsys.readouterr()
        code = exit_code(arguments)
        told = capsys.readouterr()
        return Told(code, told.out, told.err)

    return run


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """A checkout with base active and `gone` deleted, in which the commands run."""
    made = small_checkout(tmp_path / "checkout")
    monkeypatch.chdir(made.root)
    return made


@pytest.fixture
def grug(checkout: Checkout) -> Path:
    """The folder of runs among the outputs of the checkout."""
    return checkout.root / "outputs/grug"


def make_sides(grug: Path, base: dict[int, float], mine: dict[int, float]) -> None:
    """Runs of base and of mine, with the ends of each by seed."""
    make_side(grug, "base", base)
    make_side(grug, "mine", mine)


@pytest.fixture
def launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two launch files, of which the second ends 1 % lower."""
    for name, gain in (("plain", 0.0), ("tuned", 0.04)):
        text = LAUNCH.replace("NAME", name).replace("GAIN", str(gain))
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def outputs(root: Path) -> list[str]:
    return sorted(path.name.split("-")[0] for path in (root / "outputs/grug").iterdir())


def test_missing_seeds_are_run_as_pairs_and_compared(launches, chomp):
    told = chomp("compare", "plain.py", "tuned.py", "--seeds", "3")
    assert told.code == 0, told.err
    assert outputs(launches) == ["plain"] * 3 + ["tuned"] * 3
    assert "better: -1.00 % (96.5 % interval" in told.out
    assert "over 3 seeds" in told.out
    assert "optimizer.lr: 0.0 → 0.04" in told.out


def test_what_is_there_is_not_run_again_and_seeds_may_be_new_ones(launches, chomp):
    chomp("compare", "plain.py", "tuned.py", "--seeds", "2")
    told = chomp("compare", "plain.py", "tuned.py", "--seeds", "3", "--first-seed", "1")
    assert told.code == 0, told.err
    assert outputs(launches) == ["plain"] * 4 + ["tuned"] * 4
    # The new test is of the new seeds alone: 1, 2 and 3, not 0.
    assert re.findall(r"│ (\d) +│ \d\.\d{4} │", told.out) == ["1", "2", "3"]


def test_a_plan_runs_nothing(launches, chomp):
    told = chomp("compare", "plain.py", "tuned.py", "--seeds", "2", "--plan")
    assert told.code == 0
    assert told.out.count("run   grug/plain") == 2
    assert not (launches / "outputs").exists()


def test_one_launch_file_is_compared_with_itself_at_another_setting(launches, chomp):
    options = ("--seeds", "3", "--set-variant", "gain=-0.08", "--json", "told.json")
    told = chomp("compare", "plain.py", "plain.py", *options)
    assert told.code == 0, told.err
    assert "worse: +1.99 %" in told.out
    result = json.loads((launches / "told.json").read_text())
    assert result["variant"]["overrides"] == ["gain=-0.08"]
    assert result["command"] == "chomp compare plain.py plain.py --seeds 3 --set-variant gain=-0.08"
    assert [seed["seed"] for seed in result["seeds"]] == [0, 1, 2]
    # Where the runs lie on this machine is not told.
    assert str(launches) not in json.dumps(result)


def test_one_launch_file_on_both_sides_may_run_in_other_processes(launches, chomp):
    options = ("--seeds", "1", "--set-variant", "gain=-0.08", "--on", "process")
    told = chomp("compare", "plain.py", "plain.py", *options)
    assert told.code == 0, told.err
    assert outputs(launches) == ["plain"] * 2
    assert "cannot tell" in told.out


def test_the_same_setting_on_both_sides_is_refused_before_anything_runs(launches, chomp):
    told = chomp("compare", "plain.py", "plain.py", "--seeds", "2")
    assert told.code == 2
    assert "the same run at the same seed" in told.err
    assert not (launches / "outputs").exists()


def test_a_seed_that_diverges_takes_the_verdict_away_and_fails_the_command(launches, chomp):
    options = ("--seeds", "3", "--set-variant", "diverging_seed=1")
    told = chomp("compare", "plain.py", "tuned.py", *options)
    assert told.code == 1
    assert "Not every run has ended well" in told.out
    assert "cannot tell: seed 1: tuned-" in told.out
    assert "Of the others: -1.00 %" in told.out


def test_a_run_that_never_began_is_left_out_and_named(launches, chomp):
    options = ("--seeds", "3", "--set-variant", "lost_seed=1")
    told = chomp("compare", "plain.py", "tuned.py", *options)
    assert told.code == 1
    assert "is left out, as no config tells its seed" in told.out
    assert "plain.py: seed 1 has no partner" in told.out
    assert "over 2 seeds" in told.out


@pytest.fixture
def folders(launches: Path) -> Path:
    """The two launch files in folders of their own, as templates are."""
    for name in ("plain", "tuned"):
        (launches / name).mkdir()
        (launches / f"{name}.py").rename(launches / name / "launch.py")
    return launches


def started(root: Path) -> dict[str, float]:
    """When each run began, by its folder; those that were set aside too."""
    runs = (root / "outputs/grug").iterdir()
    return {run.name: read_info(str(run)).started for run in runs}


def compared_values(root: Path) -> list[float]:
    result = json.loads((root / "told.json").read_text())
    return result["budgets"][0]["variant"]


SEEDS = ("compare", "plain/launch.py", "tuned/launch.py", "--seeds", "2", "--json", "told.json")


def edit(launch: Path) -> None:
    """Other code at the same settings: what it makes ends 0.5 lower."""
    text = launch.read_text()
    launch.write_text(text.replace("end = 4.0", "end = -0.5 + 4.0"))


def test_runs_of_a_template_that_was_edited_are_made_again(folders, chomp):
    assert chomp(*SEEDS).code == 0
    before, values = started(folders), compared_values(folders)
    edit(folders / "tuned/launch.py")
    planned = chomp(*SEEDS, "--plan")
    assert planned.out.count("run   grug/tuned") == 2
    assert planned.out.count("skip  grug/plain") == 2
    assert started(folders) == before
    told = chomp(*SEEDS)
    assert told.code == 0, told.err
    assert compared_values(folders) == pytest.approx([value - 0.5 for value in values])
    after = started(folders)
    assert {name for name in before if after[name] != before[name]} == {
        name for name in before if name.startswith("tuned")
    }
    # What was set aside is no run of a pattern, of a folder or of a name.
    assert len([name for name in after if ".replaced-" in name]) == 2
    for sides in (("outputs/grug/plain-*", "outputs/grug/tuned-*"), ("plain", "tuned")):
        told = chomp("compare", *sides, "--json", "told.json")
        assert told.code == 0, told.err
        assert compared_values(folders) == pytest.approx([value - 0.5 for value in values])
    # The code is back, so its runs are made again: the folder holds those of the edited one.
    edited = (folders / "tuned/launch.py").read_text()
    (folders / "tuned/launch.py").write_text(edited.replace("end = -0.5 + 4.0", "end = 4.0"))
    assert chomp(*SEEDS).code == 0
    assert compared_values(folders) == values


def test_one_seed_made_again_is_not_pooled_with_older_code(folders, chomp):
    chomp(*SEEDS)
    values = compared_values(folders)
    edit(folders / "tuned/launch.py")
    assert chomp(*SEEDS[:3], "--seeds", "1", "--first-seed", "1").code == 0
    before = started(folders)
    for refused in ("outputs/grug/tuned-*", "outputs/grug/t*"):
        told = chomp("compare", "outputs/grug/plain-*", refused)
        assert told.code == 2
        assert all(name in told.err for name in before if re.fullmatch(r"tuned-\w+", name))
    told = chomp(*SEEDS)
    assert told.code == 0, told.err
    assert compared_values(folders) == pytest.approx([value - 0.5 for value in values])
    # Only the seed of the older code was run again.
    assert len([name for name in before if started(folders)[name] != before[name]]) == 1


def test_force_makes_all_runs_again(folders, chomp):
    chomp(*SEEDS)
    before = started(folders)
    assert chomp(*SEEDS, "--force").code == 0
    assert all(started(folders)[name] > before[name] for name in before)
    assert len(started(folders)) == 2 * len(before)


def test_runs_of_older_code_that_cannot_be_made_again_are_refused(folders, chomp):
    launch = folders / "tuned/launch.py"
    # With a step of its own that the run needs, and that fails once it is edited.
    text = launch.read_text().replace("output_path: str", "needed: str = ''\n    output_path: str")
    text = text.replace("ExecutorStep, this", "ExecutorStep, output_path_of, this")
    text = text.replace(
        "        output_path=this",
        "        needed=output_path_of(NEEDED),\n        output_path=this",
    )
    text += "\n\ndef needed(_):\n    pass\n"
    text += "\n\nNEEDED = ExecutorStep(name='needed', fn=needed, config=None)\n"
    launch.write_text(text)
    assert chomp(*SEEDS).code == 0
    launch.write_text(text.replace("    pass\n", "    raise SystemExit(3)\n"))
    before = started(folders)
    told = chomp(*SEEDS)
    assert told.code != 0
    assert started(folders) == before
    assert all(name in told.err for name in before if name.startswith("tuned"))


def test_a_name_means_runs_of_the_code_that_is_there(checkout, chomp, grug):
    make_sides(grug, base={0: 4.0}, mine={0: 3.96})
    assert chomp("compare", "base", "mine", "--save").code == 0
    model = checkout.root / "experiments/grug/base/model.py"
    old = model.read_text()
    model.write_text(old + "# edited\n")
    told = chomp("compare", "base", "mine", "--save")
    assert told.code == 2
    assert "base-0000" in told.err
    # Folders that somebody chose are compared; that the code is another by now is kept with it.
    told = chomp("compare", str(grug / "base-*"), str(grug / "mine-*"), "--save")
    assert told.code == 0, told.err
    notes = max(read_results(checkout.root), key=lambda result: len(result.notes)).notes
    assert any("experiments/grug/base" in note for note in notes)
    make_run(grug / "base-new", seed=0, end=4.2, variant="base")
    assert chomp("compare", "base", "mine", "--json", "told.json").code == 0
    assert json.loads(Path("told.json").read_text())["seeds"][0]["base_run"] == "base-new"
    # The older code is back, and so are its runs, though they are not the newest.
    model.write_text(old)
    assert chomp("compare", "base", "mine", "--json", "told.json").code == 0
    assert json.loads(Path("told.json").read_text())["seeds"][0]["base_run"] == "base-0000"


def test_a_kept_look_at_older_code_is_no_look_at_these_runs(checkout, chomp, grug):
    make_side(grug, "base", {0: 4.0, 1: 4.1})
    make_side(grug, "mine", {0: 3.96, 1: 4.0}, sources={"model.py": "before"})
    chomp("compare", "base", "mine", "--metric", "eval/bpb", "--save")
    shutil.rmtree(grug / "mine-0000")
    shutil.rmtree(grug / "mine-0001")
    make_side(grug, "mine", {0: 3.96, 1: 4.0}, sources={"model.py": "after"})
    assert "looked at before" not in chomp("compare", "base", "mine").out


@pytest.mark.parametrize(
    "option",
    [("-o", "gain=1"), ("--on", "process"), ("--plan",), ("--first-seed", "3"), ("--force",)],
)
def test_options_for_runs_need_seeds_to_run(launches, chomp, option):
    told = chomp("compare", "plain", "tuned", *option)
    assert told.code == 2
    assert f"{option[0]} without --seeds" in told.err


def test_a_result_is_kept_and_the_ledger_is_made_from_it(checkout, chomp, tmp_path, grug):
    make_sides(grug, base={0: 4.0, 1: 4.1, 2: 3.9}, mine={0: 3.960, 1: 4.058, 2: 3.861})
    for name, text in (("base", "a = 1\ndef train_base(): ...\n"), ("mine", MINE)):
        (grug / f"{name}-0000/template").mkdir()
        (grug / f"{name}-0000/template/launch.py").write_text(text)
    told = chomp("compare", "base", "mine", "--save", "--note", "made up <b>")
    assert told.code == 0, told.err
    [result] = read_results(checkout.root)
    assert result.word == "better"
    assert (result.base.variant, result.variant.variant) == ("base", "mine")
    assert result.lines == (2, 0)  # the name of a function is no change
    # The commit that ran, whatever is checked out by now.
    assert result.commit == COMMIT
    assert "commit" in result.versions
    # Saved again it is one file still.
    chomp("compare", "base", "mine", "--save", "--note", "made up <b>")
    assert len(list((checkout.root / RESULTS).iterdir())) == 1

    assert chomp("variant", "ledger", "--check").code == 2
    written = chomp("variant", "ledger")
    assert "Written: docs/reports/ledger.md, docs/reports/ledger.html" in written.out
    page = checkout.read("docs/reports/ledger.md")
    assert "| mine | better | base | 3 | **-1.01 % (-1.12 to -0.89)** |" in page
    # Variants of the archive that nobody measured are there; base, which is the measure, is not.
    assert "| gone | not measured | - |" in page
    assert "| base | not measured" not in page
    assert "Note: made up \\<b\\>" in page
    assert "made up &lt;b&gt;" in checkout.read("docs/reports/ledger.html")

    assert chomp("variant", "ledger", "--check").code == 0
    assert "are up to date" in chomp("variant", "ledger").out
    checkout.write("docs/reports/ledger.md", page + "edited\n")
    stale = chomp("variant", "ledger", "--check")
    assert stale.code == 2
    assert "docs/reports/ledger.md not as docs/reports/results makes it" in stale.err


def test_a_run_that_told_no_commit_is_not_given_one(checkout, chomp, grug):
    make_side(grug, "base", {0: 4.0})
    [run] = make_side(grug, "mine", {0: 3.9}).values()
    record = run / "metrics.jsonl"
    record.write_text(record.read_text().replace("environment/commit", "environment/other"))
    chomp("compare", "base", "mine", "--save")
    [result] = read_results(checkout.root)
    assert result.commit is None


def test_seeds_that_were_looked_at_before_are_not_looked_at_again_in_silence(checkout, chomp, grug):
    make_sides(grug, base={0: 4.0, 1: 4.1}, mine={0: 3.96, 1: 4.058})
    assert "looked at before" not in chomp("compare", "base", "mine", "--save").out
    # The very same comparison is no second look.
    assert "looked at before" not in chomp("compare", "base", "mine").out
    make_sides(grug, base={2: 3.9}, mine={2: 3.861})
    told = chomp("compare", "base", "mine", "--save")
    assert "looked at before with 2 of these 3 seeds" in told.out
    newest = [result for result in read_results(checkout.root) if len(result.seeds) == 3]
    assert "looked at before" in newest[0].notes[-1]


def test_another_question_of_the_same_runs_is_a_second_look(checkout, chomp, grug):
    make_sides(grug, base={0: 4.0, 1: 4.1, 2: 3.9}, mine={0: 3.96, 1: 4.158, 2: 3.861})
    chomp("compare", "base", "mine", "--save")
    told = chomp("compare", "base", "mine", "--metric", "eval/bpb", "--at", "flops", "--save")
    words = "looked at before with these 3 seeds, eval/loss at equal tokens: cannot tell"
    assert words in told.out
    looks = {result.metric: result.looks for result in read_results(checkout.root)}
    assert looks == {"eval/loss": 0, "eval/bpb": 1}
    chomp("variant", "ledger")
    page = checkout.read("docs/reports/ledger.md")
    assert page.count("| cannot tell (look 2 at these runs) |") == 1
    assert "look 2 at these runs" in checkout.read("docs/reports/ledger.html")
    # The first question, asked again and kept again, was asked first still.
    assert "looked at before" not in chomp("compare", "base", "mine", "--save").out


def make_strangers(folder: Path, base: str, variant: str, lr: float) -> tuple[str, str]:
    """Runs that no executor made, whose names are all that tells them apart."""
    sides = []
    for side, name in (("b", base), ("v", variant)):
        for seed in (0, 1):
            end = 4.0 - 0.04 * (side == "v") + seed / 1000
            config = config_of(seed, run_id=name, optimizer__lr=lr)
            run = make_run(folder / side / f"r{seed}", seed=seed, end=end, config=config)
            for left in run.glob(".executor*"):
                left.unlink()
        sides.append(str(folder / side))
    return sides[0], sides[1]


def test_runs_of_the_same_names_and_other_settings_are_other_results(checkout, chomp, tmp_path):
    for lr in (0.1, 0.2):
        sides = make_strangers(tmp_path / f"lr{lr}", "base", "mine", lr)
        assert chomp("compare", *sides, "--save").code == 0
    assert len(read_results(checkout.root)) == 2


def test_a_run_id_does_not_lead_out_of_the_folder_of_results(checkout, chomp, tmp_path):
    sides = make_strangers(tmp_path / "odd", "base", "../../../x<b>:*", 0.1)
    before = {path for path in tmp_path.rglob("*.json") if "odd" not in path.parts}
    told = chomp("compare", *sides, "--save")
    assert told.code == 0, told.err
    after = {path for path in tmp_path.rglob("*.json") if "odd" not in path.parts}
    [made] = after - before
    assert made.parent == checkout.root / RESULTS
    assert re.fullmatch(r"base--x-b---\w{8}\.json", made.name)


def test_what_is_kept_has_no_place_of_this_machine_and_no_secret(
    checkout, chomp, monkeypatch, grug
):
    monkeypatch.setenv("HF_TOKEN", "hf_planted0123456789")
    for variant, name in (("base", "a"), ("mine", "b")):
        source = {
            "kind": "text",
            "paths": [f"/home/alice/private/{name}.txt"],
            "url": f"https://alice:hunter22@host/x/{name}",
        }
        config = config_of(0, data__components={"code": {"source": source}})
        config["model"]["init_from"] = f"/home/alice/private/{name}.bin"
        config["data"]["tokenizer"] = {"kind": "file", "file": f"/home/alice/{name}.json"}
        make_side(grug, variant, {0: 4.0}, config=config, checkpoint={"data_fingerprint": name})
    sides = [str(grug / "base-*"), str(grug / "mine-*")]
    note = "with hf_planted0123456789 of /home/alice/notes/today.txt"
    told = chomp("compare", *sides, "--other-data", "--save", "--note", note)
    assert told.code == 0, told.err
    [path] = (checkout.root / RESULTS).iterdir()
    kept = path.read_text()
    for leak in ("alice", "hunter22", "hf_planted", "/home", str(checkout.root)):
        assert leak not in kept
    [result] = read_results(checkout.root)
    assert result.command == "chomp compare 'base-*' 'mine-*' --other-data"
    changed = {each.field: (each.base, each.variant) for each in result.changes}
    assert changed["model.init_from"] == ("…/a.bin", "…/b.bin")


def test_a_result_that_cannot_be_kept_is_refused_before_anything_runs(launches, chomp):
    told = chomp("compare", "plain.py", "tuned.py", "--seeds", "2", "--save")
    assert told.code == 2
    assert "checkout" in told.err
    assert not (launches / "outputs").exists()


@pytest.mark.parametrize("content", ["{}", '{"format": '])
def test_a_result_that_cannot_be_read_is_a_note_of_a_comparison(checkout, chomp, content, grug):
    make_sides(grug, base={0: 4.0}, mine={0: 3.9})
    checkout.write(f"{RESULTS}/odd.json", content)
    told = chomp("compare", "base", "mine", "--save")
    assert told.code == 0, told.err
    assert "odd.json cannot be read" in told.out


def test_a_metric_of_unknown_direction_is_refused_before_anything_runs(launches, chomp):
    options = ("--seeds", "2", "--metric", "lm_eval/x/acc")
    told = chomp("compare", "plain.py", "tuned.py", *options)
    assert told.code == 2
    assert "--metric lm_eval/x/acc without --best" in told.err
    assert not (launches / "outputs").exists()


def test_which_value_is_best_is_said(checkout, chomp, grug):
    make_sides(grug, base={0: 4.0}, mine={0: 3.9})
    assert "eval/loss, lowest is best" in chomp("compare", "base", "mine").out
    assert "highest is best" in chomp("compare", "base", "mine", "--best", "highest").out


def test_results_of_one_day_are_in_the_order_they_were_made(checkout, chomp, grug):
    make_sides(grug, base={0: 4.0, 1: 4.0}, mine={0: 3.9, 1: 3.9})
    chomp("compare", str(grug / "base-0000"), str(grug / "mine-0000"), "--save")
    chomp("compare", str(grug / "base-0001"), str(grug / "mine-0001"), "--save")
    # The command tells the second; whole hours apart here, the last by its name made last.
    written = [result.made for result in read_results(checkout.root)]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", made) for made in written)
    paths = sorted((checkout.root / RESULTS).iterdir())
    for path, hour in zip(paths, ("09", "10"), strict=True):
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "made": f"2026-11-16 {hour}:00:00"}))
    assert [result.made[11:13] for result in read_results(checkout.root)] == ["10", "09"]
    chomp("variant", "ledger")
    page = checkout.read("docs/reports/ledger.md")
    assert "| 2026-11-16 at `0123456789ab` |" in page
    assert "- Templates: `base " in page


def test_the_ledger_changes_with_the_archive(checkout, chomp):
    chomp("variant", "ledger")
    page = checkout.read(ARCHIVE).replace("To be here.", "To be gone.")
    checkout.write(ARCHIVE, page.replace("\ngone:", "\naway:"))
    assert chomp("variant", "ledger", "--check").code == 2
    chomp("variant", "ledger")
    assert "| away | not measured |" in checkout.read("docs/reports/ledger.md")


def test_a_file_that_is_no_result_is_an_error_with_its_name(checkout, chomp):
    checkout.write(f"{RESULTS}/odd.json", "{}")
    told = chomp("variant", "ledger")
    assert told.code == 2
    assert "odd.json, which is no result of format 1" in told.err


def test_a_template_that_changed_since_is_named(checkout, chomp, grug):
    make_sides(grug, base={0: 4.0}, mine={0: 3.9})
    chomp("compare", "base", "mine", "--save")
    told = "experiments/grug/base has changed since it was measured"
    assert told not in chomp("variant", "ledger").out
    checkout.write("experiments/grug/base/more.py", "more = 1\n")
    assert told in chomp("variant", "ledger").out


def test_a_template_against_itself_is_a_row_that_shows_the_fields(checkout, chomp, grug):
    """A shorter run of one recipe: no verdict, where each was, and what was set."""
    for name, steps in (("long", 100), ("short", 70)):
        for seed in (0, 1, 2):
            config = config_of(seed, trainer__steps=steps)
            end = 4.0 + seed / 100 - 0.1 * (name == "short") * (1 + seed / 100)
            make_run(grug / f"{name}-{seed}", seed=seed, end=end, config=config, steps=steps)
    told = chomp("compare", str(grug / "long-*"), str(grug / "short-*"), "--save")
    assert "cannot tell: the base had done 70 % of its schedule there" in told.out
    chomp("variant", "ledger")
    page = checkout.read("docs/reports/ledger.md")
    assert (
        "| base, trainer.steps=70 | cannot tell (base at 70 % of its schedule, variant at 100 %) | "
        "base, trainer.steps=100 | 3 | **-" in page
    )
    assert "Cannot tell: the base had done 70 % of its schedule there, the variant all" in page
    assert "- What changed: `trainer.steps: 100 → 70`" in page
    shown = checkout.read("docs/reports/ledger.html")
    assert "What changed: <code>trainer.steps: 100 → 70</code>" in shown
    assert "base at 70 % of its schedule, variant at 100 %" in shown


@pytest.fixture
def ledger_page(checkout: Checkout, chomp: Chomp, grug) -> Iterator[ChromiumPage]:
    make_side(grug, "base", {0: 4.0, 1: 4.1, 2: 3.9})
    make_side(grug, "low", {0: 3.960, 1: 4.058, 2: 3.861})
    make_side(grug, "high", {0: 4.04, 1: 4.138, 2: 3.941})
    for name in ("low", "high"):
        assert chomp("compare", "base", name, "--save").code == 0
    chomp("variant", "ledger")
    program = browser()
    assert program is not None
    with ChromiumPage(program) as page:
        page.open((checkout.root / "docs/reports/ledger.html").as_uri())
        yield page
        assert page.errors == []
        assert [address for address in page.requests if not address.startswith("file:")] == []


@pytest.mark.skipif(browser() is None, reason=MISSING)
def test_the_page_sorts_by_any_column_and_changes_its_light(ledger_page):
    names = (
        "[...document.querySelectorAll('#ledger tbody tr')].map((row) => row.cells[0].innerText)"
    )
    heading = "document.querySelectorAll('#ledger th button')[4]"

    def shown() -> list[str]:
        return [name.split("\n")[0] for name in ledger_page.value(names)]

    assert shown() == ["gone", "high", "low"]
    ledger_page.value(f"{heading}.click()")
    assert shown() == ["low", "high", "gone"]  # by the difference; what has none is last
    ledger_page.value(f"{heading}.click()")
    assert shown() == ["high", "low", "gone"]
    ground = "getComputedStyle(document.body).backgroundColor"
    before = ledger_page.value(ground)
    ledger_page.press("t")
    assert ledger_page.value(ground) != before


@pytest.mark.skipif(browser() is None, reason=MISSING)
def test_the_page_draws_an_interval_on_the_right_side_of_zero(ledger_page):
    circles = (
        "[...document.querySelectorAll('#ledger tbody tr')].slice(1).map((row) => "
        "Number(row.cells[4].querySelector('circle').getAttribute('cx')))"
    )
    higher, lower = ledger_page.value(circles)
    assert lower < 80 < higher


def test_real_runs_can_be_compared(tmp_path, chomp):
    """What a template really writes: one run, and the same as though it had run an hour later."""
    (tmp_path / "data").mkdir()
    data = tiny.build_data(tmp_path / "data")
    # As in tests/cli/conftest.py: what one of the two has compiled, the other loads.
    config = tiny.run_config(data, tmp_path / "once", ema_beta=0.9)
    evaluated = GrugEvalConfig(steps_per_eval=6, eval_batch_size=8, max_eval_batches=2)
    run_grug(replace(config, eval=evaluated))
    shutil.copytree(tmp_path / "once", tmp_path / "again")
    record = tmp_path / "again/metrics.jsonl"
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    later = [{**row, "time": row["time"] + 3600} for row in rows]
    record.write_text("".join(json.dumps(row) + "\n" for row in later))
    runs = [str(tmp_path / name) for name in ("once", "again")]
    told = chomp("compare", *runs, "--json", str(tmp_path / "result.json"))
    assert told.code == 0, told.err
    assert "cannot tell: +0.00 % over one seed" in told.out
    # That the data is the same in the same order is proved by fingerprints, not taken from configs.
    assert "note: " not in "".join(line for line in told.out.splitlines() if "seconds" not in line)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["changes"] == []
    tokens, flops, _ = result["budgets"]
    assert tokens["spent"] == [12 * 8 * 64]
    assert tokens["base"] == tokens["variant"] == flops["base"]
    assert flops["spent"][0] == 3 * 12 * 8 * 64 * result["base"]["flops_per_token"]
    # How long they took is chance; that they tell it is not.
    assert all(curve_of(read_record(run), "eval/loss", "time").reach > 0 for run in runs)
    assert result["versions"]["jax"]
