"""What `chomp train` was given is in the run folder as it was given, without its secrets."""

from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Chomp
from tests.launch.allowing_launch import LAUNCH_FILE

KEPT = "run/config_original.yaml"
# Every kind of thing that reading and writing YAML would lose.
FILE = """# A run of mine.
template: mine   # of this checkout

variables: {rate: 3e-4, width: 16, user: me, word: "%s"}
width: $variables.width


optim: {lr: "$variables.rate"} # as before
source: "https://{$variables.user}:${variables.word}@example.org/data"
train:
  steps: 0x10"""
DESCRIBING = """
def train(config):
    with RunFolder.open(config.output_path) as folder:
        folder.describe(config, template=Path("nothing"), tokenizer=ByteTokenizer())


"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a launch file that describes its run and trains nothing."""
    begin, end = LAUNCH_FILE.index("def train("), LAUNCH_FILE.index("def steps(")
    text = LAUNCH_FILE[:begin] + DESCRIBING.lstrip() + LAUNCH_FILE[end:]
    imports = [
        "from pathlib import Path",
        "from chomp.tracking import LoggingConfig",
        "from chomp.training import RunFolder",
        "from chomp.tokenize import ByteTokenizer",
        "from dataclasses",
    ]
    text = text.replace("from dataclasses", "\n".join(imports), 1)
    fields = (
        '    source: str = ""\n    logging: LoggingConfig = field(default_factory=LoggingConfig)\n'
    )
    text = text.replace("    width: int", f"{fields}    width: int", 1)
    (tmp_path / "launch.py").write_text(text)
    (tmp_path / "experiments/grug").mkdir(parents=True)
    (tmp_path / "experiments/grug/mine").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_is_kept_byte_for_byte(here: Path, chomp: Chomp):
    text = FILE.replace("https://{$variables.user}:${variables.word}@", "https://") % "plain"
    (here / "mine.yaml").write_bytes(text.replace("steps: 0x10", "steps: 16\r").encode())
    told = chomp("train", "mine.yaml", "--run-dir", "run")
    assert told.code == 0, told.err
    assert (here / KEPT).read_bytes() == (here / "mine.yaml").read_bytes()


def test_options_of_the_command_line_are_comments_at_its_end(here: Path, chomp: Chomp):
    (here / "mine.yaml").write_text("width: 4")
    options = ["--template", ".", "-o", "optim.lr=0.5", "-o", "train={\nsteps: 7}"]
    told = chomp("train", "mine.yaml", "--run-dir", "run", *options)
    assert told.code == 0, told.err
    kept = (here / KEPT).read_text()
    assert kept.splitlines() == [
        "width: 4",
        "# With these options of the command line:",
        "#   --template .",
        "#   -o optim.lr=0.5",
        "#   -o train={",
        "#   steps: 7}",
    ]
    assert yaml.safe_load(kept) == {"width": 4}


def test_no_secret_is_kept_nor_a_password_apart_from_its_address(
    here: Path, chomp: Chomp, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_TOKEN", "hf_planted0123456789")
    planted = FILE.replace("0x10", "16 # not hf_planted0123456789") % "pa55.w0rd"
    (here / "mine.yaml").write_text(planted)
    for more in ([], ["-o", "source=s3://me:0ther@bucket", "--force", "."]):
        told = chomp("train", "mine.yaml", "--run-dir", "run", *more)
        assert told.code == 0, told.err
        kept = (here / KEPT).read_text()
        assert [word for word in ("hf_planted", "pa55", "0ther") if word in kept] == []
        assert 'user: me, word: "<password>"}\n' in kept
        assert "steps: 16 # not <HF_TOKEN>" in kept
    assert kept.endswith("\n#   -o source=s3://me:<password>@bucket\n")


def test_a_launch_file_is_kept_as_the_config_it_made(here: Path, chomp: Chomp):
    told = chomp("train", "launch.py", "--run-dir", "run", "-o", "width=12")
    assert told.code == 0, told.err
    assert yaml.safe_load((here / KEPT).read_text())["width"] == 12


@pytest.mark.slow
def test_a_process_of_its_own_keeps_the_file_too(here: Path, chomp: Chomp):
    (here / "mine.yaml").write_text("template: mine # ½\n")
    told = chomp("train", "mine.yaml", "--run-dir", "run", "--on", "process", "-o", "width=2")
    assert told.code == 0, told.err
    assert (here / KEPT).read_text().startswith("template: mine # ½\n# With")
