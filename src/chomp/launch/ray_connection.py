"""This process as a driver of a Ray cluster: connected, and gone again.

Never starts a cluster of its own: one that appears without being asked for listens on the network.
"""

import logging
import os
import signal
import socket
import threading
from collections.abc import Mapping
from typing import Any

from chomp.errors import LaunchError

ADDRESS = "RAY_ADDRESS"
_REACH_S = 10.0


class RayConnection:
    """A connection to the cluster that RAY_ADDRESS names, or else to the one on this machine.

    One that the launch file made is used, and left as it is. Raises `LaunchError` if there is none.
    """

    def __init__(self) -> None:
        ray = import_ray()
        self._is_ours = not ray.is_initialized()
        if not self._is_ours:
            return
        address = os.environ.get(ADDRESS) or "auto"
        if address != "auto":
            _require_driver_address(address)
        earlier = _handlers()
        try:
            # What processes print is in the logs of their steps; Ray would repeat it here.
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise _no_cluster(address, error) from error
        finally:
            # Ray ends the process at SIGTERM. That is for the command to say.
            _set_handlers(earlier)

    def nodes(self) -> list[Mapping[str, float]]:
        """What each node that is alive has in all, by Ray's names of resources."""
        ray = import_ray()
        return [node["Resources"] for node in ray.nodes() if node["Alive"]]

    def close(self) -> None:
        """Leave the cluster. What this process still has running there is ended."""
        if self._is_ours:
            import_ray().shutdown()


def import_ray() -> Any:
    """Ray itself; `LaunchError` where it is not installed."""
    try:
        # An extra, which takes two seconds to import.
        import ray  # noqa: PLC0415
        import ray.exceptions  # noqa: PLC0415
        import ray.util.scheduling_strategies  # noqa: PLC0415
    except ImportError as error:
        raise LaunchError(
            "a Ray cluster was asked for, and Ray is not installed",
            allowed="an environment with ray[default]",
            fix="uv sync --extra ray, or pip install 'ray[default]'",
        ) from error
    return ray


def require_listening(host: str, port: int, *, what: str, fix: str) -> None:
    """Raise `LaunchError` within seconds if nobody listens there; Ray would wait for minutes."""
    try:
        socket.create_connection((host, port), timeout=_REACH_S).close()
    except OSError as error:
        raise LaunchError(
            f"{what} at {host}:{port} does not answer ({error})",
            allowed="the address of a cluster that runs and can be reached from here",
            fix=fix,
        ) from error


def host_and_port(address: str, default_port: int) -> tuple[str, int]:
    """`host`, `host:port` or `[v6]:port` in its two parts. `LaunchError` for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise LaunchError(
            f"{address!r} as the address of a cluster",
            allowed="host or host:port",
            fix=f"write for example 127.0.0.1:{default_port}",
        )
    return host, int(port)


def _require_driver_address(address: str) -> None:
    if "://" in address:
        raise LaunchError(
            f"{ADDRESS}={address} with --on ray",
            allowed="host:port of the cluster's head, from one of its nodes",
            fix="start the launch file on the cluster: python -m chomp.launch.ray_run "
            f"--cluster {address} -- python ... --on ray",
        )
    host, port = host_and_port(address, 6379)
    fix = f"start one with ray start --head, or correct {ADDRESS}"
    require_listening(host, port, what="the Ray cluster", fix=fix)


def _no_cluster(address: str, error: Exception) -> LaunchError:
    where = "on this machine" if address == "auto" else f"at {address}"
    first = next(iter(str(error).splitlines()), type(error).__name__)
    return LaunchError(
        f"no Ray cluster {where} that this process can join ({first})",
        allowed="a cluster that runs, of the same Ray and Python, and its token",
        fix=f"start one with ray start --head, set {ADDRESS} to another, or copy its token "
        "to ~/.ray/auth_token (or RAY_AUTH_TOKEN, with RAY_AUTH_MODE=token)",
    )


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}


def _set_handlers(handlers: Mapping[int, Any]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
