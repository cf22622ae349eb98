"""Config files: YAML or JSON text on a local disk to a config, and a config to YAML text.

Reading only. Who writes a config file decides where and how atomically (`chomp.storage`).
"""

import json
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from chomp.config.fields import ConfigClass
from chomp.config.parsing import config_from_mapping, config_to_mapping
from chomp.config.words import did_you_mean, nearest
from chomp.config.yaml_text import parsed_yaml, yaml_of
from chomp.errors import ConfigError

C = TypeVar("C", bound=ConfigClass)


def load_config(cls: type[C], path: str | Path) -> C:
    """The config in a file: JSON if its name ends in `.json`, else YAML.

    An empty file gives the defaults. Raises `ConfigError`, headed by the file's name, for a file
    that cannot be read, for a key written twice and for everything `config_from_mapping` refuses.
    """
    path = Path(path)
    text = _text_of(path)
    mapping = _parsed_json(text, path) if path.suffix == ".json" else _parsed_yaml(text, path)
    return config_from_mapping(cls, mapping, source=str(path))


def config_to_yaml(config: ConfigClass) -> str:
    """The config as YAML text that `load_config` reads back equal: every field, declared order."""
    return yaml_of(config_to_mapping(config))


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = nearest(path.name, _names_beside(path))
        raise ConfigError(
            f"there is no config file {path}{did_you_mean(near)}",
            allowed="the path of a YAML or JSON file",
            fix=f"pass {path.with_name(near)}" if near else "check the path",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the config file {path} cannot be read: {error}",
            allowed="a YAML or JSON file in UTF-8",
            fix="pass the path of such a file",
        ) from error


def _names_beside(path: Path) -> list[str]:
    """The files a misspelt name may have meant; none if the folder cannot be read either."""
    try:
        return [other.name for other in path.parent.iterdir()]
    except OSError:
        return []


def _parsed_yaml(text: str, path: Path) -> Any:
    content = parsed_yaml(text, source=str(path))
    return {} if content is None else content


def _parsed_json(text: str, path: Path) -> Any:
    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON number")

    try:
        return json.loads(
            # An empty file means the same in both formats.
            text or "{}",
            object_pairs_hook=_unique_keys,
            parse_constant=refuse_constant,
        )
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} cannot be read as JSON: {error}",
            allowed="one JSON object, each key once",
            fix="correct the text at that point",
        ) from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; the decoder itself would let the last of two equal keys win."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} is written twice")
        result[key] = value
    return result
