"""A port that a program may be told to listen on a moment later.

Not by binding to port 0: that gives one of the range from which the kernel also takes the near ends
of outgoing connections, and by the time the program comes to listen, one of those may have it.
"""

import errno
import logging
import random
import socket
from pathlib import Path

from chomp.errors import LaunchError

_log = logging.getLogger(__name__)

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_IANA_RANGE = range(49152, 65536)  # what other systems take by convention
_HIGHEST = 65535
# From here on services are rare; below are well-known ones, and Ray's workers (10002 to 19999).
_PREFERRED = 20000
_LOWEST = 1024  # below, only root may listen


def free_port(host: str = "127.0.0.1", *, avoided: range | None = None) -> int:
    """A port of `host`, an address of this machine, that nobody uses now; another at each call.

    Outside of `avoided`, by default the ports of outgoing connections. Where those are all there
    are, it is one of them, and a warning says so. Raises `LaunchError` if none is free, or if
    `host` is no address of this machine.
    """
    avoided = ephemeral_ports() if avoided is None else avoided
    above = [port for port in range(_PREFERRED, _HIGHEST + 1) if port not in avoided]
    below = [port for port in range(_LOWEST, _PREFERRED) if port not in avoided]
    if not above and not below:
        _log.warning(
            "all ports of this machine (%d to %d, see %s) may be taken by outgoing connections: "
            "processes that are to meet at one of them may find it taken",
            avoided.start,
            avoided.stop - 1,
            _RANGE_FILE,
        )
        above = [*avoided]
    for ports in (above, below):
        # Two launches at the same moment are not to find the same one, whatever seed was set.
        for port in random.SystemRandom().sample(ports, len(ports)):
            if is_free(host, port):
                return port
    raise LaunchError(
        f"{len(above) + len(below)} ports of {host}, of which none is free",
        allowed="a free port outside of those of outgoing connections "
        f"({avoided.start} to {avoided.stop - 1})",
        fix=f"end what listens there (ss -ltn), or narrow {_RANGE_FILE}",
    )


def ephemeral_ports() -> range:
    """The ports that this machine's kernel gives to outgoing connections."""
    try:
        first, last = map(int, _RANGE_FILE.read_text().split())
    except (OSError, ValueError):
        return _IANA_RANGE
    return range(first, last + 1)


def is_free(host: str, port: int) -> bool:
    """Whether a program could listen at that port of an address of this machine now.

    `LaunchError` for a host that is none.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, port))
        except OSError as error:
            # EACCES: kept for root. Any other speaks of the address, and holds for all ports.
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise LaunchError(
                f"{host}, where no program of this machine can listen ({error})",
                allowed="an address of this machine, on which processes of a gang can meet",
                fix="give one that `ip addr` shows; a node of Ray tells its own by "
                "ray start --node-ip-address",
            ) from error
    return True
