"""What `ray_run` makes of its words and of this folder, and what it refuses; without a cluster."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.errors import ConfigError, LaunchError
from chomp.launch import ray_run
from chomp.launch.ray_run import (
    NobodyReads,
    big_files,
    entrypoint_of,
    excludes_of,
    follow,
    git_commit,
    job_address,
    job_environment,
    main,
    packages_below,
    parse_options,
    stop,
    submission_id_of,
    submit,
)

SET = {"HOME": "/home", "MODE": "fast"}


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["--env_vars", "A=1"], {"A": "1"}),
        (["--env_vars", "A=1", "B=2=3"], {"A": "1", "B": "2=3"}),
        (["--env_vars", "A", "1"], {"A": "1"}),
        (["-e", "MODE"], {"MODE": "fast"}),
        (["-e", "MODE", "-e", "HOME"], {"MODE": "fast", "HOME": "/home"}),
        (["--env_vars", "MODE", "HOME", "A=1"], {"MODE": "fast", "HOME": "/home", "A": "1"}),
        (["--env_vars=A=1"], {"A": "1"}),
        (["--env_vars", "KEY="], {"KEY": ""}),
        (["-e", "A=1", "-e", "A=2"], {"A": "2"}),
        ([], {}),
    ],
)
def test_variables_can_be_given_by_value_in_two_words_and_by_name(words, variables):
    options = parse_options(["--no-wait", *words, "--cluster", "here"])
    assert (options.no_wait, options.cluster) == (True, "here")
    assert job_environment(options.env_vars, SET) == variables


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "without anything"),
        (["=secret"], "an invalid name"),
        (["9A=secret"], "an invalid name"),
        (["NOT_THERE"], "NOT_THERE, which is not set here"),
        (["A=1", "NOT_THERE"], "NOT_THERE"),
        (["MODE", "HOME"], "two names"),
        (["secret word", "secret"], "an invalid name"),
    ],
)
def test_variables_that_name_nothing_are_refused_without_telling_values(words, told):
    with pytest.raises(ConfigError, match=told) as raised:
        job_environment([words], SET)
    assert "secret" not in str(raised.value)


def test_keys_that_are_set_go_along_and_can_be_given_otherwise():
    environ = {"WANDB_API_KEY": "mine", "HF_TOKEN": "", "OTHER": "x"}
    assert job_environment([], environ) == {"WANDB_API_KEY": "mine"}
    assert job_environment([["WANDB_API_KEY=its"]], environ) == {"WANDB_API_KEY": "its"}


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x", *words]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a package, results, and things that git ignores."""
    files = {
        ".gitignore": "data/\n*.log\n",
        "launch.py": "import mine",
        "src/mine/__init__.py": "",
        "src/mine/deep/outputs/kept.py": "",
        "src/mine/__pycache__/x.pyc": "",
        "outputs/result": "",
        "runs/result": "",
        "wandb/result": "",
        "data/tokens": "",
        "a.log": "",
        "new file.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "launch.py", "src", ".gitignore")
    git(tmp_path, "commit", "-qm", "x")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sent(folder: Path) -> set[str]:
    """What git finds in a folder by the patterns that are handed to Ray, which has git's syntax."""
    (folder / "excluded.key").write_text("\n".join(excludes_of(folder)))
    bare = [f"--git-dir={folder}/.venv", f"--work-tree={folder}"]
    git(folder, *bare, "init", "-q")
    found = git(folder, *bare, "ls-files", "--others", "--exclude-from=excluded.key")
    return set(found.splitlines())


KEPT = {
    ".gitignore",
    "launch.py",
    "new file.py",
    "src/mine/__init__.py",
    "src/mine/deep/outputs/kept.py",
}


def test_code_is_sent_and_results_keys_and_what_git_ignores_are_not(checkout):
    for name in (".env", "cloud.pem", ".ssh/id"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text("a key")
    assert sent(checkout) == KEPT
    assert packages_below(checkout) == [str(checkout / "src/mine")]
    # Also where there is no git: then nobody says what is to be ignored.
    (checkout / ".git").rename(checkout / "node_modules")
    assert sent(checkout) == {*KEPT, "a.log", "data/tokens"}


def test_what_a_folder_above_ignores_is_not_sent_either(checkout):
    (checkout / "src/data").mkdir()
    (checkout / "src/data/tokens").touch()
    assert sent(checkout / "src") == {"mine/__init__.py", "mine/deep/outputs/kept.py"}


def test_files_too_big_for_code_stay_here_and_are_named(checkout, monkeypatch):
    monkeypatch.setattr(ray_run, "BIG_FILE_BYTES", 1000)
    for name in ("weights [1].bin", "a.log", "outputs/big"):  # of which one would be sent
        (checkout / name).write_bytes(bytes(1001))
    assert big_files(checkout) == ["weights [1].bin"]
    (checkout / "weights 1.bin").touch()  # which the name would match, were it a pattern
    assert sent(checkout) == {*KEPT, "weights 1.bin"}
    (checkout / "launch.py").unlink()  # but it is still tracked
    assert big_files(checkout) == ["weights [1].bin"]


def test_the_commit_says_whether_files_differ_from_it(checkout):
    git(checkout, "add", "--all")
    git(checkout, "commit", "-qm", "all")
    commit = git_commit()
    assert commit is not None
    assert len(commit) == 40
    (checkout / "newer.py").touch()
    assert git_commit() == f"{commit}-dirty"


PROJECT = '[project]\nname = "x"\n[project.optional-dependencies]\ngpu = []\nray = []\nhf = []\n'


@given(st.lists(st.sampled_from(["python", "-m", "a/b.py", "run.sh", "x"]), min_size=1))
def test_the_name_of_a_job_is_new_each_time_and_says_what_runs(command):
    names = {submission_id_of(command) for _ in range(3)}
    assert len(names) > 1
    files = [word for word in command if "." in word]
    assert all((Path((files or command)[0]).stem) in name for name in names)
    assert all(name.startswith("ray-run-") and "/" not in name for name in names)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], ["no command", "behind --"]),
        (["--no-wait", "--"], ["no command", "behind --"]),
        (["--no-such", "--", "x"], ["unknown: --no-such.", "--help"]),
        (["--env_var", "A=secret", "--", "x"], ["unknown: --env_var."]),
        (["--env_var", "A", "secret", "--env=A=secret", "--", "x"], ["unknown: --env_var --env."]),
        (["A=secret"], ["1 words before --"]),
        (["-env_vars", "HF_TOKEN", "secret", "--", "x"], ["2 words before --"]),
        (["-e", "HF_TOKEN", "-h_secret", "--", "x"], ["ignored"]),
        (["--env_vars=HF_TOKEN", "secret", "--", "x"], ["1 words before --"]),
        (["--env_vars", "A=1", "--no-wait", "HF_TOKEN", "secret", "--", "x"], ["2 words"]),
        (["python", "x.py"], ["2 words before --", "-- python"]),
        (["--env_vars", "--", "x"], ["without anything"]),
        (["--env_vars", "NOT_SET_ANYWHERE", "--", "x"], ["NOT_SET_ANYWHERE", "not set here"]),
        (["--entrypoint-num-cpus", "-1", "--", "x"], ["entrypoint-num-cpus -1", "0 or more"]),
        (["--entrypoint-resources", "TPU", "--", "x"], ["entrypoint-resources TPU", "JSON"]),
        (["--entrypoint-resources", '{"TPU": 0}', "--", "x"], ["above 0"]),
        (["--extra", "nothing", "--", "x"], ["--extra nothing"]),
        (["--cluster", "nowhere", "--", "x"], ["nowhere.yaml", "nowhere:8265"]),
        (["--cluster", "127.0.0.1:1", "--", "x"], ["127.0.0.1:1 does not answer", "ray start"]),
        (["--cluster", "http://127.0.0.1:1", "--", "x"], ["127.0.0.1:1 does not answer"]),
        (["--cluster", "ftp://127.0.0.1:1", "--", "x"], ["ftp://", "host:port"]),
        (["--cluster", "127.0.0.1:port", "--", "x"], ["'127.0.0.1:port'", "host:port"]),
        (["--cluster", "no/such.yaml", "--", "x"], ["no/such.yaml", "ray up"]),
    ],
)
def test_what_cannot_be_submitted_is_refused_at_once_in_one_message(
    checkout, capsys, monkeypatch, words, told
):
    monkeypatch.delenv("NOT_SET_ANYWHERE", raising=False)
    assert main(words) != 0
    said = " ".join(capsys.readouterr().err.split())
    for word in told:
        assert word in said
    assert said.count("Fix: ") == 1
    assert "secret" not in said


# Ray leaves the file open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_file_that_is_no_cluster_of_rays_launcher_is_refused(tmp_path):
    (tmp_path / "config.yaml").write_text("trainer: {}")
    with pytest.raises(LaunchError, match=r"KeyError: 'provider'.*ray up"):
        job_address(str(tmp_path / "config.yaml"))


def test_help_shows_the_options_and_needs_no_ray(tmp_path):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise ImportError('not installed')")
    run = [sys.executable, "-m", "chomp.launch.ray_run"]
    env = {"PYTHONPATH": str(tmp_path), "COLUMNS": "200"}
    done = subprocess.run([*run, "--help"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for option in ("--no-wait", "--env_vars", "--cluster", "--extra", "--entrypoint-num-gpus"):
        assert option in done.stdout


EXTRAS = "uv run --extra gpu --extra hf --extra ray"


@pytest.mark.parametrize(
    ("command", "extras", "python", "words"),
    [
        ("python x.py", [], "python", "python x.py"),
        ("/env/bin/python3 x.py", [], "/env/bin/python3", "/env/bin/python3 x.py"),
        ("bash x.sh", [], "python", "bash x.sh"),
        ("python3.11 x.py", [], "python3.11", "python3.11 x.py"),
        ("python-coverage run", [], "python", "python-coverage run"),
        # Extras are installed by uv where the command runs, with Ray, which its driver needs.
        ("uv run x.py", ["gpu", "hf"], "python", f"{EXTRAS} x.py"),
        ("python x.py --plan", ["gpu", "hf"], "python", f"{EXTRAS} -- python x.py --plan"),
    ],
)
def test_a_command_is_run_with_its_extras_and_keys_by_the_python_it_names(
    tmp_path, command, extras, python, words
):
    project = tmp_path / "pyproject.toml"
    project.write_text(PROJECT)
    made = entrypoint_of(command.split(), extras, project, has_keys=True)
    assert " ".join(made) == f"{python} -m chomp_job_start {words}"
    assert entrypoint_of(command.split(), extras, project, has_keys=False) == words.split()


def test_an_extra_that_the_project_lacks_is_refused(tmp_path):
    project = tmp_path / "pyproject.toml"
    project.write_text(PROJECT)
    for place, known in ((project, "gpu, hf, ray"), (tmp_path / "missing.toml", "it has none")):
        with pytest.raises(ConfigError, match=rf"--extra gpus.*{known}"):
            entrypoint_of(["x"], ["gpus"], place, has_keys=False)


def submitted(client: Any, folder: Path, **changes: object) -> None:
    """Submit a job as `ray_run` does."""
    usual: dict[str, Any] = {"environment": {"MODE": "fast"}, "keys": {}, **changes}
    submit(client, "mine", "x", folder, **usual)


class ClientOfJobs:
    """A job server that takes everything and keeps what it was given, with a job in one state."""

    def __init__(self, status: str = "RUNNING", *, says: str = "") -> None:
        self.asked: dict[str, Any] = {}
        self.packages: dict[str, dict[str, bytes]] = {}  # what they hold when they are uploaded
        is_over = status in ("STOPPED", "FAILED", "SUCCEEDED")
        self._status = SimpleNamespace(value=status, is_terminal=lambda: is_over)
        self._says = says

    def submit_job(self, **asked: object) -> str:
        self.asked = asked
        for place in map(Path, self.asked["runtime_env"].get("py_modules", [])):
            files = {each.name: each.read_bytes() for each in place.iterdir() if each.is_file()}
            self.packages[place.name] = files
        return "mine"

    def stop_job(self, submission_id: str) -> None:
        self.asked["stopped"] = submission_id

    def get_job_status(self, submission_id: str) -> SimpleNamespace:
        return self._status

    def get_job_info(self, submission_id: str) -> SimpleNamespace:
        return SimpleNamespace(status=self._status, message="", driver_exit_code=3)

    async def tail_job_logs(self, submission_id: str) -> AsyncIterator[str]:
        yield self._says


def test_keys_travel_in_two_halves_of_which_none_holds_them(checkout):
    client = ClientOfJobs()
    submitted(client, checkout, keys={"HF_TOKEN": "a-long-key"})
    shown = client.asked["runtime_env"]["env_vars"]
    half = bytes.fromhex(shown.pop("CHOMP_JOB_KEYS"))
    assert shown == {"MODE": "fast"}
    assert list(client.packages) == ["mine", "chomp_job_start"]
    other = client.packages["chomp_job_start"]["keys.bin"]
    for part in (half, other):
        assert b"a-long-key" not in part
        assert b"HF_TOKEN" not in part
    # Ray keeps packages by their content, and the job empties this one.
    submitted(client, checkout, keys={"HF_TOKEN": "a-long-key"})
    assert client.packages["chomp_job_start"]["keys.bin"] != other
    without = ClientOfJobs()
    submitted(without, checkout)
    assert list(without.packages) == ["mine"]
    assert without.asked["runtime_env"]["working_dir"] == str(checkout)


@pytest.mark.parametrize("status", ["PENDING", "STOPPED"])
def test_a_job_that_is_stopped_before_it_began_is_not_waited_for(status, capsys):
    client = ClientOfJobs(status)
    stop(client, "mine")
    assert client.asked["stopped"] == "mine"
    assert ("not begun" in capsys.readouterr().err) == (status == "PENDING")


class BreakingClient(ClientOfJobs):
    """A job that has failed, whose log comes in parts: the connection breaks after each."""

    def __init__(self, *parts: str) -> None:
        super().__init__("FAILED")
        self._parts = list(parts)

    async def tail_job_logs(self, submission_id: str) -> AsyncIterator[str]:
        if self._parts:
            yield self._parts.pop(0)
        if self._parts or not self._says:
            raise ConnectionError("it broke")


def test_a_connection_that_breaks_is_made_again_and_nothing_is_shown_twice(capsys, monkeypatch):
    monkeypatch.setattr(ray_run, "_PAUSE_S", 0.0)
    # Each connection that worked is a reason to try another, however long ago the last one was.
    monkeypatch.setattr(ray_run, "_PATIENCE_S", 0.0)
    client = BreakingClient("one ", "one two ", "one two three\n")
    client._says = "and then it ends as it should"
    assert follow(client, "mine") == 3
    assert capsys.readouterr().out == "one two three\n"


def test_a_cluster_that_no_longer_answers_is_given_up_and_the_job_named(monkeypatch):
    monkeypatch.setattr(ray_run, "_PAUSE_S", 0.001)
    monkeypatch.setattr(ray_run, "_PATIENCE_S", 0.0)
    with pytest.raises(LaunchError, match=r"it broke.*mine may go on"):
        follow(BreakingClient("one "), "mine")


def test_nobody_is_waited_for_who_no_longer_reads_what_a_job_says(monkeypatch):
    read, write = os.pipe()
    os.close(read)
    # Unbuffered, so that nothing is left in it to fail a second time.
    with os.fdopen(write, "wb", buffering=0) as raw:
        said = SimpleNamespace(write=lambda text: raw.write(text.encode()), flush=raw.flush)
        monkeypatch.setattr(sys, "stdout", said)
        with pytest.raises(NobodyReads):
            follow(ClientOfJobs(says="line\n"), "mine")


def test_a_command_finds_its_keys_once_and_a_second_one_is_told_so(checkout, tmp_path):
    client = ClientOfJobs()
    submitted(client, checkout, keys={"HF_TOKEN": "a-key"})

    def unpack() -> None:
        for name, text in client.packages["chomp_job_start"].items():
            (tmp_path / "node/chomp_job_start").mkdir(parents=True, exist_ok=True)
            (tmp_path / "node/chomp_job_start" / name).write_bytes(text)

    def start(*command: str) -> subprocess.CompletedProcess[str]:
        python = [sys.executable, "-S", "-m", "chomp_job_start"]
        shown = client.asked["runtime_env"]["env_vars"]
        env = {"PYTHONPATH": str(tmp_path / "node"), "PATH": "/usr/bin:/bin", **shown}
        return subprocess.run([*python, *command], env=env, capture_output=True, text=True)

    unpack()
    command = ["sh", "-c", "echo $HF_TOKEN $CHOMP_JOB_KEY_NAMES $CHOMP_JOB_KEYS; exit 3"]
    done = start(*command)
    assert (done.returncode, done.stdout) == (3, "a-key HF_TOKEN\n"), done.stderr
    again = start(*command)
    assert again.returncode == 1
    assert "no longer there" in again.stderr
    unpack()
    assert start("no-such-command").returncode == 127


class ClosedTerminal(ClientOfJobs):
    """A job that fails, and whose follower's terminal is closed before that."""

    def get_address(self) -> str:
        return "here"

    async def tail_job_logs(self, submission_id: str) -> AsyncIterator[str]:
        os.kill(os.getpid(), signal.SIGHUP)
        yield "line\n"


@pytest.mark.parametrize(("before", "code"), [(signal.SIG_IGN, 3), (signal.SIG_DFL, 130)])
def test_a_job_is_followed_after_its_terminal_was_closed_under_nohup_alone(
    checkout, monkeypatch, before, code
):
    monkeypatch.setattr(ray_run, "job_client", lambda cluster: ClosedTerminal("FAILED"))
    usual = signal.signal(signal.SIGHUP, before)
    try:
        assert main(["--", "python", "launch.py"]) == code
        assert signal.getsignal(signal.SIGHUP) is before
    finally:
        signal.signal(signal.SIGHUP, usual)


class RefusingClient:
    """A job server that answers as Ray's does: with its whole traceback, variables and all."""

    def submit_job(self, **asked: object) -> str:
        raise RuntimeError(
            f"Request failed with status code 500: Traceback\n  File x\nValueError: {asked}\n."
        )


def test_a_refused_job_is_told_by_its_reason_and_without_keys(checkout):
    with pytest.raises(LaunchError, match=r"mine.*ValueError") as raised:
        submitted(RefusingClient(), checkout, environment={"MY_URL": "https://me:pass@there"})
    assert "pass" not in str(raised.value)
