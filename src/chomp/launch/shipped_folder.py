"""The folder that a command on a cluster starts in: a copy of this one, without what it made.

What git ignores stays here, and so do results, caches and files that are too big for code. The
archive depends on names and contents alone, so that the same folder is sent once.
"""

import os
import stat
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chomp.errors import LaunchError

# At the top alone: a package of code may have one of these names further down.
_RESULTS = {"outputs", "runs", "wandb"}
_NEVER = {".git", ".venv", "__pycache__", "node_modules", ".ssh", ".aws", ".netrc"}
# Where keys are kept, by the beginning or the end of a name. Keys travel by --env_vars.
_SECRET_STARTS, _SECRET_ENDS = (".env",), (".pem", ".key")
BIG_FILE_BYTES = 20_000_000
# Ray keeps packages in its head's memory and sends them in one message.
_RAY_LIMIT = "RAY_max_grpc_message_size"
_RAY_LIMIT_BYTES = 512 * 2**20
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class ShippedFolder:
    """Which files of a folder go along, and which were left out for their size."""

    root: Path
    files: tuple[str, ...]  # relative, in order
    too_big: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        """Of all files, before they are packed."""
        return sum(self._size(name) for name in self.files)

    def told(self) -> str:
        """What goes along, in one line."""
        line = f"{len(self.files)} files of {self.root}, {_told_size(self.num_bytes)}"
        if self.too_big:
            shown = ", ".join(self.too_big[:_SHOWN])
            more = f" and {len(self.too_big) - _SHOWN} more" if len(self.too_big) > _SHOWN else ""
            line += f"; without files over {_told_size(BIG_FILE_BYTES)}: {shown}{more}"
        return line

    def packages(self) -> list[str]:
        """Folders of the packages below `src`, which a checkout makes importable by installing."""
        found = {Path(name).parts[1] for name in self.files if _is_package_of_source(name)}
        return [str(self.root / "src" / name) for name in sorted(found)]

    def write_archive(self, place: Path) -> None:
        """Write all files as a zip. `LaunchError` if it is more than Ray takes."""
        with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            for name in self.files:
                path = self.root / name
                entry = zipfile.ZipInfo(name)  # of 1980: a time would make it another archive
                entry.compress_type = zipfile.ZIP_DEFLATED
                is_program = bool(path.stat().st_mode & stat.S_IXUSR)
                entry.external_attr = (0o755 if is_program else 0o644) << 16
                archive.writestr(entry, path.read_bytes())
        limit = int(os.environ.get(_RAY_LIMIT, _RAY_LIMIT_BYTES))
        if place.stat().st_size >= limit:
            raise self._too_much(place.stat().st_size, limit)

    def _too_much(self, size: int, limit: int) -> LaunchError:
        biggest = sorted(self.files, key=self._size, reverse=True)[:_SHOWN]
        named = ", ".join(f"{name} ({_told_size(self._size(name))})" for name in biggest)
        return LaunchError(
            f"{self.root} takes {_told_size(size)} when packed, most of it for {named}",
            allowed=f"less than {_told_size(limit)}, which is what Ray sends",
            fix="add what is no code to .gitignore, or start from a smaller folder",
        )

    def _size(self, name: str) -> int:
        return (self.root / name).stat().st_size


def shipped_folder(root: Path) -> ShippedFolder:
    """The files below `root` that a command needs: what git has or would take, else all."""
    listed = _listed_by_git(root)
    names = sorted({name for name in (_walked(root) if listed is None else listed) if _goes(name)})
    files = [name for name in names if (root / name).is_file()]
    too_big = {name for name in files if (root / name).stat().st_size > BIG_FILE_BYTES}
    return ShippedFolder(
        root=root,
        files=tuple(name for name in files if name not in too_big),
        too_big=tuple(sorted(too_big)),
    )


def _goes(name: str) -> bool:
    parts = Path(name).parts
    is_secret = parts[-1].startswith(_SECRET_STARTS) or parts[-1].endswith(_SECRET_ENDS)
    return parts[0] not in _RESULTS and _NEVER.isdisjoint(parts) and not is_secret


def _listed_by_git(root: Path) -> list[str] | None:
    """What git tracks here, and what it does not ignore; None where there is no repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return [name for name in done.stdout.split("\0") if name] if done.returncode == 0 else None


def _walked(root: Path) -> Iterator[str]:
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if name not in _NEVER]
        for name in names:
            yield str((Path(folder) / name).relative_to(root))


def _is_package_of_source(name: str) -> bool:
    parts = Path(name).parts
    return len(parts) == 3 and parts[0] == "src" and parts[2] == "__init__.py"


def _told_size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 50_000 else f"{num_bytes / 1e3:.1f} kB"
