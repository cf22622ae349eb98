"""Builds killed with SIGKILL wherever it hurts: the store is the undisturbed one, byte for byte.

Run as a program, this file is what is killed: it forks a process for every build it is told of,
which imports nothing again and so costs a fraction of a second.
"""

import itertools
import json
import logging
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
from worker_processes import workers_of

from chomp.config import config_from_mapping, config_to_mapping
from chomp.data import (
    ChatFormat,
    JsonlSource,
    StoreBuildConfig,
    TokenStore,
    build_store,
    source_fingerprint,
)
from chomp.data.contamination import CONTAMINATION, ValidationSet, sets_fingerprint
from chomp.data.store import build
from chomp.data.store.array import FlatArrayWriter
from chomp.errors import DataError
from chomp.storage.paths import is_temporary
from chomp.tokenize import ByteTokenizer, save_tokenizer


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(kill_at: int | None, events: mmap.mmap) -> None:
    """Count each beginning and end of a write, and die at one of them."""
    numbers = itertools.count()

    def event() -> None:
        number = next(numbers)
        events[:8] = (number + 1).to_bytes(8, "little")
        if number == kill_at:
            kill_myself()

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            event()
            result = function(*args, **kwargs)
            event()
            return result

        return wrapped

    FlatArrayWriter.write = counted(FlatArrayWriter.write)  # type: ignore[method-assign]
    for module, name in (
        (build, "write_json_atomic"),
        (build, "remove_tree"),
        (os, "replace"),
    ):
        setattr(module, name, counted(getattr(module, name)))


def shrink() -> None:
    """Let a small corpus have many shards, and tokenizer processes from the first batch on."""
    build.StoreWriter = partial(  # type: ignore[misc,assignment]
        build.StoreWriter, shard_tokens=128, chunk_tokens=32
    )
    build.SHARD_DOCUMENTS, build.CHUNK_DOCUMENTS = 8, 4
    build._BATCH_DOCUMENTS = 2
    build._CHARACTERS_ENCODED_HERE = 1


def build_in_a_fork(config: StoreBuildConfig, order: dict[str, Any]) -> dict[str, Any]:
    """Build in a process of its own, which may die; what became of it when all of it is gone."""
    events = mmap.mmap(-1, 8)
    stderr, childs_stderr = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(childs_stderr, 2)
        os.close(stderr)
        os.close(childs_stderr)
        arm(order["kill_at"], events)
        if order["kill_after_s"] is not None:
            timer = threading.Timer(order["kill_after_s"], kill_myself)
            timer.daemon = True
            timer.start()
        try:
            build_store(replace(config, output_path=order["folder"], processes=order["processes"]))
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    os.close(childs_stderr)
    with open(stderr, "rb") as complaints:
        told = complaints.read()  # ends when nobody can write it any more: no process is left
    _, status = os.waitpid(child, 0)
    return {
        "status": os.waitstatus_to_exitcode(status),
        "told": told.decode(errors="replace"),
        "events": int.from_bytes(events[:8], "little"),
    }


def serve_builds() -> None:
    config = config_from_mapping(StoreBuildConfig, json.loads(sys.argv[1]))
    shrink()
    logging.getLogger("chomp.data.contamination").setLevel(logging.ERROR)  # stderr is for faults
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(build_in_a_fork(config, json.loads(line))), flush=True)


@dataclass
class Builds:
    """A program that builds the same store wherever it is told to, until it is told to die."""

    process: "subprocess.Popen[str]"
    folder: Path
    events: int = 0  # of a build that is left alone

    def build(
        self,
        name: str,
        *,
        kill_at: int | None = None,
        kill_after_s: float | None = None,
        processes: int = 1,
    ) -> int | None:
        """The number of events of a build that ended by itself; None if it was killed."""
        order = {
            "folder": str(self.folder / name),
            "kill_at": kill_at,
            "kill_after_s": kill_after_s,
            "processes": processes,
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(order), file=self.process.stdin, flush=True)
        report = json.loads(self.process.stdout.readline())
        assert report["told"] == ""
        assert report["status"] in (0, -signal.SIGKILL)
        assert workers_of(str(self.folder / "tokenizer")) == []
        return report["events"] if report["status"] == 0 else None

    def files(self, name: str) -> dict[str, bytes]:
        folder = self.folder / name
        # Unfinished files that a kill leaves are hidden rubbish, which nothing ever reads.
        files = (
            path for path in folder.rglob("*") if path.is_file() and not is_temporary(path.name)
        )
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}

    def assert_never_half_a_store(self, name: str) -> None:
        """What a kill has left is refused, or it is the whole store."""
        path = self.folder / name
        if (path / "manifest.json").exists():
            assert self.files(name) | {"progress.json": b""} == {
                **self.files("undisturbed"),
                "progress.json": b"",
            }
        else:
            with pytest.raises(DataError) as caught:
                TokenStore.open(str(path))
            assert "no finished token store" in caught.value.given


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builds]:
    """The program, with a store built undisturbed: conversations, one of many shards' length."""
    tmp_path = tmp_path_factory.mktemp("killed")
    save_tokenizer(ByteTokenizer(), str(tmp_path / "tokenizer"))
    lines = []
    for i in range(30):
        turns = [("user", f"and {i}?"), ("assistant", f"{i} " * (i % 13) * (20 if i == 20 else 1))]
        messages = [{"role": role, "content": content} for role, content in turns]
        lines.append(json.dumps({"messages": messages}) + "\n")
    for part in range(2):
        (tmp_path / f"{part}.jsonl").write_text("".join(lines[15 * part :][:15]))
    source = JsonlSource(paths=(str(tmp_path / "*.jsonl"),))
    # Some of the documents are in a validation set too: left out, and listed beside the tokens.
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "set.jsonl").write_text("".join(lines[1::7]))
    shared = JsonlSource(paths=(str(tmp_path / "shared" / "*.jsonl"),))
    sets = (
        ValidationSet(
            name="shared",
            source=shared,
            source_fingerprint=source_fingerprint(shared),
            format=ChatFormat(),
        ),
    )
    config = StoreBuildConfig(
        output_path="told for each build",
        name="chat",
        source=source,
        source_fingerprint=source_fingerprint(source),
        format=ChatFormat(),
        split="train",
        validation_fraction=0.1,
        tokenizer_path=str(tmp_path / "tokenizer"),
        with_held_out=False,
        validation_sets=sets,
        kept_out=sets_fingerprint(sets, allow_contamination=False),
    )
    tests = Path(__file__).parent.parent
    process = subprocess.Popen(
        [sys.executable, __file__, json.dumps(config_to_mapping(config))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tests}:{os.environ.get('PYTHONPATH', '')}"},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        builds = Builds(process, tmp_path)
        builds.events = builds.build("undisturbed") or 0
        yield builds
    finally:
        process.kill()
        process.communicate()


def assert_killed_then_finished(builds: Builds, kill_at: int, test: str) -> None:
    name = f"{test} {kill_at}"
    assert builds.build(name, kill_at=kill_at) is None
    builds.assert_never_half_a_store(name)
    assert builds.build(name) is not None
    assert builds.files(name) == builds.files("undisturbed")


def test_a_build_killed_anywhere_goes_on_to_the_same_store(builds: Builds):
    undisturbed = builds.files("undisturbed")
    assert len([name for name in undisturbed if "tokens/c/" in name]) > 10
    assert len(json.loads(undisturbed[CONTAMINATION])["documents"]["shared"]) >= 3
    events = builds.events
    # All along, and around every one of the last writes: where a store comes to look finished.
    for kill_at in [*range(1, events - 10, events // 5), *range(events - 9, events, 2)]:
        assert_killed_then_finished(builds, kill_at, "anywhere")


def test_a_build_killed_again_and_again_comes_to_its_end(builds: Builds):
    kills = 0
    while builds.build("again", kill_at=30) is None:
        builds.assert_never_half_a_store("again")
        kills += 1
    assert kills > 3
    assert builds.files("again") == builds.files("undisturbed")


def test_a_killed_build_takes_its_processes_with_it(builds: Builds):
    for kill_at in (builds.events // 3, builds.events // 2):
        assert builds.build("processes", kill_at=kill_at, processes=2) is None
        builds.assert_never_half_a_store("processes")
    assert builds.build("processes") is not None
    assert builds.files("processes") == builds.files("undisturbed")


@pytest.mark.slow
def test_a_build_killed_at_every_single_event_goes_on_to_the_same_store(builds: Builds):
    for kill_at in range(builds.events):
        assert_killed_then_finished(builds, kill_at, "everywhere")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_builds_killed_at_any_time_come_to_the_same_store(builds: Builds, processes: int):
    choose = random.Random(processes)
    killed = 0
    for attempt in range(40 if processes == 1 else 8):
        longest_s = 0.02
        while True:
            delay_s = choose.uniform(0, longest_s)
            name = f"by time {attempt} on {processes}"
            if builds.build(name, kill_after_s=delay_s, processes=processes) is not None:
                break
            builds.assert_never_half_a_store(name)
            killed += 1
            longest_s *= 1.3  # or the first shard would never be reached
        assert builds.files(name) == builds.files("undisturbed")
    assert killed > 8


if __name__ == "__main__":
    serve_builds()
