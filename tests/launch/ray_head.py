"""A Ray cluster of one node for tests: on loopback alone, with a token of its own.

Nothing of it can be reached from another machine, and nobody without the token can give it work.
It is ended by the ids of the processes that it started; `ray stop` would end every Ray there is.
"""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chomp.launch.gang import free_port

START_S = 240.0
END_S = 60.0
TRIES = 3  # a port may be taken between its choice and its use
CPUS = 8
# Small, and without what tests do not use: a reader of everybody's logs, one who orders nodes.
OPTIONS = (
    "--head",
    "--node-ip-address=127.0.0.1",
    "--dashboard-host=127.0.0.1",
    f"--num-cpus={CPUS}",
    "--num-gpus=0",
    "--object-store-memory=80000000",
    "--include-log-monitor=false",
    "--no-monitor",
    "--disable-usage-stats",
    "--block",
)
IS_LOOPBACK = re.compile(r"127\.[\d.]+|\[::1\]|\[::ffff:127\.[\d.]+\]")


@dataclass(frozen=True)
class RayHead:
    """A head that listens on loopback. `environment` makes a process one of its clients."""

    process: "subprocess.Popen[bytes]"
    folder: Path
    environment: dict[str, str]
    dashboard: str  # of Ray's job API
    mark: str  # stands in the environment of all its processes, and of its clients

    def processes(self) -> dict[int, str]:
        """All processes of the head, and what was started on it: ids, and when each began."""
        marked = marked_processes(self.mark)
        # Ray writes titles over the environments of some, but these are below the others.
        return marked | descendants({self.process.pid, *marked})

    def close(self) -> None:
        """Return when no process of the head is left."""
        known = self.processes()
        deadline = time.monotonic() + END_S
        while True:
            self.process.poll()  # one that has ended is there until it is asked for
            # Whoever lost the process above it is known from before, if it is not marked.
            known = {each: began for each, began in known.items() if began_at(each) == began}
            known |= self.processes()
            if not known:
                break
            assert time.monotonic() < deadline, f"still there: {known}"
            for each in known:
                end(each)
            time.sleep(0.1)
        self.process.wait(timeout=END_S)
        shutil.rmtree(self.folder, ignore_errors=True)


class HeadEnded(AssertionError):
    """A head ended before it was up, as it does if a port of it is taken."""


def started_head() -> RayHead:
    """A head that takes jobs and drivers. Fails if anything of it listens beyond loopback."""
    for _ in range(TRIES - 1):
        with suppress(HeadEnded):
            return head_with_new_ports()
    return head_with_new_ports()


def head_with_new_ports() -> RayHead:
    """One try to have a head."""
    # Short: the paths of sockets below it must stay under 108 characters.
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    mark = secrets.token_hex(16)
    port, dashboard_port, *others = distinct_ports(6)
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": mark,
        # Else 127.0.0.1 becomes the address of this machine, and services listen everywhere.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Else what runs on it gets next to nothing of a machine that has other work.
        "RAY_worker_niceness": "0",
        # `python` in a job's command is this one.
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "PYTHONPATH"):
        environment.pop(name, None)
    # Fixed ones by default, which another head on this machine may have.
    ports = [f"--port={port}", f"--dashboard-port={dashboard_port}"]
    ports += [f"--dashboard-agent-listen-port={others[0]}", f"--metrics-export-port={others[1]}"]
    ports += [f"--dashboard-agent-grpc-port={others[2]}", f"--ray-client-server-port={others[3]}"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *OPTIONS, *ports]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [*command, f"--temp-dir={folder}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    client = {**environment, "RAY_ADDRESS": f"127.0.0.1:{port}"}
    head = RayHead(process, folder, client, f"http://127.0.0.1:{dashboard_port}", mark)
    try:
        wait_until_up(head)
        refuse_open_listeners(head)
    except BaseException:
        head.close()
        raise
    return head


def wait_until_up(head: RayHead) -> None:
    """Return when the head has said so, and its job API answers."""
    deadline = time.monotonic() + START_S
    address = ("127.0.0.1", int(head.dashboard.rpartition(":")[2]))
    while True:
        said = (head.folder / "said").read_text()
        if "--block" in said and answers(address):
            return
        if head.process.poll() is not None:
            raise HeadEnded(said)
        assert time.monotonic() < deadline, said
        time.sleep(0.1)


def answers(address: tuple[str, int]) -> bool:
    """Whether somebody listens."""
    with socket.socket() as asking:
        return asking.connect_ex(address) == 0


def refuse_open_listeners(head: RayHead) -> None:
    """Fail unless all that the head's processes listen on is loopback."""
    deadline = time.monotonic() + START_S
    while len(found := listened_on(head)) <= 5:  # its agents come to listen when it is up
        assert time.monotonic() < deadline, f"a head listens on more than {found}; does ss tell?"
        time.sleep(0.1)
    is_open = [place for place in found if not IS_LOOPBACK.fullmatch(place.rpartition(":")[0])]
    assert not is_open, f"Ray listens beyond this machine: {is_open}"


def listened_on(head: RayHead) -> set[str]:
    """Addresses and ports that the head's processes listen on now."""
    listed = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout
    own = head.processes()
    return {
        line.split()[3]
        for line in listed.splitlines()
        for process in re.findall(r"pid=(\d+)", line)
        if int(process) in own
    }


def marked_processes(mark: str) -> dict[int, str]:
    """The processes that were started with the mark in their environment, but for this one."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_marked = mark.encode() in (folder / "environ").read_bytes()
        except OSError:
            continue  # it has ended, or it is somebody else's
        began = began_at(int(folder.name))
        if is_marked and began and int(folder.name) != os.getpid():
            found[int(folder.name)] = began
    return found


def descendants(roots: set[int]) -> dict[int, str]:
    """The roots and all processes below them."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if stat := stat_of(int(folder.name)):
            parents[int(folder.name)] = int(stat[1])
    found = {each for each in roots if each in parents}
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return {each: began for each in found if (began := began_at(each))}


def began_at(process: int) -> str:
    """When a process began, so that its id is not taken for another's; empty if it is gone."""
    stat = stat_of(process)
    return stat[19] if stat and stat[0] != "Z" else ""


def stat_of(process: int) -> list[str]:
    """What the kernel knows of a process, from its state on; nothing if it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def end(process: int) -> None:
    """End a process that may be gone. At once: there is nothing to save."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def distinct_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on now, and no outgoing connection will take."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return sorted(found)
