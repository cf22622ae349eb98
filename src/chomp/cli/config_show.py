"""`chomp config show` and `schema`: what a config comes to, and what it may be.

What is printed is plain YAML or JSON and nothing else, so that it can be kept as a file.
"""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chomp.cli.config_schema import file_schema
from chomp.cli.given_config import GivenConfig
from chomp.cli.launch_files import launch_class, loaded_launch, loaded_module
from chomp.cli.template_folder import LAUNCH_FILE, known_template, told_template
from chomp.errors import ConfigError, message
from chomp.tracking.run_files import DERIVED, RESOLVED_CONFIG


def show_config(given: GivenConfig) -> int:
    """Print a config with every field; the exit code. Secrets in it are not shown."""
    from chomp.config.files import to_yaml
    from chomp.tracking import redacted

    print(redacted(to_yaml(shown_mapping(given))), end="")
    return 0


def show_schema(template: str | None) -> int:
    """Print the JSON schema of YAML files for a template; the exit code."""
    path = str(known_template(template) / LAUNCH_FILE)
    schema = file_schema(launch_class(loaded_module(path), path))
    print(json.dumps(schema, indent=2, ensure_ascii=False))
    return 0


def shown_mapping(given: GivenConfig) -> dict[str, Any]:
    """A config as plain data: of a file with its template, so that it is a config file again."""
    from chomp.config import config_to_mapping

    if given.kind() in ("YAML file", "launch file"):
        launch = loaded_launch(given)
        launch.steps()  # refuses what no run could be made of
        template = told_template(Path(launch.path).parent, beside=given.path)
        return {"template": template, **config_to_mapping(launch.config)}
    given.refuse_options()
    return recorded_mapping(given)


def recorded_mapping(given: GivenConfig) -> dict[str, Any]:
    """The config that a run folder has, without what follows from it."""
    from chomp.storage import exists, join, read_json

    location = join(given.path, RESOLVED_CONFIG)
    content = read_json(location) if exists(location) else None
    if not isinstance(content, dict):
        raise ConfigError(
            message(
                given=f"{given.path}, a {given.kind()} without the config of a run",
                allowed="a YAML file, a launch file or a run folder",
                fix="pass the config or the run",
            )
        )
    return {key: value for key, value in content.items() if key != DERIVED}
