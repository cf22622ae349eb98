"""What a command line says about a config, before anything of it is read."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

import shlex
from dataclasses import dataclass
from typing import Literal

from chomp.errors import ConfigError, message

ConfigKind = Literal["launch file", "YAML file", "run folder", "token store"]

_SUFFIXES: dict[str, ConfigKind] = {
    ".py": "launch file",
    ".yaml": "YAML file",
    ".yml": "YAML file",
}


@dataclass(frozen=True, kw_only=True)
class GivenConfig:
    """CONFIG and the options that go with it."""

    path: str
    overrides: tuple[str, ...] = ()
    prefix: str | None = None
    template: str | None = None  # the folder that a YAML file configures

    @property
    def outputs(self) -> str:
        """Where outputs go, as in launch files: the prefix, `CHOMP_PREFIX`, or the usual folder."""
        from chomp.launch.launching import outputs_folder

        return outputs_folder(self.prefix)

    def kind(self) -> ConfigKind:
        """What is at the path; `ConfigError` where it is nothing that a command can use."""
        from chomp.storage import is_folder

        if is_folder(self.path):
            return self._kind_of_folder()
        suffixes = [suffix for suffix in _SUFFIXES if self.path.endswith(suffix)]
        self._require_file(has_known_suffix=bool(suffixes))
        return _SUFFIXES[suffixes[0]]

    def command(self, *words: str) -> str:
        """A `chomp data` command for this same config, to be copied."""
        parts = ["chomp", "data", *words, self.path]
        for override in self.overrides:
            parts += ["-o", override]
        if self.prefix is not None:
            parts += ["--prefix", self.prefix]
        if self.template is not None:
            parts += ["--template", self.template]
        return shlex.join(parts)

    def refuse_options(self) -> None:
        """Raise `ConfigError` for options that change nothing about what is already there."""
        options = [f"-o {text}" for text in self.overrides]
        options += [] if self.template is None else [f"--template {self.template}"]
        if options:
            raise ConfigError(
                message(
                    given=f"{options[0]} with {self.path}, a {self.kind()}",
                    allowed="-o and --template with a YAML file, -o with a launch file",
                    fix="leave it out, or pass the config that made it",
                )
            )

    def _kind_of_folder(self) -> ConfigKind:
        from chomp.data.store.token_store import MANIFEST, TOKENS
        from chomp.storage import exists, is_folder, join
        from chomp.tracking.run_files import RESOLVED_CONFIG

        if exists(join(self.path, RESOLVED_CONFIG)):
            return "run folder"
        # A store without its manifest still is one, though an unfinished or a damaged one.
        if exists(join(self.path, MANIFEST)) or is_folder(join(self.path, TOKENS)):
            return "token store"
        launch_file = join(self.path, "launch.py")
        raise ConfigError(
            message(
                given=f"{self.path}, a folder without {RESOLVED_CONFIG}, which a run folder has, "
                f"and without {MANIFEST}, which a token store has",
                allowed="a YAML file, a launch file, a run folder, or a store where one is asked "
                "for",
                fix=f"pass {launch_file}" if exists(launch_file) else "correct the path",
            )
        )

    def _require_file(self, *, has_known_suffix: bool) -> None:
        from chomp.config.messages import did_you_mean, nearest
        from chomp.storage import exists, is_folder, list_folder, name_of, parent_of

        if exists(self.path) and has_known_suffix:
            return
        folder = parent_of(self.path)
        names = list_folder(folder) if is_folder(folder) else []
        near = None if exists(self.path) else nearest(name_of(self.path), names)
        raise ConfigError(
            message(
                given=f"{self.path}, which is neither Python nor YAML by its name"
                if exists(self.path)
                else f"there is no {self.path}{did_you_mean(near)}",
                allowed="a YAML file (.yaml), a launch file (.py) or a run folder",
                fix="correct the path",
            )
        )
