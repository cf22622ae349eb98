"""Leases: one holder among processes, quick takeover from the dead, none from the living."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from chomp import storage
from chomp.errors import ConfigError, StorageError
from chomp.storage import Lease, LeaseWatch, guarded, join

Start = Callable[..., subprocess.Popen[str]]
WaitUntil = Callable[..., None]

# A test that hangs fails after this; none waits for it.
LONG_S = 60.0

# Holds each lock it is given, says so, and answers "state" on every line it is sent.
HOLD = """
import resource, sys
from chomp.storage import Lease

leases = [Lease.acquire(path, timeout_s=5, heartbeat_s=float(sys.argv[1])) for path in sys.argv[2:]]
print("held", flush=True)
for line in sys.stdin:
    if line == "fill the disk\\n":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    print(all(lease.still_held() for lease in leases), any(lease.is_lost for lease in leases),
          flush=True)
"""

# Holds a lock and Python's own lock, as a C extension may: no other thread runs, no heart beats.
# It falls silent long before its first beat is due, which could be cut short inside of its guard.
SILENT = """
import ctypes, sys
from chomp.storage import Lease

lease = Lease.acquire(sys.argv[1], timeout_s=5, heartbeat_s=10)
print("held", flush=True)
ctypes.PyDLL(None).sleep(600)
"""

# Fills the disk and the pipe of its errors, in the eyes of this process, and holds a lock.
UNHEARD = """
import os, resource, sys
from chomp.storage import Lease

_kept, full = os.pipe()
os.set_blocking(full, False)
try:
    while os.write(full, bytes(4096)):
        pass
except BlockingIOError:
    os.set_blocking(full, True)
os.dup2(full, 2)
lease = Lease.acquire(sys.argv[1], timeout_s=5, heartbeat_s=0.02)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
print("held", flush=True)
sys.stdin.read()
"""

# Tries each lock once, keeps what it wins, and lives on until its input ends.
CONTEND = """
import os, sys
from chomp.storage import Lease

print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    pass
won = [Lease.try_acquire(path) for path in sys.argv[2:]]
print("".join("0" if lease is None else "1" for lease in won), flush=True)
sys.stdin.read()
"""

# Adds one to a counter that any overlap would leave short.
COUNT = """
import sys
from chomp import storage
from chomp.storage import Lease

lock, counter = sys.argv[1:]
for _ in range(10):
    with Lease.acquire(lock, timeout_s=120, poll_s=0.001) as lease:
        number = int(storage.read_text(counter))
        storage.write_text_atomic(counter, str(number + 1))
        assert lease.still_held()
"""

FORK = """
import os, sys
from chomp.storage import Lease

lease = Lease.acquire(sys.argv[1], timeout_s=5)
child = os.fork()
if child == 0:
    held = lease.still_held()
    lease.release()
    os._exit(held)
print(os.waitpid(child, 0)[1], lease.still_held(), os.path.exists(sys.argv[1]))
"""


def line_from(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait_until_stopped(process: subprocess.Popen[str]) -> None:
    """Return when SIGSTOP has reached the process, whose end would be told as well."""
    told = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert told is not None
    assert told.si_code == os.CLD_STOPPED


def state_of(process: subprocess.Popen[str], command: str = "state") -> str:
    assert process.stdin is not None
    process.stdin.write(command + "\n")
    process.stdin.flush()
    return line_from(process)


@pytest.fixture
def lock(root: str) -> str:
    return join(root, "lock.json")


@pytest.fixture
def leave_record(lock: str) -> Callable[..., None]:
    """Leaves a lock file as another process would, with some fields changed."""

    def leave(**changes: object) -> None:
        with Lease.acquire(lock, timeout_s=0, heartbeat_s=0.02):
            record = storage.read_json(lock)
        storage.write_json_atomic(lock, {**record, "token": "theirs", **changes})

    return leave


def taken_over(lock: str) -> dict[str, object]:
    """Let a lock that is held be another's; what stands in it then."""
    theirs = {**storage.read_json(lock), "token": "theirs"}
    # Guarded as a true takeover is: a heartbeat between look and act would undo it.
    text = json.dumps(theirs).encode()
    done = guarded.replace_if(lock, lambda seen: True, text, patience_s=LONG_S)
    assert done is guarded.Outcome.DONE
    return theirs


def test_a_held_lease_excludes_and_a_released_one_does_not(lock: str):
    first = Lease.try_acquire(lock)
    assert first is not None
    assert first.still_held()
    assert Lease.try_acquire(lock) is None
    first.release()
    first.release()
    assert not first.still_held()
    assert not storage.exists(lock)
    with Lease.acquire(lock, timeout_s=0) as second:
        assert second.token != first.token


def test_the_holder_can_be_read_by_anyone(lock: str):
    assert Lease.holder(lock) is None
    with Lease.acquire(lock, timeout_s=0, heartbeat_s=3) as lease:
        holder = Lease.holder(lock)
    assert holder is not None
    assert holder.token == lease.token
    assert holder.process.pid == os.getpid()
    assert not holder.process.is_surely_dead()
    assert holder.heartbeat_s == 3
    assert f"process {os.getpid()} on " in str(holder)


def test_a_holder_that_is_known_to_be_dead_is_not_a_live_one(tmp_path: Path, start: Start):
    lock = tmp_path / "lock"
    assert Lease.live_holder(lock) is None
    process = start(HOLD, 10, lock)
    assert line_from(process) == "held"
    holder = Lease.live_holder(lock)
    assert holder is not None
    assert holder.process.pid == process.pid
    process.kill()
    process.wait()
    assert Lease.live_holder(lock) is None
    assert Lease.holder(lock) == holder, "looking takes nothing over"


def test_a_holder_of_which_nothing_is_known_counts_as_live(
    lock: str, leave_record: Callable[..., None]
):
    leave_record(host="elsewhere", pid=2**22 + 1)
    assert Lease.live_holder(lock) is not None
    storage.write_text_atomic(lock, "not a record")
    assert Lease.live_holder(lock) is not None


def test_a_lease_is_released_when_its_block_raises(lock: str):
    with pytest.raises(ZeroDivisionError), Lease.acquire(lock, timeout_s=0):
        _ = 1 / 0
    assert not storage.exists(lock)


def test_the_heartbeat_grows(lock: str, wait_until: WaitUntil):
    def beat() -> int:
        holder = Lease.holder(lock)
        assert holder is not None
        return holder.beat

    with Lease.acquire(lock, timeout_s=0, heartbeat_s=0.01) as lease:
        wait_until(lambda: beat() >= 3)
        assert lease.still_held()
    folder = storage.parent_of(lock)
    assert storage.list_folder(folder) == []
    if storage.is_local(folder):
        assert os.listdir(folder) == []


@pytest.mark.usefixtures("waited_clock")
def test_waiting_reports_the_holder_and_ends_with_an_error_that_names_it(lock: str):
    waits: list[tuple[str, float]] = []
    with Lease.acquire(lock, timeout_s=0) as lease:
        with pytest.raises(StorageError, match=rf"process {os.getpid()} on .* Allowed: one holder"):
            Lease.acquire(
                lock,
                timeout_s=0.05,
                poll_s=0.01,
                on_wait=lambda holder, waited_s: waits.append((holder.token, waited_s)),
            )
        assert lease.still_held()
    assert {token for token, _ in waits} == {lease.token}
    assert [waited_s for _, waited_s in waits] == pytest.approx([0, 0.01, 0.02, 0.03, 0.04])


def test_waiting_ends_when_the_holder_lets_go(lock: str):
    first = Lease.acquire(lock, timeout_s=0)
    second = Lease.acquire(
        lock, timeout_s=LONG_S, poll_s=0.001, on_wait=lambda _holder, _waited_s: first.release()
    )
    assert second.still_held()
    second.release()


def test_processes_exclude_each_other(tmp_path: Path, start: Start):
    counter = tmp_path / "counter"
    counter.write_text("0")
    processes = [start(COUNT, tmp_path / "lock", counter) for _ in range(4)]
    for process in processes:
        assert process.wait(timeout=120) == 0
    assert counter.read_text() == "40"
    assert sorted(os.listdir(tmp_path)) == ["counter"]


# A beat every millisecond makes the kill fall into one.
@pytest.mark.parametrize("heartbeat_s", [10, 0.001])
@pytest.mark.parametrize("is_reaped", [True, False], ids=["gone", "zombie"])
def test_the_lock_of_a_killed_process_is_taken_over_at_once(
    tmp_path: Path, start: Start, heartbeat_s: float, is_reaped: bool
):
    lock = tmp_path / "lock"
    process = start(HOLD, heartbeat_s, lock)
    assert line_from(process) == "held"
    assert Lease.try_acquire(lock) is None
    process.kill()
    if is_reaped:
        process.wait()
    else:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with Lease.acquire(lock, timeout_s=0) as lease:
        assert lease.still_held()
    assert storage.list_folder(tmp_path) == []


def test_of_many_contenders_exactly_one_takes_over_each_stale_lock(tmp_path: Path, start: Start):
    locks = [tmp_path / f"lock-{number}" for number in range(20)]
    holder = start(HOLD, 10, *locks)
    assert line_from(holder) == "held"
    contenders = [start(CONTEND, tmp_path / "go", *locks) for _ in range(6)]
    for contender in contenders:
        assert line_from(contender) == "ready"
    holder.kill()
    holder.wait()
    (tmp_path / "go").touch()
    answers = [line_from(contender) for contender in contenders]
    winners_of_each = [sum(int(won) for won in wins) for wins in zip(*answers, strict=True)]
    assert winners_of_each == [1] * len(locks)


def test_a_live_holder_is_never_taken_over(tmp_path: Path, start: Start):
    lock = tmp_path / "lock"
    process = start(HOLD, 0.02, lock)
    assert line_from(process) == "held"
    with pytest.raises(StorageError, match=f"process {process.pid} on "):
        Lease.acquire(lock, timeout_s=1.0, stale_after_s=0.5, poll_s=0.005)
    assert state_of(process) == "True False"


def test_a_live_holder_keeps_its_lock_on_a_full_disk(tmp_path: Path, start: Start):
    lock = tmp_path / "lock"
    process = start(HOLD, 0.02, lock)
    assert line_from(process) == "held"
    assert state_of(process, "fill the disk") == "True False"
    with pytest.raises(StorageError, match=f"process {process.pid} on "):
        Lease.acquire(lock, timeout_s=1.0, stale_after_s=0.5, poll_s=0.005)
    assert state_of(process) == "True False"


@pytest.mark.usefixtures("waited_clock")
def test_a_holder_that_is_silent_and_seen_to_run_is_given_much_longer(tmp_path: Path, start: Start):
    lock = tmp_path / "lock"
    process = start(SILENT, lock)
    assert line_from(process) == "held"
    with pytest.raises(StorageError, match=f"process {process.pid} on "):
        Lease.acquire(lock, timeout_s=390, stale_after_s=40, poll_s=10)
    # Stopped, it cannot be at work: the usual time is enough.
    process.send_signal(signal.SIGSTOP)
    wait_until_stopped(process)
    with Lease.acquire(lock, timeout_s=60, stale_after_s=40, poll_s=10) as lease:
        assert lease.still_held()


def test_a_holder_whose_warnings_nobody_reads_goes_on_beating(
    tmp_path: Path, start: Start, wait_until: WaitUntil
):
    lock = tmp_path / "lock"
    assert line_from(start(UNHEARD, lock)) == "held"
    seen: set[int] = set()

    def beats() -> bool:
        seen.add(lock.stat().st_mtime_ns)
        return len(seen) > 3

    wait_until(beats)


def test_a_slow_but_honest_heartbeat_is_not_taken_for_silence(
    lock: str, leave_record: Callable[..., None]
):
    leave_record(host="elsewhere", heartbeat_s=100.0)
    with pytest.raises(StorageError, match="on elsewhere"):
        Lease.acquire(lock, timeout_s=0.1, stale_after_s=0.02, poll_s=0.005)


@pytest.mark.usefixtures("waited_clock")
def test_a_silent_holder_on_another_host_is_taken_over_after_a_while(
    lock: str, leave_record: Callable[..., None]
):
    leave_record(host="elsewhere", pid=2**22 + 1)
    waits: list[float] = []
    with Lease.acquire(
        lock,
        timeout_s=5,
        stale_after_s=0.2,
        poll_s=0.02,
        on_wait=lambda _holder, waited_s: waits.append(waited_s),
    ) as lease:
        assert lease.still_held()
    assert max(waits) > 0.15


@pytest.mark.usefixtures("waited_clock")
def test_a_beating_holder_on_another_host_is_taken_over_only_once_silent(
    lock: str, leave_record: Callable[..., None]
):
    leave_record(host="elsewhere")
    record = storage.read_json(lock)
    silent_since: list[float] = []

    def beat(_holder: object, waited_s: float) -> None:
        if waited_s < 0.4:
            record["beat"] += 1
            storage.write_json_atomic(lock, record)
            silent_since[:] = [waited_s]

    waits: list[float] = []
    lease = Lease.acquire(
        lock,
        timeout_s=5,
        stale_after_s=0.15,
        poll_s=0.02,
        on_wait=lambda holder, waited_s: (waits.append(waited_s), beat(holder, waited_s))[1],
    )
    lease.release()
    assert waits[-1] - silent_since[0] > 0.1


def test_a_single_try_takes_over_a_silent_holder_only_with_a_watch(
    lock: str, leave_record: Callable[..., None], wait_until: WaitUntil
):
    leave_record(host="elsewhere")
    watch = LeaseWatch(stale_after_s=0.1)
    won: list[Lease] = []

    def try_again() -> bool:
        assert Lease.try_acquire(lock) is None or won
        lease = Lease.try_acquire(lock, watch=watch)
        won.extend([lease] if lease else [])
        return bool(won)

    wait_until(try_again)
    won[0].release()


def test_a_process_id_used_again_does_not_keep_a_lock(lock: str, leave_record: Callable[..., None]):
    if not os.path.exists("/proc/self/stat"):
        pytest.skip("this system does not tell when a process started")
    leave_record(start_id="1")
    with Lease.acquire(lock, timeout_s=0) as lease:
        assert lease.still_held()


@pytest.mark.parametrize("field", ["host", "pid_space"])
def test_a_process_id_of_another_machine_or_container_proves_nothing(
    lock: str, leave_record: Callable[..., None], field: str
):
    leave_record(pid=2**22 + 1, **{field: "elsewhere"})
    assert Lease.try_acquire(lock) is None


def test_a_lock_file_nobody_can_read_counts_as_held_until_it_is_old(lock: str):
    storage.write_text_atomic(lock, "not a record")
    assert Lease.try_acquire(lock) is None
    holder = Lease.holder(lock)
    assert holder is not None
    assert "unknown host" in str(holder)
    with Lease.acquire(lock, timeout_s=LONG_S, stale_after_s=0.05, poll_s=0.005) as lease:
        assert lease.still_held()


def test_a_lost_lease_is_noticed_and_the_other_file_left_alone(
    lock: str, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture
):
    lease = Lease.acquire(lock, timeout_s=0, heartbeat_s=0.02)
    theirs = taken_over(lock)
    wait_until(lambda: lease.is_lost)
    assert not lease.still_held()
    lease.release()
    assert storage.read_json(lock) == theirs
    wait_until(lambda: "was lost" in caplog.text)


def test_a_loss_that_a_heartbeat_notices_is_told_before_the_next_is_due(
    tmp_path: Path, wait_until: WaitUntil
):
    lock, is_told = tmp_path / "lock", threading.Event()
    lease = Lease.acquire(lock, timeout_s=0, heartbeat_s=2.0)
    with lease.watched(is_told.set):
        taken_over(str(lock))
        wait_until(lambda: lease.is_lost)
        assert is_told.wait(1.9)


def test_the_fence_notices_a_loss_before_the_heartbeat_does(lock: str):
    lease = Lease.acquire(lock, timeout_s=0)
    mine = storage.read_json(lock)
    storage.write_json_atomic(lock, {**mine, "token": "theirs"})
    assert not lease.still_held()
    storage.write_json_atomic(lock, mine)
    assert not lease.still_held(), "what was lost once may have been used by another"
    storage.remove_tree(lock)
    lease.release()


def test_releasing_never_removes_the_file_of_another(lock: str):
    lease = Lease.acquire(lock, timeout_s=0)
    theirs = {**storage.read_json(lock), "token": "theirs"}
    storage.write_json_atomic(lock, theirs)
    lease.release()
    assert lease.is_lost
    assert storage.read_json(lock) == theirs


@pytest.mark.usefixtures("waited_clock")
def test_a_holder_that_was_paused_wakes_up_without_the_lease(
    tmp_path: Path, start: Start, wait_until: WaitUntil
):
    lock = tmp_path / "lock"
    # Its first beat is far off: stopped within one, it would keep the guard of the file.
    process = start(HOLD, 10, lock)
    assert line_from(process) == "held"
    process.send_signal(signal.SIGSTOP)
    wait_until_stopped(process)
    with Lease.acquire(lock, timeout_s=60, stale_after_s=40, poll_s=10) as lease:
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: state_of(process) == "False True")
        assert lease.still_held()


def test_a_forked_child_neither_holds_nor_releases(tmp_path: Path, start: Start):
    process = start("import warnings; warnings.simplefilter('ignore')" + FORK, tmp_path / "lock")
    assert process.communicate(timeout=120)[0] == "0 True True\n"


def test_of_many_threads_exactly_one_takes_over_a_silent_lock_in_memory(memory_root: str):
    lock = join(memory_root, "lock")
    storage.write_text_atomic(lock, "left by somebody")
    won: list[Lease] = []
    barrier = threading.Barrier(8)

    def contend() -> None:
        watch = LeaseWatch(stale_after_s=0.05)
        barrier.wait()
        for _ in range(40):
            lease = Lease.try_acquire(lock, watch=watch)
            won.extend([lease] if lease else [])
            threading.Event().wait(0.005)

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert won[0].still_held()
    won[0].release()


def test_a_judgement_that_comes_too_late_takes_nothing(
    lock: str, leave_record: Callable[..., None]
):
    rivals: list[Lease | None] = []

    class SlowWatch(LeaseWatch):
        """Judges rightly, but a rival acts on the same judgement first."""

        def is_stale(self, seen: guarded.Snapshot) -> bool:
            is_stale = super().is_stale(seen)
            rivals.append(Lease.try_acquire(lock))
            return is_stale

    leave_record(start_id="1")
    assert Lease.try_acquire(lock, watch=SlowWatch()) is None
    assert rivals[0] is not None
    assert rivals[0].still_held()
    rivals[0].release()


def test_nobody_changes_a_lock_file_while_another_does(lock: str):
    storage.write_text_atomic(lock, "old")
    outcomes: list[guarded.Outcome] = []

    def replace() -> None:
        outcomes.append(guarded.replace_if(lock, lambda _seen: True, b"new", patience_s=10.0))

    other = threading.Thread(target=replace)

    def start_other(_seen: guarded.Snapshot) -> bool:
        if other.ident is None:  # asked again after the removal, when the other may have ended
            other.start()
            other.join(timeout=0.1)
        return True

    assert guarded.remove_if(lock, start_other) is guarded.Outcome.DONE
    other.join()
    assert outcomes == [guarded.Outcome.CHANGED]
    assert storage.list_folder(storage.parent_of(lock)) == []


@pytest.mark.parametrize("root", ["local"], indirect=True)
def test_a_lock_file_in_change_is_left_alone(lock: str, leave_record: Callable[..., None]):
    leave_record(start_id="1")
    with open(lock, "rb") as in_change:
        fcntl.flock(in_change, fcntl.LOCK_EX)
        assert Lease.try_acquire(lock) is None
    with Lease.acquire(lock, timeout_s=0) as lease:
        assert lease.still_held()


def test_a_file_swapped_before_its_guard_is_taken_is_looked_at_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lock, swapped = tmp_path / "lock", tmp_path / "swapped"
    lock.write_text("old")
    swapped.write_text("new")
    real_flock = fcntl.flock

    def swap_then_lock(descriptor: int, operation: int) -> None:
        if swapped.exists():
            os.replace(swapped, lock)
        real_flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", swap_then_lock)
    outcome = guarded.replace_if(lock, lambda seen: seen.content == b"old", b"x", patience_s=5)
    assert outcome is guarded.Outcome.CHANGED
    assert lock.read_text() == "new"
    assert os.listdir(tmp_path) == ["lock"]


def test_without_flock_leases_still_work_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def refuse(_descriptor: int, _operation: int) -> NoReturn:
        raise OSError(errno.ENOLCK, "test: no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = tmp_path / "lock"
    lock.write_text("left by somebody")
    with Lease.acquire(lock, timeout_s=LONG_S, stale_after_s=0.05, poll_s=0.005) as lease:
        assert lease.still_held()
    assert os.listdir(tmp_path) == []
    assert "without flock" in caplog.text


def test_without_flock_a_lock_taken_meanwhile_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fcntl, "flock", lambda _descriptor, _operation: None)
    lock = tmp_path / "lock"
    lock.write_text("stale")

    def is_stale(seen: guarded.Snapshot) -> bool:
        # Between the look and the removal another process takes the lock over.
        if seen.content == b"stale":
            storage.write_text_atomic(lock, "taken")
            return True
        return False

    assert guarded.remove_if(lock, is_stale) is guarded.Outcome.CHANGED
    assert lock.read_text() == "taken"
    assert os.listdir(tmp_path) == ["lock"]


def test_a_filesystem_without_atomic_rename_is_refused():
    with pytest.raises(StorageError, match="keep lock files in a folder"):
        Lease.try_acquire("s3://bucket/lock")


def test_times_that_make_no_sense_are_refused(lock: str):
    with pytest.raises(ConfigError, match="heartbeat_s=0"):
        Lease.try_acquire(lock, heartbeat_s=0)
    with pytest.raises(ConfigError, match="stale_after_s=-1"):
        Lease.acquire(lock, timeout_s=0, stale_after_s=-1)
    assert not storage.exists(lock)
