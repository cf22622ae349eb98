"""A launch file as a command: what it runs, what it says, and the exit code it ends with."""

import io
import logging
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chomp import storage
from chomp.cli.main import exit_code
from chomp.executor import read_status

Run = Callable[..., subprocess.CompletedProcess[str]]


def folder_of(name: str, prefix: Path) -> Path:
    """The one output folder of the step called `name`."""
    [folder] = [path for path in prefix.glob(f"{name}-*") if ".replaced-" not in path.name]
    return folder


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))}


def state_of(name: str, prefix: Path) -> str:
    status = read_status(str(folder_of(name, prefix)))
    assert status is not None
    return status.state


def test_steps_run_once_and_the_report_comes_each_time(launch: Run, tmp_path: Path):
    first = launch()
    assert (first.returncode, first.stderr) == (0, "")
    outputs = tmp_path / "outputs"
    train = folder_of("train", outputs)
    assert first.stdout.splitlines() == [
        "tokens make tokens  (new)",
        "train (new)",
        f"report: outputs/{train.name} True",
    ]
    before = times(outputs)
    again = launch()
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.splitlines() == [
        f"Already done: train is at outputs/{train.name}",
        f"report: outputs/{train.name} True",
    ]
    assert times(outputs) == before, "a prefix that cannot be written will do"
    assert (train / "runs").read_text() == "ran\n"
    assert "Train something small." in launch("--help").stdout


def test_the_prefix_comes_from_the_flag_then_the_environment(launch: Run, tmp_path: Path):
    assert launch(CHOMP_PREFIX="from env").returncode == 0
    assert launch("--prefix", "from flag", CHOMP_PREFIX="from env 2").returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["from env", "from flag", "template"]
    hashes = [folder_of("train", tmp_path / name).name for name in ("from env", "from flag")]
    assert hashes[0] == hashes[1]


def test_an_override_moves_the_folder_and_the_plan_names_the_field(launch: Run, tmp_path: Path):
    assert launch().returncode == 0
    old = folder_of("train", tmp_path / "outputs").name.partition("-")[2]
    before = times(tmp_path)
    plan = launch("--plan", "-o", "model.width=12", "--override", "model.width=16")
    assert (plan.returncode, plan.stderr) == (0, "")
    assert times(tmp_path) == before
    tokens, train, end = plan.stdout.splitlines()
    assert tokens.split()[:2] == ["skip", "tokens"]
    assert tokens.endswith("(done)")
    assert train.split()[:2] == ["run", "train"]
    assert train.endswith(f"(changed since {old}: model.width: 8 -> 16)")
    assert end == "This is the plan; nothing was run."


def test_a_dry_run_shows_the_plan_and_what_the_launch_file_says_and_writes_nothing(
    launch: Run, tmp_path: Path
):
    shown = launch("--dry-run", "-o", "model.width=16", "--attention", "reference")
    assert (shown.returncode, shown.stderr) == (0, "")
    tokens, train, said, end = shown.stdout.splitlines()
    assert [tokens.split()[:2], train.split()[:2]] == [["run", "tokens"], ["run", "train"]]
    paths = [line.split()[2] for line in (tokens, train)]
    assert paths[0].startswith("outputs/tokens-")
    assert said == f"dry run: Model(width=16, attention='reference') {paths[0]} {paths[1]} False"
    assert end == "This is a dry run; nothing was run."
    assert os.listdir(tmp_path) == ["template"]


def test_a_dry_run_is_told_whether_what_the_last_step_is_made_from_is_there(
    launch: Run, tmp_path: Path
):
    def is_ready(*arguments: str) -> bool:
        before = times(tmp_path)
        shown = launch("--dry-run", *arguments)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert times(tmp_path) == before
        [said] = [line for line in shown.stdout.splitlines() if line.startswith("dry run:")]
        return said.split()[-1] == "True"

    assert launch().returncode == 0
    assert is_ready("-o", "lr=0.2")
    assert is_ready()
    assert not is_ready("--force", "tokens")
    shutil.rmtree(folder_of("tokens", tmp_path / "outputs"))
    # The run is done and needs them no more; whoever wants to look at them does.
    assert not is_ready()


# What is replaced in the launch file, the options, the exit code, and what stderr says.
REFUSED = [
    ("", "", ["--dry-run", "-o", "trouble=memory"], 1, "Error: does not fit\n"),
    (
        "        dry_run=dry_run,\n",
        "",
        ["--dry-run"],
        2,
        "--dry-run on a launch file that has none. Allowed: .*Fix: use --plan, or pass dry_run= ",
    ),
    (
        "train, config)]",
        "train, config), made]",
        ["--dry-run"],
        2,
        "is needed by train, which comes after it: tokens.*Fix: use --plan, or .* train last",
    ),
    ("", "", ["-o", "has_steps=false"], 1, "Error: a launch file that gives no steps. Allowed: "),
    ("    made =", "    launch.no_such_field\n    made =", ["--plan"], 1, "\nAttributeError: "),
    ("", "", ["--prefix", "simplecache::file:///x"], 1, "Allowed: a local path, or one on a "),
]


@pytest.mark.parametrize(("old", "new", "options", "code", "told"), REFUSED)
def test_what_cannot_be_launched_says_so_and_leaves_nothing_behind(
    launch: Run, launch_file: Path, tmp_path: Path, old: str, new: str, options, code, told: str
):
    launch_file.write_text(launch_file.read_text().replace(old, new))
    ended = launch(*options)
    assert ended.returncode == code
    assert re.search(told, ended.stderr)
    # A bug in the launch file keeps its traceback, an error of chomp has none.
    assert ("Traceback" in ended.stderr) == ("AttributeError" in told)
    assert "nothing was run" not in ended.stdout
    assert os.listdir(tmp_path) == ["template"]


@pytest.mark.parametrize("is_terminal", [False, True], ids=["piped", "terminal"])
def test_a_long_path_in_the_plan_can_be_copied(
    launch: Run, launch_file: Path, tmp_path: Path, is_terminal: bool
):
    prefix = str(tmp_path / ("long" * 40))
    if not is_terminal:
        shown = launch("--plan", "--prefix", prefix).stdout
    else:
        ours, theirs = pty.openpty()
        command = [sys.executable, str(launch_file), "--plan", "--prefix", prefix]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
        process = subprocess.Popen(command, stdout=theirs, env=environment)
        os.close(theirs)
        assert process.wait(timeout=60) == 0
        shown = os.read(ours, 100_000).decode()
        os.close(ours)
    assert f"{prefix}/tokens-" in shown
    assert f"{prefix}/train-" in shown
    assert not os.path.exists(prefix)


def test_what_differs_is_listed_on_reuse_and_strict_refuses_it(
    launch: Run, launch_file: Path, tmp_path: Path
):
    assert launch("-o", "name=a.b-c").returncode == 0
    launch_file.write_text(launch_file.read_text() + "\n# edited\n")
    noted = launch("-o", "name=a.b-c", "-o", "trouble=[bold]")
    assert noted.returncode == 0
    assert "Already done" in noted.stdout
    [head, *rest] = noted.stderr.splitlines()
    assert head.startswith("Note: a.b-c-")
    assert head.endswith(" is reused, but it was made with other source or settings:")
    flag = r"--force '^a\.b-c$'"
    assert rest == [
        "  trouble: recorded '', now '[bold]'",
        "  template source launch.py: edited since the recorded run",
        f"  To run it again from the start: {flag}",
    ]
    strict = launch("-o", "name=a.b-c", "--strict")
    assert (strict.returncode, strict.stdout) == (1, "")
    assert "would be reused though it differs" in strict.stderr
    assert f"Fix: run again from the start with {flag}, or leave out --strict." in strict.stderr
    # What it would be made from was made with other source, too.
    half = launch("-o", "name=a.b-c", "--strict", "--force", r"^a\.b-c$")
    assert half.returncode == 1
    assert "--force '^tokens$'" in half.stderr
    forced = launch("-o", "name=a.b-c", "--strict", "--force", ".")
    assert (forced.returncode, forced.stderr) == (0, "")
    assert "a.b-c (forced)" in forced.stdout
    assert len(list((tmp_path / "outputs").glob("a.b-c-*.replaced-*"))) == 1


def test_a_bug_in_a_step_keeps_its_traceback_and_its_repair_is_listed(launch: Run, tmp_path: Path):
    broken = launch("-o", "trouble=bug")
    assert broken.returncode == 1
    assert "Traceback (most recent call last)" in broken.stderr
    assert "ZeroDivisionError: a bug [/in] the step" in broken.stderr
    train = folder_of("train", tmp_path / "outputs")
    assert broken.stderr.splitlines()[-3:] == [
        f"Error: {train.name} failed; its folder is outputs/{train.name}",
        "Failed: 1 of 2 steps",
        f"  {train.name}: see outputs/{train.name}/.executor_error",
    ]
    assert "report:" not in broken.stdout
    assert state_of("tokens", tmp_path / "outputs") == "SUCCESS"
    assert "ZeroDivisionError" in storage.read_text(train / ".executor_error")
    repaired = launch()
    assert repaired.returncode == 0
    assert "is continued, but" in repaired.stderr
    assert "trouble: recorded 'bug', now ''" in repaired.stderr
    assert "train (attempt 1 ended as failed; it continues)" in repaired.stdout
    assert "report:" in repaired.stdout


def test_the_end_names_every_step_that_failed_and_every_one_that_needed_it(
    launch: Run, launch_file: Path, tmp_path: Path
):
    text = launch_file.read_text()
    bad = "def tokens(config):\n    raise DataError('no text')\n\n\ndef other(config):\n"
    launch_file.write_text(
        text.replace("def tokens(config):\n", bad).replace(
            "return [ExecutorStep(launch.name",
            "return [ExecutorStep('fine', other, config), ExecutorStep('free', other, "
            "{'out': this_output_path()}), ExecutorStep(launch.name",
        )
    )
    ended = launch()
    assert ended.returncode == 1
    names = {name: folder_of(name, tmp_path / "outputs").name for name in ("tokens", "train")}
    fine = folder_of("fine", tmp_path / "outputs").name
    because = f"not run, since a step it depends on failed ({names['tokens']})"
    assert ended.stderr.splitlines() == [
        f"Error: {names['tokens']}: no text",
        "Failed: 1 of 4 steps, 2 more not run",
        f"  {names['tokens']}: see outputs/{names['tokens']}/.executor_error",
        f"  {fine}: {because}",
        f"  {names['train']}: {because}",
    ]
    assert [state_of(name, tmp_path / "outputs") for name in ("free", "train")] == [
        "SUCCESS",
        "DEP_FAILED",
    ]


def test_only_runs_what_matches_and_reports_on_the_last_step_alone(launch: Run, tmp_path: Path):
    done = launch("--only", "tok")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["tokens make tokens  (new)"]
    again = launch("--only", "tok")
    tokens = folder_of("tokens", tmp_path / "outputs").name
    assert again.stdout.splitlines() == [f"Already done: tokens is at outputs/{tokens}"]
    assert "report:" in launch("--only", "train").stdout


def test_steps_in_processes_of_their_own_give_the_same_folders_and_reports(
    launch: Run, tmp_path: Path
):
    done = launch("--max-concurrent", "2")
    assert done.returncode == 0, done.stderr
    train = folder_of("train", tmp_path / "outputs")
    tokens = folder_of("tokens", tmp_path / "outputs")
    assert done.stdout.splitlines() == [
        f"tokens make tokens  (new)  log: outputs/{tokens.name}/.executor_log",
        f"train (new)  log: outputs/{train.name}/.executor_log",
        f"report: outputs/{train.name} True",
    ]
    assert (train / ".executor_log").exists()
    assert "Already done" in launch().stdout
    failed = launch("--on", "process", "-o", "trouble=data", "-o", "lr=0.3")
    assert failed.returncode == 1
    head, *end = failed.stderr.partition("Failed: ")[2].splitlines()
    assert head == "1 of 1 step"
    assert re.fullmatch(r"  train-\w+: see outputs/train-\w+/\.executor_log", end[0])
    shown = [line.removeprefix("    | ") for line in end[1:] if line.startswith("    | ")]
    log = Path(tmp_path, end[0].partition(": see ")[2]).read_text()
    assert "no documents" in shown[-1]
    assert log.endswith("\n".join(shown) + "\n"), "the last lines of the log"
    bug = launch("--on", "process", "-o", "trouble=bug", "-o", "lr=0.4").stderr
    # As where it happened, without how it came here.
    assert bug.count("Traceback (most recent call last):") == 1
    assert "ZeroDivisionError: a bug [/in] the step\nError: train-" in bug


@pytest.mark.parametrize(
    ("trouble", "code", "state", "words"),
    [
        ("end of input", 1, "FAILED", "EOFError: a bug that"),
        ("saved", 75, "INTERRUPTED", "Stopped. SIGTERM: the state is saved [/x]."),
        ("ctrl-c", 130, "INTERRUPTED", "Stopped. The same command continues."),
        ("data", 1, "FAILED", f": no documents [bold]at all[/bold]{'.' * 100}\n"),
    ],
)
def test_each_end_has_its_exit_code_and_its_record(
    launch: Run, tmp_path: Path, trouble: str, code: int, state: str, words: str
):
    ended = launch("-o", f"trouble={trouble}")
    assert ended.returncode == code
    assert words in ended.stderr
    # An error of chomp is one line; its traceback is in the step's folder, as that of a bug.
    assert ("Traceback" in ended.stderr) == (trouble == "end of input")
    assert state_of("train", tmp_path / "outputs") == state
    error = folder_of("train", tmp_path / "outputs") / ".executor_error"
    assert error.exists() == (state == "FAILED")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--plam"], "--plam"),
        (["-o", "model.widht=1"], "did you mean width?"),
        (["-o", "lr=fast"], "lr='fast'"),
        (["--force", "nothing"], "found in no step's name"),
        (["--attention", "fastest"], "Allowed: one of 'auto', 'reference'"),
        (["--only", "nothing"], "--only 'nothing', which is found in no step's name"),
        (["--on", "moon"], "--on moon. Allowed: one of local, process, ray"),
        (["--max-concurrent", "0"], "--max-concurrent 0"),
        (["--on", "local", "--max-concurrent", "2"], "Fix: use --on process"),
        (["--dry-run", "--only", "tokens"], "--dry-run with --only tokens, which leaves out train"),
        (["--sweep", "lr=1", "--sweep-best", "first"], "--sweep-best first. Allowed: lowest, "),
        (["--sweep-best", "higest"], "--sweep-best higest. Allowed: lowest, "),
        (["--sweep-best", "highest"], "--sweep-best highest without a sweep"),
        (["--sweep", "lr=1", "--dry-run"], "a sweep with --dry-run"),
        (["--sweep", "lr=1", "--sweep-file", "x"], "both --sweep and --sweep-file"),
        (["--restarts", "1", "--force", "."], "--restarts 1 with --force"),
    ],
)
def test_a_wrong_command_line_ends_with_two_and_one_message(
    launch: Run, tmp_path: Path, arguments: list[str], words: str
):
    ended = launch(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    [line] = ended.stderr.splitlines()
    assert line.startswith("Error: ")
    assert words in line
    assert "Allowed: " in line
    assert "Fix: " in line
    assert os.listdir(tmp_path) == ["template"]


def test_a_process_that_waits_for_another_says_for_whom(
    launch: Run, launch_file: Path, tmp_path: Path
):
    text = launch_file.read_text()
    blocking = "import os, time\n    open('begun', 'w').close()\n"
    blocking += "    while not os.path.exists('go'):\n        time.sleep(0.01)\n"
    launch_file.write_text(
        text.replace("def tokens(config):\n", f"def tokens(config):\n    {blocking}")
    )
    command = [sys.executable, str(launch_file)]
    first = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    processes = [first]
    try:
        while not (tmp_path / "begun").exists():
            assert first.poll() is None
            time.sleep(0.01)
        second = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        processes.append(second)
        assert second.stdout is not None
        assert second.stdout.readline().startswith("Waiting for tokens-")
        assert f"held by process {first.pid} on " in second.stdout.readline()
        assert f"being run by process {first.pid} on " in launch("--plan").stdout
        (tmp_path / "go").touch()
        for process in processes:
            assert "report:" in process.communicate(timeout=240)[0]
        assert [process.returncode for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    for name in ("tokens", "train"):
        assert (folder_of(name, tmp_path / "outputs") / "runs").read_text() == "ran\n"


def test_a_sweep_runs_each_point_once_and_ends_with_a_table(launch: Run, tmp_path: Path):
    swept = launch("--sweep", "lr=0.1,0.2,0.3")
    assert (swept.returncode, swept.stderr) == (0, "")
    trained = [line for line in swept.stdout.splitlines() if line.startswith("train ")]
    assert len(trained) == 3
    assert "sweep, by train/loss, lowest first" in swept.stdout  # nothing was evaluated
    assert swept.stdout.count("success") == 3  # and nothing logged: the state of each
    assert launch("-o", "lr=0.2").stdout.startswith("Already done: train is at ")


def test_a_command_leaves_the_log_handlers_of_its_program_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    own = logging.StreamHandler(io.StringIO())
    own.setFormatter(logging.Formatter("mine %(message)s"))
    monkeypatch.setattr(logging.getLogger(), "handlers", [own])
    assert exit_code(["data", "forecast", "no-such-file.py"]) != 0
    logging.getLogger("chomp").warning("look")
    assert (own.stream.getvalue(), own.level) == ("mine look\n", logging.NOTSET)
    # Without one, warnings are shown, and nothing below them.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger("chomp"), "level", logging.INFO)
    assert exit_code(["data", "forecast", "no-such-file.py"]) != 0
    capsys.readouterr()
    logging.getLogger("chomp").warning("look")
    logging.getLogger("chomp").info("a detail")
    assert capsys.readouterr().err == "WARNING: look\n"


def test_a_prefix_that_cannot_be_written_is_refused_before_anything_runs(
    launch: Run, launch_file: Path
):
    prefix = f"{launch_file}/outputs"  # below a file
    ended = launch("--prefix", prefix)
    assert (ended.returncode, ended.stdout) == (1, "")
    [line] = ended.stderr.splitlines()
    assert line.startswith(f"Error: cannot make {prefix}: ")


def test_a_sweep_file_without_a_name_is_refused_and_no_run_of_the_defaults(launch: Run):
    ended = launch("--sweep-file", "")
    assert ended.returncode == 1
    assert "tokens" not in ended.stdout
