"""What stands in a lock file, and how another process judges that its holder is gone.

The wall clock in the record is for people. Judging compares no clocks of two machines: a holder is
gone when its process is surely dead, or when its heartbeat stood still for long enough on the
judge's own monotonic clock. That is longer where the process can be seen to run.
"""

import hashlib
import json
import math
import time
from dataclasses import asdict, dataclass, replace

from chomp.storage.guarded import Snapshot
from chomp.storage.process_identity import ProcessIdentity
from chomp.storage.strict_json import parse_json

# Fewer missed beats prove nothing: one sync on a busy disk can take seconds.
MISSED_BEATS = 3
# Times the usual patience, so ten minutes: a live process is silent while one C call keeps Python's
# lock, or one sync takes minutes, and taking its lease would end its work.
PATIENCE_WITH_THE_LIVING = 10


@dataclass(frozen=True, kw_only=True)
class LeaseHolder:
    """Who holds a lock file, as read from it; the process may have died since."""

    token: str  # random, new for every acquisition
    process: ProcessIdentity
    acquired_at: str  # UTC, by the holder's clock
    beat: int  # grows with every heartbeat
    heartbeat_s: float  # how often the holder promised to beat

    def __str__(self) -> str:
        return (
            f"process {self.process.pid} on {self.process.host} "
            f"since {self.acquired_at} (beat {self.beat})"
        )

    def next_beat(self) -> "LeaseHolder":
        """The same holder, one heartbeat later."""
        return replace(self, beat=self.beat + 1)

    def to_bytes(self) -> bytes:
        """The content of the lock file."""
        record = asdict(self)
        return json.dumps({**record.pop("process"), **record}).encode() + b"\n"

    @staticmethod
    def from_bytes(content: bytes) -> "LeaseHolder":
        """The holder named in a lock file.

        Content that nobody here wrote gives an unknown holder with a token made from that content:
        it counts as held until it stood still for long enough, like any other.
        """
        try:
            return _holder_of(parse_json(content))
        except (ValueError, KeyError, TypeError):
            digest = hashlib.sha256(content).hexdigest()[:16]
            nobody = ProcessIdentity(host="an unknown host", pid_space="", pid=0, start_id="")
            return LeaseHolder(
                token=f"unreadable-{digest}",
                process=nobody,
                acquired_at="an unknown time",
                beat=0,
                heartbeat_s=0.0,
            )


class LeaseWatch:
    """Remembers when a lock file last changed, to tell a silent holder from a slow one.

    Keep one per lock file and pass it to every `Lease.try_acquire`; `Lease.acquire` has its own.
    """

    def __init__(self, stale_after_s: float = 60.0) -> None:
        self._stale_after_s = stale_after_s
        self._last: Snapshot | None = None
        self._since = 0.0

    def is_stale(self, seen: Snapshot) -> bool:
        """Whether the holder is gone: dead at a look, or silent since an earlier look."""
        holder = LeaseHolder.from_bytes(seen.content)
        if holder.process.is_surely_dead():
            return True
        now = time.monotonic()
        if seen != self._last:
            self._last, self._since = seen, now
        # A holder that beats slowly by its own promise is not silent for being slow.
        patience_s = max(self._stale_after_s, MISSED_BEATS * holder.heartbeat_s)
        silent_s = now - self._since
        if silent_s >= patience_s and holder.process.is_surely_running():
            return silent_s >= PATIENCE_WITH_THE_LIVING * patience_s
        return silent_s >= patience_s


def _holder_of(record: dict[str, object]) -> LeaseHolder:
    """Strict: a field that is missing or of another type raises."""
    texts = ("token", "host", "pid_space", "start_id", "acquired_at")
    token, host, pid_space, start_id, acquired_at = (record[name] for name in texts)
    pid, beat, heartbeat_s = record["pid"], record["beat"], record["heartbeat_s"]
    if not (
        isinstance(token, str)
        and isinstance(host, str)
        and isinstance(pid_space, str)
        and isinstance(start_id, str)
        and isinstance(acquired_at, str)
        and isinstance(pid, int)
        and isinstance(beat, int)
        and isinstance(heartbeat_s, int | float)
        and math.isfinite(heartbeat_s)
    ):
        raise TypeError("not a lease record")
    return LeaseHolder(
        token=token,
        process=ProcessIdentity(host=host, pid_space=pid_space, pid=pid, start_id=start_id),
        acquired_at=acquired_at,
        beat=beat,
        heartbeat_s=heartbeat_s,
    )
