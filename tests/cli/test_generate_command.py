"""`chomp generate`: texts of a checkpoint, by prompts and by how held-out texts begin."""

import io
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from chomp.cli.generate import given_texts
from chomp.errors import ConfigError
from tests.cli.conftest import Chomp, assert_refused

MARK = "▸"
ROOT = Path(__file__).parents[2]


def written(chomp: Chomp, *arguments: str) -> dict[str, Any]:
    """What `chomp generate --json` prints, which is JSON and nothing else."""
    told = chomp("generate", "run", *arguments, "--json")
    assert told.code == 0, told.err
    found: dict[str, Any] = json.loads(told.out)
    return found


def texts(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Prompts and what follows them."""
    return [(sample["prompt"], sample["text"]) for sample in found["samples"]]


def test_without_a_prompt_it_writes_the_runs_own_sample_of_that_step(chomp: Chomp, trained: Path):
    told = chomp("generate", "run")
    assert told.code == 0, told.err
    assert told.out == (trained / "samples/step-12.txt").read_text() + "\n"
    assert "averaged weights of" in told.err
    earlier = chomp("generate", "run/checkpoints/step-6")
    assert earlier.out == (trained / "samples/step-6.txt").read_text() + "\n"


def test_prompts_come_from_arguments_a_file_or_stdin_alike(
    chomp: Chomp, trained: Path, monkeypatch: pytest.MonkeyPatch
):
    how = ["--max-tokens", "4", "--top-k", "1"]
    found = written(chomp, "1 + 2 =", "After", *how)
    assert [prompt for prompt, _ in texts(found)] == ["1 + 2 =", "After"]
    assert found["weights"] == "ema"
    assert found["how"] == {"temperature": 1.0, "top_k": 1, "top_p": None, "max_tokens": 4}
    assert all(sample["num_tokens"] <= 4 for sample in found["samples"])
    Path("prompts.txt").write_text("1 + 2 =\n\nAfter\n")
    assert texts(written(chomp, "--file", "prompts.txt", *how)) == texts(found)
    monkeypatch.setattr(sys, "stdin", io.StringIO("1 + 2 =\nAfter\n"))
    assert texts(written(chomp, "-", *how)) == texts(found)
    assert texts(written(chomp, "--prompt", "1 + 2 =", "-p", "After", *how)) == texts(found)


@contextmanager
def stdin_of(content: bytes, kind: str) -> Iterator[None]:
    """Let standard input be a file, a pipe or a socket with this content, or one of the others."""
    with ExitStack() as stack:
        opened: Any = None
        if kind == "file":
            Path("prompt.txt").write_bytes(content)
            opened = stack.enter_context(open("prompt.txt", encoding="utf-8"))
        elif kind == "null":
            opened = stack.enter_context(open(os.devnull, encoding="utf-8"))
        elif kind == "pipe":
            reading, writing = os.pipe()
            os.write(writing, content)
            os.close(writing)
            opened = stack.enter_context(os.fdopen(reading, encoding="utf-8"))
        elif kind == "socket":
            near, far = map(stack.enter_context, socket.socketpair())
            far.sendall(content)
            far.shutdown(socket.SHUT_WR)
            opened = stack.enter_context(near.makefile(encoding="utf-8"))
        elif kind == "closed":
            with open(os.devnull, encoding="utf-8") as opened:
                pass
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(sys, "stdin", opened)  # None: the process was started without one
        yield


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("kind", ["file", "pipe", "socket"])
@pytest.mark.parametrize(
    ("content", "prompt"),
    [
        (b"1 + 2 =\n", "1 + 2 ="),
        (b"After\n\none\n\n", "After\n\none\n"),
        (b"Afte\xcc\x81r", "Afte\u0301r"),
    ],
)
def test_what_is_on_standard_input_is_one_prompt_where_no_other_is_given(
    capsys: pytest.CaptureFixture[str], kind: str, content: bytes, prompt: str
):
    with stdin_of(content, kind):
        assert given_texts([], None) == [prompt]
    assert "The prompt is read from standard input, to its end" in capsys.readouterr().err
    with stdin_of(content, kind):
        assert given_texts(["another"], None) == ["another"]
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("kind", ["file", "pipe"])
@pytest.mark.parametrize("content", [b"", b"\n"])
def test_an_empty_standard_input_is_no_prompt_and_that_is_said(
    caplog: pytest.LogCaptureFixture, kind: str, content: bytes
):
    with stdin_of(content, kind):
        assert given_texts([], None) is None
    assert "standard input is empty" in caplog.text


@pytest.mark.parametrize("kind", ["null", "closed", "none"])
def test_a_standard_input_that_nobody_gave_is_no_prompt(
    capsys: pytest.CaptureFixture[str], kind: str
):
    with stdin_of(b"", kind):
        assert given_texts([], None) is None
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("here")
def test_a_standard_input_that_cannot_be_read_is_refused():
    with stdin_of(b"", "none"), pytest.raises(ConfigError, match=r"closed\. Allowed: .*--prompt"):
        given_texts(["-"], None)
    with stdin_of(b"\xff\xfe", "file"), pytest.raises(ConfigError, match=r"no text: .*utf-8"):
        given_texts([], None)


def test_a_file_on_standard_input_is_gone_on_from(chomp: Chomp, trained: Path):
    how = ["--max-tokens", "4", "--top-k", "1"]
    with stdin_of(b"1 + 2 =\n1 +\n", "file"):
        found = texts(written(chomp, *how))
    assert found == texts(written(chomp, "1 + 2 =\n1 +", *how))


def test_in_a_session_every_line_is_gone_on_from_and_one_that_cannot_be_ends_nothing(
    chomp: Chomp, trained: Path, monkeypatch: pytest.MonkeyPatch
):
    how = ["--max-tokens", "4", "--top-k", "1"]
    found = texts(written(chomp, "1 + 2 =", "After", *how))
    typed = f"1 + 2 =\n\n{'too long ' * 100}\nAfter\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    told = chomp("generate", "run", "--interactive", *how)
    assert told.code == 0
    assert told.out == "".join(f"{prompt}{MARK}{text}\n" for prompt, text in found)
    assert told.err.count("Error: a prompt of ") == 1


def test_a_text_depends_on_its_prompt_and_seed_and_not_on_its_neighbours(
    chomp: Chomp, trained: Path
):
    how = ["--max-tokens", "8", "--temperature", "1", "--top-k", "20"]
    found = written(chomp, "zero", "one two three", "--num-samples", "3", *how)
    assert [sample["seed"] for sample in found["samples"]] == [0, 1, 2] * 2
    of_zero = [text for prompt, text in texts(found) if prompt == "zero"]
    assert len(set(of_zero)) > 1
    alone = written(chomp, "zero", "--seed", "1", *how)
    assert texts(alone) == [("zero", of_zero[1])]


def test_an_empty_prompt_goes_on_from_the_end_of_a_document(chomp: Chomp, trained: Path):
    told = chomp("generate", "run", "", "--max-tokens", "4", "--weights", "params")
    assert told.code == 0, told.err
    assert told.out.startswith(MARK)
    assert "\nweights of" in f"\n{told.err}"


def test_a_terminal_is_shown_what_it_would_obey_and_a_file_has_it_as_it_is(
    chomp: Chomp, trained: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = ["generate", "run", "a\x1b[2Jb", "--max-tokens", "4", "--weights", "params"]
    assert chomp(*asked).out.startswith(f"a\x1b[2Jb{MARK}")
    monkeypatch.setenv("FORCE_COLOR", "1")  # how rich is told of a terminal
    told = chomp(*asked)
    assert "a\ufffd[2Jb" in told.out
    assert "\x1b[2J" not in told.out


@pytest.mark.parametrize(
    ("arguments", "faults"),
    [
        (["x" * 60, "--max-tokens", "5"], ["60 tokens and 5 new", "max_seq_len=64", "tokens 4"]),
        (["x" * 64], ["a prompt of 64 tokens", "shorten the prompt"]),
        (["a", "--file", "b"], ["prompts and --file b"]),
        (
            ["a", "--num-samples", "2", "--temperature", "0"],
            ["--num-samples 2", "temperature of 0"],
        ),
        (["a", "--top-p", "1.5"], ["--top-p 1.5", "at most 1"]),
        (["a", "--interactive"], ["--interactive with a prompt"]),
        (["--json", "-i"], ["--interactive with --json"]),
        (["a", "-o", "eval.eval_batch_size=2"], ["has no effect"]),
        (["a", "--seed", str(2**32)], ["--seed", "4294967295"]),
    ],
)
def test_what_cannot_be_written_is_refused(
    chomp: Chomp, trained: Path, arguments: list[str], faults: list[str]
):
    assert_refused(chomp("generate", "run", *arguments), *faults)


def test_a_file_without_prompts_is_refused(chomp: Chomp, trained: Path):
    Path("empty.txt").write_text("\n\n")
    assert_refused(chomp("generate", "run", "--file", "empty.txt"), "empty.txt without a prompt")


ONE_TEXT = f"""
template: {ROOT}/experiments/grug/base
model: {{vocab_size: 257, hidden_dim: 32, intermediate_dim: 64, num_layers: 1, num_heads: 2,
         num_kv_heads: 1, max_seq_len: 32}}
data:
  tokenizer: {{kind: byte}}
  validation_fraction: 1e-12
  components:
    text: {{source: {{kind: memory, documents: ["hello to all of you, by heart"]}}, stream: {{}}}}
eval: null
train: {{steps: 4, batch_size: 8, seq_len: 16, generate_every: 2, generate_input_len: 8}}
optim: {{warmup_steps: 1}}
logging: {{wandb: {{enabled: false}}}}
"""


@pytest.mark.slow
def test_a_run_of_one_text_goes_on_from_it_and_says_so(chomp: Chomp, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(ONE_TEXT)
    told = chomp("train", "mine.yaml", "--run-dir", "run")
    assert told.code == 0, told.err
    assert "samples go on from TRAINING documents" in Path("run/train.log").read_text()
    samples = {path.name: path.read_text() for path in Path("run/samples").iterdir()}
    assert set(samples) == {"step-2.txt", "step-4.txt"}
    # A prompt is the head of a text or its tail.
    prompts = (f"hello to{MARK}", f"by heart{MARK}")
    assert all(text.startswith(prompts) for text in samples.values())
    assert chomp("generate", "run").out.startswith(prompts)
