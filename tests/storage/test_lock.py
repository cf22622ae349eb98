"""The lock file: one holder, for as long as it lives, among real processes."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from chomp.errors import StorageError
from chomp.storage import FileLock, LockHolder, killed_holder, lock_holder

Start = Callable[..., subprocess.Popen[str]]

# A test that hangs fails after this; none waits for it.
LONG_S = 60.0

# Holds each lock it is given, says so, and lives on until its input ends.
HOLD = """
import sys
from chomp.storage import FileLock

locks = [FileLock.acquire(path, timeout_s=5) for path in sys.argv[1:]]
print("held", flush=True)
sys.stdin.read()
"""

# Holds a lock and has a child that lives on: started by exec, forked by Python, or forked by C. Or
# becomes another program itself.
PARENT = """
import ctypes, os, subprocess, sys, time
from chomp.storage import FileLock

lock = FileLock.acquire(sys.argv[1], timeout_s=5)
if sys.argv[2] == "become":
    os.execvp("sh", ["sh", "-c", "echo became; exec sleep 600"])
if sys.argv[2] == "exec":
    print(subprocess.Popen(["sleep", "600"], close_fds=False).pid, flush=True)
else:
    pid = os.fork() if sys.argv[2] == "fork" else ctypes.CDLL(None).fork()
    if pid == 0:
        if sys.argv[2] == "fork":
            lock.release()  # which is the parent's to do
        time.sleep(600)
    print(pid, flush=True)
for command in sys.stdin:
    lock.release()
    print("released", flush=True)
"""

# Tries each lock once, keeps what it wins, and lives on until its input ends.
CONTEND = """
import os, sys
from chomp.storage import FileLock

print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    pass
won = [FileLock.try_acquire(path) for path in sys.argv[2:]]
print("".join("0" if lock is None else "1" for lock in won), flush=True)
sys.stdin.read()
"""

# Adds one to a counter that any overlap would leave short.
COUNT = """
import sys
from chomp import storage
from chomp.storage import FileLock

path, counter = sys.argv[1:]
for _ in range(25):
    with FileLock.acquire(path, timeout_s=120, poll_s=0.001):
        number = int(storage.read_text(counter))
        with open(counter, "w") as file:
            file.write(str(number + 1))
"""

# Fills the disk, in the eyes of this process, before or after it takes the lock.
FULL = """
import resource, sys
from chomp.storage import FileLock

if sys.argv[2] == "before":
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    lock = FileLock.try_acquire(sys.argv[1])
except OSError as error:
    print(error.errno, error.given, flush=True)
    sys.exit(sys.stdin.read())
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
print("held", flush=True)
sys.stdin.read()
lock.release()
"""


def line_from(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait_until_stopped(process: subprocess.Popen[str]) -> None:
    """Return when SIGSTOP has reached the process."""
    told = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert told is not None
    assert told.si_code == os.CLD_STOPPED


def holder_of(path: Path) -> LockHolder:
    holder = lock_holder(path)
    assert holder is not None
    return holder


def test_a_held_lock_excludes_and_a_released_one_leaves_nothing(tmp_path: Path):
    path = tmp_path / "lock"
    first = FileLock.try_acquire(path)
    assert first is not None
    assert FileLock.try_acquire(path) is None
    first.release()
    assert os.listdir(tmp_path) == []
    with FileLock.acquire(path, timeout_s=0):
        first.release()  # once more does nothing, to the next holder either
        assert FileLock.try_acquire(path) is None
    with pytest.raises(ZeroDivisionError), FileLock.acquire(path, timeout_s=0):
        _ = 1 / 0
    assert os.listdir(tmp_path) == []


def test_anyone_can_see_who_holds_it_and_since_when(tmp_path: Path):
    path = tmp_path / "lock"
    assert lock_holder(path) is None
    with FileLock.acquire(path, timeout_s=0):
        holder = holder_of(path)
        assert FileLock.try_acquire(path) is None, "looking takes nothing away"
    assert (holder.host, holder.pid) == (socket.gethostname(), os.getpid())
    assert str(holder).startswith(f"process {os.getpid()} on {socket.gethostname()} (user ")
    assert holder.since in str(holder)
    assert lock_holder(path) is None


@pytest.mark.usefixtures("waited_clock")
def test_waiting_ends_with_an_error_that_says_who_and_how_to_continue(tmp_path: Path):
    path = tmp_path / "lock"
    waits: list[float] = []
    with FileLock.acquire(path, timeout_s=0), pytest.raises(StorageError) as raised:
        FileLock.acquire(
            path, timeout_s=5, poll_s=1, on_wait=lambda holder, waited_s: waits.append(waited_s)
        )
    assert f"process {os.getpid()} on " in raised.value.given
    assert " since " in raised.value.given
    assert f"kill {os.getpid()} on " in raised.value.fix
    assert waits == sorted(waits)
    assert len(waits) >= 4


def test_waiting_ends_when_the_holder_lets_go(tmp_path: Path):
    first = FileLock.acquire(tmp_path / "lock", timeout_s=0)
    with FileLock.acquire(
        tmp_path / "lock", timeout_s=LONG_S, poll_s=0.001, on_wait=lambda *_: first.release()
    ):
        assert holder_of(tmp_path / "lock").pid == os.getpid()


def test_processes_exclude_each_other(tmp_path: Path, start: Start):
    counter = tmp_path / "counter"
    counter.write_text("0")
    processes = [start(COUNT, tmp_path / "lock", counter) for _ in range(4)]
    for process in processes:
        assert process.wait(timeout=120) == 0
    assert counter.read_text() == "100"
    assert os.listdir(tmp_path) == ["counter"]


def test_of_many_contenders_exactly_one_gets_each_lock_of_a_killed_process(
    tmp_path: Path, start: Start
):
    paths = [tmp_path / f"lock-{number}" for number in range(20)]
    holder = start(HOLD, *paths)
    assert line_from(holder) == "held"
    contenders = [start(CONTEND, tmp_path / "go", *paths) for _ in range(4)]
    for contender in contenders:
        assert line_from(contender) == "ready"
    holder.kill()
    holder.wait()
    (tmp_path / "go").touch()
    answers = [line_from(contender) for contender in contenders]
    assert [sum(map(int, wins)) for wins in zip(*answers, strict=True)] == [1] * len(paths)


def test_a_killed_holder_frees_the_lock_at_once_and_is_known(tmp_path: Path, start: Start):
    path = tmp_path / "lock"
    process = start(HOLD, path)
    assert line_from(process) == "held"
    assert holder_of(path).pid == process.pid
    assert killed_holder(path) is None
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie holds nothing
    assert lock_holder(path) is None
    killed = killed_holder(path)
    assert killed is not None
    assert killed.pid == process.pid
    with FileLock.acquire(path, timeout_s=0):
        assert holder_of(path).pid == os.getpid()
    assert killed_holder(path) is None


def test_a_stopped_holder_keeps_the_lock_until_it_ends(tmp_path: Path, start: Start):
    path = tmp_path / "lock"
    process = start(HOLD, path)
    assert line_from(process) == "held"
    process.send_signal(signal.SIGSTOP)
    wait_until_stopped(process)
    with pytest.raises(StorageError) as raised:
        FileLock.acquire(path, timeout_s=0.1, poll_s=0.01)
    assert f"process {process.pid} on " in raised.value.given
    process.kill()
    FileLock.acquire(path, timeout_s=LONG_S, poll_s=0.01).release()


@pytest.mark.parametrize("child", ["exec", "fork", "c fork"])
def test_a_child_does_not_keep_the_lock_of_its_parent(tmp_path: Path, start: Start, child: str):
    path = tmp_path / "lock"
    process = start(PARENT, path, child)
    pid = int(line_from(process))
    try:
        assert FileLock.try_acquire(path) is None, "the parent still holds it"
        if child == "c fork":  # which leaves the lock to the child where the parent is killed
            assert process.stdin is not None
            process.stdin.write("release\n")
            process.stdin.flush()
            assert line_from(process) == "released"
        else:
            process.kill()
            process.wait()
        # A fork of Python closes its copy as its first act, which may take a moment.
        FileLock.acquire(path, timeout_s=LONG_S, poll_s=0.01).release()
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_holder_that_becomes_another_program_lets_go(tmp_path: Path, start: Start):
    process = start(PARENT, tmp_path / "lock", "become")
    assert line_from(process) == "became"
    FileLock.acquire(tmp_path / "lock", timeout_s=0).release()


def test_a_full_disk_takes_no_new_lock_and_frees_none(tmp_path: Path, start: Start):
    path = tmp_path / "lock"
    told = line_from(start(FULL, path, "before"))
    assert told.startswith(f"{errno.EFBIG} cannot lock {path}: the disk is full")
    FileLock.acquire(path, timeout_s=0).release()
    process = start(FULL, path, "after")
    assert line_from(process) == "held"
    assert FileLock.try_acquire(path) is None
    process.communicate("", timeout=LONG_S)
    assert process.returncode == 0, "it is released there, too"
    assert os.listdir(tmp_path) == []


def test_of_many_threads_exactly_one_gets_the_lock(tmp_path: Path):
    won: list[FileLock] = []
    barrier = threading.Barrier(8)

    def contend() -> None:
        barrier.wait()
        for _ in range(20):
            lock = FileLock.try_acquire(tmp_path / "lock")
            won.extend([lock] if lock else [])

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    won[0].release()


def test_those_who_only_look_do_not_keep_anyone_from_the_lock(tmp_path: Path):
    path = tmp_path / "lock"
    path.write_text("left by somebody")
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            lock_holder(path)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(50):
            FileLock.acquire(path, timeout_s=LONG_S, poll_s=0.001).release()
    finally:
        is_over.set()
        for looker in lookers:
            looker.join()


def test_a_lock_goes_with_its_folder_and_the_new_folder_is_free(tmp_path: Path):
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "lock"
    lock = FileLock.acquire(path, timeout_s=0)
    (tmp_path / "run").rename(tmp_path / "aside")
    (tmp_path / "run").mkdir()
    with FileLock.acquire(path, timeout_s=0):
        lock.release()
        assert path.exists(), "it is another's"
        assert FileLock.try_acquire(path) is None


def test_a_file_swapped_before_it_is_locked_is_locked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, swapped = tmp_path / "lock", tmp_path / "swapped"
    path.touch()
    swapped.touch()
    flock = fcntl.flock

    def swap_then_lock(descriptor: int, operation: int) -> None:
        if swapped.exists():
            os.replace(swapped, path)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", swap_then_lock)
    with FileLock.acquire(path, timeout_s=0):
        assert holder_of(path).pid == os.getpid()
        assert FileLock.try_acquire(path) is None


@pytest.mark.parametrize(
    "content", ["", "not a record", "[1]", json.dumps({"host": "h", "pid": "x", "user": "u"})]
)
def test_what_a_lock_file_says_locks_nothing(tmp_path: Path, content: str):
    path = tmp_path / "lock"
    path.write_text(content)
    assert lock_holder(path) is None
    assert killed_holder(path) is None
    with open(path) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "unknown host" in str(holder_of(path))
        assert FileLock.try_acquire(path) is None
    with FileLock.acquire(path, timeout_s=0):
        assert holder_of(path).pid == os.getpid()


def test_a_link_is_neither_followed_nor_removed(tmp_path: Path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "lock").symlink_to(tmp_path / "mine")
    with pytest.raises(StorageError, match="symbolic link"):
        FileLock.try_acquire(tmp_path / "lock")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "lock").is_symlink()


def test_a_filesystem_without_locks_is_named_once_and_loudly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def refuse(_descriptor: int, _operation: int) -> NoReturn:
        raise OSError(errno.ENOLCK, "test: no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    for name in ("one", "other"):
        with FileLock.acquire(tmp_path / name, timeout_s=0):
            assert lock_holder(tmp_path / name) is None
    assert os.listdir(tmp_path) == []
    assert caplog.text.count("NO LOCKS") == 1
    assert str(tmp_path) in caplog.text


def test_an_address_cannot_be_locked():
    with pytest.raises(StorageError) as raised:
        FileLock.try_acquire("s3://bucket/lock")
    assert "network mount" in raised.value.allowed
    assert lock_holder("s3://bucket/lock") is None
