"""Tokenizing in processes: the ids of the tokenizer itself, and nobody is left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from vocabularies import TEXTS, letters
from worker_processes import needs_proc, workers_of

from chomp.errors import DataError
from chomp.tokenize import ByteTokenizer, JsonTokenizer, Tokenizer, save_tokenizer, train_bpe
from chomp.tokenize.worker import TokenizerProcesses, available_cores, serve


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, str]:
    """A tokenizer and the folder it is saved in."""
    folder = str(tmp_path_factory.mktemp("tokenizers") / "bpe")
    tokenizer = train_bpe(iter(TEXTS), vocab_size=300)
    save_tokenizer(tokenizer, folder)
    return tokenizer, folder


@pytest.fixture(scope="module")
def processes(bpe: tuple[Tokenizer, str]) -> Iterator[TokenizerProcesses]:
    with TokenizerProcesses(*bpe, 2) as running:
        yield running


def as_lists(ids: list) -> list[list[int]]:
    return [list(document) for document in ids]


def test_ids_are_those_of_the_tokenizer_itself(bpe, processes: TokenizerProcesses):
    tokenizer, _ = bpe
    texts = [*TEXTS, "", " ", "\n", "Grüße 🦖 <|endoftext|>", "x" * 100_000]
    assert as_lists(processes.encode_batch(texts)) == tokenizer.encode_batch(texts)
    assert processes.encode_batch([]) == []
    assert as_lists(processes.encode_batch([""])) == [[]]


def test_the_numbers_of_the_tokenizer_are_there_without_asking(bpe, processes: TokenizerProcesses):
    tokenizer, _ = bpe
    for name in ("vocab_size", "eos_id", "bos_id"):
        assert getattr(processes, name) == getattr(tokenizer, name)


def test_every_thread_gets_the_answer_to_its_own_question(bpe, processes: TokenizerProcesses):
    tokenizer, _ = bpe
    batches = [[f"question {i} of many " * (i % 7), f"{i}"] for i in range(60)]
    with ThreadPoolExecutor(5) as threads:
        answers = list(threads.map(processes.encode_batch, batches))
    assert [as_lists(answer) for answer in answers] == list(map(tokenizer.encode_batch, batches))


def test_what_the_tokenizer_refuses_is_the_same_error_and_work_goes_on(tmp_path: Path):
    tokenizer = JsonTokenizer(letters("a", "b"))
    save_tokenizer(tokenizer, str(tmp_path))
    wrong = ["ab", "ba", "a\N{SNOWMAN}b", "c"]
    with pytest.raises(DataError) as expected:
        tokenizer.encode_batch(wrong)
    assert "\N{SNOWMAN}" in str(expected.value)
    with TokenizerProcesses(tokenizer, str(tmp_path), 1) as running:
        for _ in range(2):
            with pytest.raises(DataError) as caught:
                running.encode_batch(wrong)
            assert str(caught.value) == str(expected.value)
            assert as_lists(running.encode_batch(["ab"])) == tokenizer.encode_batch(["ab"])


@needs_proc
def test_a_killed_process_is_a_clear_error_and_the_others_end_as_ever(tmp_path: Path):
    save_tokenizer(ByteTokenizer(), str(tmp_path))
    with TokenizerProcesses(ByteTokenizer(), str(tmp_path), 2) as running:
        for _ in range(2):
            running.encode_batch(["each of them is up"])
        killed, other = workers_of(str(tmp_path))
        os.kill(killed, signal.SIGKILL)
        os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
        outcomes = []
        for _ in range(4):
            try:
                outcomes.append(as_lists(running.encode_batch(["small"])))
            except DataError as error:
                outcomes.append(error.given)
        right = ByteTokenizer().encode_batch(["small"])
        refusals = [outcome for outcome in outcomes if outcome != right]
        assert len(refusals) == 2
        for refusal in refusals:
            assert "exited with code -9" in refusal
        assert other in workers_of(str(tmp_path))
    assert workers_of(str(tmp_path)) == []


def test_a_process_that_cannot_load_its_tokenizer_is_a_clear_error(tmp_path: Path, capfd):
    with (
        TokenizerProcesses(ByteTokenizer(), str(tmp_path / "nothing here"), 1) as running,
        pytest.raises(DataError) as caught,
    ):
        running.encode_batch(["text"])
    assert "exited with code 1" in caught.value.given
    assert "no tokenizer in" in capfd.readouterr().err  # its own words, for whoever looks


# Asks without end, so that a kill finds questions and answers on their way.
ASKS = """
import sys, threading
from chomp.tokenize import ByteTokenizer
from chomp.tokenize.worker import TokenizerProcesses

with TokenizerProcesses(ByteTokenizer(), sys.argv[1], 2) as running:
    def ask():
        while True:
            running.encode_batch(["some text " * 50_000])
    running.encode_batch(["ready"])
    for _ in range(2):
        threading.Thread(target=ask).start()
    print("asking", flush=True)
    threading.Event().wait()
"""


def test_the_processes_of_a_killed_process_end_without_a_word(tmp_path: Path):
    save_tokenizer(ByteTokenizer(), str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", ASKS, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"asking\n"
    process.kill()
    # They have its stderr, which therefore ends when the last of them has.
    _, complaints = process.communicate(timeout=60)
    assert complaints == b""


def request(*texts: str) -> bytes:
    content = b"[" + b", ".join(b'"%s"' % text.encode() for text in texts) + b"]"
    return len(content).to_bytes(8, "little") + content


def served(folder: Path, requests: bytes) -> bytes:
    """The answers to all requests in a file."""
    (folder / "requests").write_bytes(requests)
    with open(folder / "requests", "rb") as asked, open(folder / "answers", "wb") as answers:
        serve(ByteTokenizer(), asked, answers)
    return (folder / "answers").read_bytes()


@pytest.mark.parametrize("sent", [0, 3, 8, 9, 14])
def test_a_question_that_breaks_off_is_the_end(tmp_path: Path, sent: int):
    whole = request("ab", "c")
    answers = [served(tmp_path, whole), served(tmp_path, whole + request("defg")[:sent])]
    assert answers[0] == answers[1] != b""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
def test_cores_are_those_this_process_may_use():
    allowed = os.sched_getaffinity(0)
    assert available_cores() == len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
