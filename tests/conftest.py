"""What every test runs under: eight CPU devices, strict JAX, checked shapes, no network.

Warnings are errors by pyproject. Set here, before anything imports JAX or chomp.
"""

import atexit
import gc
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from importlib.metadata import version
from typing import Any

from tests.well_compiled import QUICK_FUSIONS, well_compiled_environment

# Real processes started by tests inherit all of these.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
os.environ.pop("COLUMNS", None)  # xdist sets it: tables would be those of a narrow terminal
os.environ.pop("WANDB_API_KEY", None)  # with somebody's key, every run of a test would be sent
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs deaf to Ctrl-C, and so would be all that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if os.environ["JAX_PLATFORMS"] == "cpu":
    # Programs this small take far longer to compile than to run: a step of moe 3.6 s in place of
    # 6.6 (two cores, November 2026), and without XLA's newer fusions half of that. Compiled as in
    # real runs are the slow tests, what `tests.well_compiled` is asked for (a process of its own
    # has all of it), and with "0" in the environment everything.
    is_quick = os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1") != "0"
    flags = os.environ.get("XLA_FLAGS", "")
    # XLA ends a process that gives it a flag it does not know, as this one from jaxlib 0.11 on.
    is_known = version("jaxlib").startswith("0.10.")
    if is_quick and is_known and QUICK_FUSIONS not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {QUICK_FUSIONS}".strip()
if os.environ["JAX_PLATFORMS"] == "cpu" and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    # What one test has compiled, later tests and the processes they start load: the same machine
    # code, so results are the same to the bit. Never from one session to the next.
    programs = tempfile.mkdtemp(prefix="compiled-by-tests-")
    atexit.register(shutil.rmtree, programs, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = programs
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
if "state-of-tests-" not in os.environ.get("XDG_STATE_HOME", ""):
    # Runs note their templates as this user's: not in the home of whoever runs the tests.
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="state-of-tests-")
    atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)
if sys.dont_write_bytecode:
    # Else every process that a test starts compiles all that it imports: the launch file of base
    # took 5.0 s for its imports, and 2.2 with bytecode. Not beside the sources: none wanted there.
    sys.pycache_prefix = tempfile.mkdtemp(prefix="bytecode-of-tests-")
    atexit.register(shutil.rmtree, sys.pycache_prefix, ignore_errors=True)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False

import jax
import jaxtyping
import pytest
from hypothesis import HealthCheck, settings

from tests.chromium_pipe import ChromiumPage, browser
from tests.forked_commands import ForkedCommands

jax.config.update("jax_num_cpu_devices", 8)
# A silent cast or broadcast is how a wrong formula survives.
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# The same examples in every run, so that a change is judged by what it changes, and a busy machine
# is no failure. `--hypothesis-profile=default` looks for new ones.
settings.register_profile(
    "steady",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")

# Shapes and types are checked at every call of the code that handles arrays; runs outside of tests
# do not pay for it. The rooms without arrays check their input themselves, and are tested with
# wrong types on purpose.
ARRAY_ROOMS = "mesh tokenize kernels optim data checkpoint evaluation training"
jaxtyping.install_import_hook(
    [*(f"chomp.{room}" for room in ARRAY_ROOMS.split()), "experiments"], "beartype.beartype"
)


def pytest_configure(config: pytest.Config) -> None:
    """A session of slow tests has all of the compiler's optimizations."""
    # JAX writes a compiled program into its cache bit by bit: whoever looks for it meanwhile finds
    # a part, warns, and compiles it anew.
    half_written = "ignore:Error reading persistent compilation cache entry:UserWarning"
    config.addinivalue_line("filterwarnings", half_written)
    # All of the session: what a slow test runs is compared to the bit with what a fixture has run.
    asked = config.getoption("markexpr").replace("not slow", "")
    if "slow" in asked:
        os.environ.update(well_compiled_environment(), JAX_DISABLE_MOST_OPTIMIZATIONS="0")
        jax.config.update("jax_disable_most_optimizations", False)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """While tests are read, nothing is made that is not kept."""
    gc.disable()  # looking for what is not was 7 of the 34 seconds that reading them takes
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Under `-n`, a file's tests stay together: what its fixtures make is made once."""
    from xdist.scheduler import LoadFileScheduling  # only there if its plugin calls this

    # In the order below: by itself it begins with the files of most tests, which are short ones.
    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what passed tests have noted with `record_property("note", text)`."""
    reports = terminalreporter.getreports("passed")
    for note in [
        text for report in reports for key, text in report.user_properties if key == "note"
    ]:
        terminalreporter.write_line(f"NOTE {note}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files of this folder first: they train whole runs, and the last would be waited for."""
    items.sort(key=lambda item: len(item.path.parts))


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every connection that leaves this machine."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        is_inet = self.family in (socket.AF_INET, socket.AF_INET6)
        host = address[0] if is_inet and isinstance(address, tuple) else "localhost"
        if host not in ("localhost", "127.0.0.1", "::1"):
            raise RuntimeError(f"a test tried to reach {address!r}; tests have no network")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


class WaitedClock:
    """In place of `time`: only who sleeps makes it go on, and a busy machine does not."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def monotonic(self) -> float:
        """The seconds that were slept so far."""
        return self._now_s

    def sleep(self, seconds: float) -> None:
        """Let so much time have passed, at once."""
        self._now_s += max(seconds, 1e-3)
        time.sleep(0)  # for the other threads


@pytest.fixture
def waited_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a lock in this process waits by a clock that takes no time."""
    monkeypatch.setattr("chomp.storage.lock.time", WaitedClock())


@pytest.fixture(scope="module")
def chromium() -> Iterator[ChromiumPage]:
    """A headless browser; who asks for it is skipped, and says so, where there is none."""
    program = browser()
    assert program is not None
    with ChromiumPage(program) as page:
        yield page


@pytest.fixture(scope="session")
def one_device_mesh() -> jax.sharding.Mesh:
    """All axes 1: what a laptop has."""
    from chomp.mesh import MeshConfig, create_mesh

    return create_mesh(MeshConfig(data=1), devices=jax.devices()[:1])


@pytest.fixture(scope="session")
def eight_device_mesh() -> jax.sharding.Mesh:
    """Data over four, model over two."""
    from chomp.mesh import MeshConfig, create_mesh

    return create_mesh(MeshConfig(data=4, model=2), devices=jax.devices()[:8])


@pytest.fixture(scope="session")
def base_launches() -> Iterator[ForkedCommands]:
    """Runs files that import what the launch file of base does; on one device, unless told."""
    commands = ForkedCommands(
        "experiments.grug.base.launch", env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    )
    yield commands
    commands.close()
