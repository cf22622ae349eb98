"""Where a run's traces are, and which of them is the newest."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chomp.errors import StorageError
from chomp.storage import StrPath, is_folder, join, list_folder, name_of, parent_of
from chomp.tracking.run_files import PROFILER, section_in


@dataclass(frozen=True)
class TraceFile:
    """The file that is read, and how many there are of the same moment, one for each host."""

    path: str
    num_hosts: int


def newest_trace(run: StrPath, config: Mapping[str, Any] | None) -> TraceFile:
    """The newest trace of the run with this resolved config, of its first host."""
    places = trace_places(run, config)
    found = [path for place in places for path in _traces_below(place)]
    if not found:
        raise StorageError(
            f"{run} has no trace (no *.xplane.pb below {' or '.join(places)})",
            allowed="the folder of a run that finished tracing some of its steps",
            fix="train with -o train.profiler.enabled=true, and train.profiler.start_step a step "
            "that has not run yet",
        )
    # Named after the moment: 2026_11_16_08_45_36.
    moment = max(name_of(parent_of(path)) for path in found)
    hosts = sorted(path for path in found if name_of(parent_of(path)) == moment)
    return TraceFile(hosts[0], len(hosts))


def trace_places(run: StrPath, config: Mapping[str, Any] | None) -> list[str]:
    """The folders a run's traces may be in: its own, and the one its config says."""
    trainer = section_in(config, "trainer") or section_in(config, "train")
    log_dir, run_id = trainer.get("log_dir"), (config or {}).get("run_id")
    own = join(run, PROFILER)
    # A config may be damaged: what is no text is no place.
    is_told = all(isinstance(part, str) and part for part in (log_dir, run_id))
    return [own, join(str(log_dir), str(run_id), PROFILER)] if is_told else [own]


def _traces_below(place: str) -> list[str]:
    """Every trace below a profiler's folder; JAX makes a folder for each moment."""
    moments = join(place, "plugins", "profile")
    if not is_folder(moments):
        return []
    folders = [join(moments, name) for name in list_folder(moments)]
    return [
        join(folder, name)
        for folder in folders
        if is_folder(folder)
        for name in list_folder(folder)
        if name.endswith(".xplane.pb")
    ]
