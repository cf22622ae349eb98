"""The page docs/recipes/evaluate.md as a program: its files, its commands, and what they print.

`python -m tests.cli.evaluation_page` writes what the commands print now into the page.
"""

import contextlib
import io
import os
import re
import shlex
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/recipes/evaluate.md"
_CONSOLE = re.compile(r"```console\n\$ (?P<command>.*)\n(?P<output>(?:.*\n)*?)```")


def blocks(kind: str) -> list[str]:
    """The blocks of one kind, in order."""
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def page_with_outputs(folder: Path) -> str:
    """The page with what its commands print, run one after the other in an empty folder."""
    (folder / "experiments").symlink_to(ROOT / "experiments")
    config, task = blocks("yaml")
    with contextlib.chdir(folder):
        exec(compile(blocks("python")[0], str(PAGE), "exec"), {})
        Path("mine.yaml").write_text(config)
        Path("tasks/after.yaml").write_text(task)
        for command in blocks("sh")[0].splitlines():
            printed(command)
        return _CONSOLE.sub(_with_output, PAGE.read_text())


def printed(command: str) -> str:
    """What a command prints to stdout, the blanks at the ends of lines left out."""
    from chomp.cli.main import exit_code

    program, *words = shlex.split(command)
    assert program == "chomp"
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()),
    ):
        assert exit_code(words) == 0
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def without_numbers(page: str) -> str:
    """The page without what depends on the machine: times, the digits of losses, hashes, texts."""
    page = re.sub(r"-[0-9a-f]{8}\.json", "-….json", page)
    page = re.sub(r"(?<=▸).*\n(?:[^\n`$]+\n)*", "…\n", page)
    page = re.sub(r"\d[\d,]*\.\d+|\d[\d,]* tokens/s", "#", page)
    return re.sub(r" {2,}|[━─]{2,}", " ", page)


def _with_output(block: "re.Match[str]") -> str:
    return f"```console\n$ {block['command']}\n{printed(block['command'])}```"


if __name__ == "__main__":
    os.environ.pop("CHOMP_PREFIX", None)
    with tempfile.TemporaryDirectory() as empty:
        PAGE.write_text(page_with_outputs(Path(empty)))
