"""The page docs/recipes/data.md as a program: its files, its commands, and what they print.

`python -m tests.cli.recipe_page` writes what the commands print now into the page.
"""

import contextlib
import glob
import io
import os
import re
import shlex
import tempfile
from pathlib import Path

from chomp.cli.main import exit_code

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/recipes/data.md"
_CONSOLE = re.compile(r"```console\n\$ (?P<command>.*)\n(?P<output>(?:.*\n)*?)```")


def blocks(kind: str) -> list[str]:
    """The blocks of one kind, in order."""
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def page_with_outputs(folder: Path) -> str:
    """The page with what its commands print, run one after the other in an empty folder."""
    (folder / "experiments").symlink_to(ROOT / "experiments")
    (folder / "mine.yaml").write_text(blocks("yaml")[0])
    with contextlib.chdir(folder):
        exec(compile(blocks("python")[0], str(PAGE), "exec"), {})
        return _CONSOLE.sub(_with_output, PAGE.read_text())


def without_hashes(page: str) -> str:
    """The page without what depends on more than the page: hashes, and the damaged bits."""
    return re.sub(r"\b[0-9a-f]{12}\b|0x[0-9a-f]{8}", "…", page)


def _with_output(block: "re.Match[str]") -> str:
    program, *words = shlex.split(block["command"])
    assert program == "chomp"
    if words[:2] == ["data", "verify"] and words[2].startswith("outputs/"):
        _flip_a_bit(Path(glob.glob(words[2])[0]) / "tokens/c/0")
    found = [path for word in words for path in sorted(glob.glob(word)) or [word]]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        exit_code(found)
    if words[:2] == ["data", "verify"] and words[2].startswith("outputs/"):
        _flip_a_bit(Path(glob.glob(words[2])[0]) / "tokens/c/0")
    # rich pads its lines to the width of a table.
    lines = "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
    return f"```console\n$ {block['command']}\n{lines}```"


def _flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[1000] ^= 1
    file.write_bytes(content)


if __name__ == "__main__":
    os.environ.pop("CHOMP_PREFIX", None)
    with tempfile.TemporaryDirectory() as empty:
        PAGE.write_text(page_with_outputs(Path(empty)))
