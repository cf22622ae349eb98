"""The environment of a command on a cluster: what was asked for, and what always goes along.

Values are never told, not even in errors: any of them may be a key.
"""

import re
import subprocess
from collections.abc import Mapping, Sequence

from chomp.errors import require

OPTION = "--env_vars"
# Asked for by trackers and by downloads; set here, they are meant for the command, too.
_ALWAYS = ("WANDB_API_KEY", "HF_TOKEN")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ALLOWED = "KEY=VALUE, KEY VALUE, or the KEY of a variable that is set here"


def split_environment_words(words: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """The words of each `--env_vars` (or `-e`), and all other words of the command line."""
    groups: list[list[str]] = []
    others: list[str] = []
    is_open = False
    for word in words:
        option, is_joined, value = word.partition("=")
        if option in (OPTION, "--env-vars", "-e"):
            groups.append([value] if is_joined else [])
            is_open = not is_joined
        elif is_open and not word.startswith("-"):
            groups[-1].append(word)
        else:
            is_open = False
            others.append(word)
    return groups, others


def job_environment(groups: Sequence[Sequence[str]], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that the groups of words ask for, with keys and the commit before them.

    Raises `ConfigError` for words that name nothing.
    """
    variables = {name: environ[name] for name in _ALWAYS if environ.get(name)}
    for words in groups:
        require(
            len(words) > 0,
            f"{OPTION} without anything behind it",
            allowed=_ALLOWED,
            fix=f"write for example {OPTION} GRUG_RUN_ID=trial",
        )
        variables |= _named_and_valued(words, environ)
    return variables


def git_commit() -> str | None:
    """The commit of this folder, with `-dirty` if files differ from it; None without git."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    return f"{commit}-dirty" if _git("status", "--porcelain") else commit


def _named_and_valued(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    if len(words) == 2 and not any("=" in word for word in words):
        key, value = words
        require(
            value not in environ,
            f"{OPTION} with two names of variables that could be a name and its value",
            allowed=_ALLOWED,
            fix=f"write KEY=VALUE, or {OPTION} twice to hand on both",
        )
        return {_checked(key): value}
    return dict(_one(word, environ) for word in words)


def _one(word: str, environ: Mapping[str, str]) -> tuple[str, str]:
    name, is_valued, value = word.partition("=")
    _checked(name)
    require(
        bool(is_valued) or name in environ,
        f"{OPTION} {name}, which is not set here",
        allowed=_ALLOWED,
        fix=f"export {name} first, or give its value: {name}=...",
    )
    return name, value if is_valued else environ[name]


def _checked(name: str) -> str:
    require(
        _NAME.fullmatch(name) is not None,
        f"{OPTION} with a name that is none (not shown: it may be a key)",
        allowed=_ALLOWED,
        fix="begin the name with a letter, and use letters, digits and _ only",
    )
    return name


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
