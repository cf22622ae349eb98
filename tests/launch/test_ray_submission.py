"""What `ray_run` makes of its words and of this folder, and what it refuses; without a cluster."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.errors import ConfigError, LaunchError
from chomp.launch import shipped_folder as shipping
from chomp.launch.job_command import submission_id_of, with_extras
from chomp.launch.job_environment import git_commit, job_environment, split_environment_words
from chomp.launch.ray_dashboard import job_address
from chomp.launch.ray_job import RayJob, submitted
from chomp.launch.ray_run import main
from chomp.launch.shipped_folder import shipped_folder

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
    groups, others = split_environment_words(["--no-wait", *words, "--cluster", "here"])
    assert others == ["--no-wait", "--cluster", "here"]
    assert job_environment(groups, SET) == variables


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "without anything"),
        (["=secret"], "a name that is none"),
        (["9A=secret"], "a name that is none"),
        (["NOT_THERE"], "NOT_THERE, which is not set here"),
        (["A=1", "NOT_THERE"], "NOT_THERE"),
        (["MODE", "HOME"], "two names"),
        (["secret word", "secret"], "a name that is none"),
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


def git(folder: Path, *words: str) -> None:
    names = ["-c", "user.name=x", "-c", "user.email=x"]
    subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True)


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


KEPT = (
    ".gitignore",
    "launch.py",
    "new file.py",
    "src/mine/__init__.py",
    "src/mine/deep/outputs/kept.py",
)


def test_code_is_sent_and_results_and_what_git_ignores_are_not(checkout):
    assert shipped_folder(checkout).files == KEPT
    assert shipped_folder(checkout).packages() == [str(checkout / "src/mine")]
    # Also where there is no git: then nobody says what is to be ignored.
    (checkout / ".git").rename(checkout / "node_modules")
    assert set(shipped_folder(checkout).files) == {*KEPT, "a.log", "data/tokens"}


def test_a_file_that_was_deleted_but_is_still_tracked_is_no_trouble(checkout):
    (checkout / "launch.py").unlink()
    assert "launch.py" not in shipped_folder(checkout).files


def test_files_too_big_for_code_stay_here_and_are_named(checkout, monkeypatch):
    monkeypatch.setattr(shipping, "BIG_FILE_BYTES", 1000)
    (checkout / "weights.bin").write_bytes(bytes(1001))
    folder = shipped_folder(checkout)
    assert folder.files == KEPT
    assert folder.told() == f"5 files of {checkout}, 0.0 kB; without files over 1.0 kB: weights.bin"


def test_the_same_folder_gives_the_same_archive_and_programs_stay_programs(checkout, tmp_path):
    (checkout / "launch.py").chmod(0o755)
    archives = []
    for name in ("one.zip", "two.zip"):
        for file in KEPT:
            (checkout / file).touch()  # another time, the same content
        shipped_folder(checkout).write_archive(tmp_path / "node_modules.zip")
        archives.append((tmp_path / "node_modules.zip").read_bytes())
        (tmp_path / "node_modules.zip").rename(tmp_path / "data" / name)
    assert archives[0] == archives[1]
    with zipfile.ZipFile(tmp_path / "data" / "one.zip") as archive:
        assert tuple(archive.namelist()) == KEPT
        assert archive.read("launch.py") == b"import mine"
        assert archive.getinfo("launch.py").external_attr >> 16 == 0o755


def test_more_than_ray_takes_is_refused_with_the_biggest_files(checkout, tmp_path, monkeypatch):
    (checkout / "table.py").write_bytes(bytes(range(256)) * 40)
    monkeypatch.setenv("RAY_max_grpc_message_size", "500")
    with pytest.raises(LaunchError, match=r"table.py \(10.2 kB\).*less than 0.5 kB.*gitignore"):
        shipped_folder(checkout).write_archive(tmp_path / "data" / "x.zip")


def test_the_commit_says_whether_files_differ_from_it(checkout):
    git(checkout, "add", "--all")
    git(checkout, "commit", "-qm", "all")
    commit = git_commit()
    assert commit is not None
    assert len(commit) == 40
    (checkout / "newer.py").touch()
    assert git_commit() == f"{commit}-dirty"


PROJECT = '[project]\nname = "x"\n[project.optional-dependencies]\ngpu = []\nray = []\nhf = []\n'


def test_extras_are_made_by_uv_where_the_command_runs(tmp_path):
    project = tmp_path / "pyproject.toml"
    project.write_text(PROJECT)
    command = ["python", "launch.py", "--plan"]
    assert with_extras(command, [], project) == command
    extras = ["--extra", "gpu", "--extra", "hf", "--extra", "ray"]
    assert with_extras(command, ["gpu", "hf"], project) == ["uv", "run", *extras, "--", *command]
    # Behind the words of a command that uses uv itself.
    assert with_extras(["uv", "run", "x.py"], ["gpu"], project)[2:] == [
        *extras[:2],
        *extras[4:],
        "x.py",
    ]
    with pytest.raises(ConfigError, match=r"--extra gpus.*gpu, hf, ray"):
        with_extras(command, ["gpus"], project)
    with pytest.raises(ConfigError, match="it has none"):
        with_extras(command, ["gpu"], tmp_path / "missing.toml")


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
        ([], ["no command, since there is no --"]),
        (["--no-wait", "--"], ["no command", "behind --"]),
        (["--no-such", "--", "x"], ["--no-such", "--help"]),
        (["python", "x.py"], ["python x.py", "-- python"]),
        (["--env_vars", "--", "x"], ["without anything"]),
        (["--env_vars", "NOT_SET_ANYWHERE", "--", "x"], ["NOT_SET_ANYWHERE", "not set here"]),
        (["--entrypoint-num-cpus", "-1", "--", "x"], ["entrypoint-num-cpus", "greater"]),
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


def test_a_file_that_is_no_cluster_of_rays_launcher_is_refused(tmp_path):
    (tmp_path / "config.yaml").write_text("trainer: {}")
    with pytest.raises(LaunchError, match="no cluster_name and provider"):
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


class RefusingClient:
    """A job server that answers as Ray's does: with its whole traceback, variables and all."""

    def submit_job(self, **asked: object) -> str:
        raise RuntimeError(
            f"Request failed with status code 500: Traceback\n  File x\nValueError: {asked}\n."
        )


def test_a_refused_job_is_told_by_its_reason_and_without_keys():
    job = RayJob(
        submission_id="mine",
        entrypoint="x",
        archive="x.zip",
        packages=[],
        environment={"WANDB_API_KEY": "a-long-key"},
    )
    with pytest.raises(LaunchError, match=r"mine.*ValueError") as raised:
        submitted(RefusingClient(), job)
    assert "a-long-key" not in str(raised.value)
