"""Pages of docs/recipes as programs: their files, their commands, and what these print.

`python -m tests.cli.recipe_pages` writes what the commands print now into the pages.
"""

import contextlib
import glob
import io
import os
import re
import shlex
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA, EVALUATE = (ROOT / "docs/recipes" / name for name in ("data.md", "evaluate.md"))
_CONSOLE = re.compile(r"```console\n\$ (?P<command>.*)\n(?P<output>(?:.*\n)*?)```")


def blocks(page: Path, kind: str) -> list[str]:
    """The blocks of one kind, in order."""
    return re.findall(rf"```{kind}\n(.*?)```", page.read_text(), re.DOTALL)


def page_with_outputs(page: Path, folder: Path) -> str:
    """A page with what its commands print, run one after the other in an empty folder."""
    (folder / "experiments").symlink_to(ROOT / "experiments")
    config, *others = blocks(page, "yaml")
    with contextlib.chdir(folder):
        exec(compile(blocks(page, "python")[0], str(page), "exec"), {})
        Path("mine.yaml").write_text(config)
        if page == EVALUATE:
            Path("tasks/after.yaml").write_text(others[0])
            for command in blocks(page, "sh")[0].splitlines():
                _printed(command)
        return _CONSOLE.sub(_with_output, page.read_text())


def without_what_varies(page: str) -> str:
    """The page without what depends on the machine: times, digits of losses, hashes, texts."""
    page = re.sub(r"\b[0-9a-f]{12}\b|0x[0-9a-f]{8}|(?<=-)[0-9a-f]{8}(?=\.json)", "…", page)
    page = re.sub(r"(?<=▸).*\n(?:[^\n`$]+\n)*", "…\n", page)
    return page


def without_numbers(page: str) -> str:
    """The page without numbers that a measurement gives, and the widths that go with them."""
    page = re.sub(r"\d[\d,]*\.\d+|\d[\d,]* tokens/s", "#", page)
    return re.sub(r" {2,}|[━─]{2,}", " ", page)


def _printed(command: str) -> str:
    """What a command prints, the blanks at the ends of lines left out."""
    from chomp.cli.main import exit_code

    program, *words = shlex.split(command)
    assert program == "chomp"
    words = [path for word in words for path in sorted(glob.glob(word)) or [word]]
    is_damaged = words[:2] == ["data", "verify"] and words[2].startswith("outputs/")
    damaged = [Path(words[2])] if is_damaged else []
    with contextlib.redirect_stdout(io.StringIO()) as out:
        # The damage that is shown is said on stderr, as is how long data takes to be built.
        errors = out if words[0] == "data" else io.StringIO()
        with contextlib.redirect_stderr(errors):
            for store in damaged:
                _flip_a_bit(store / "tokens/c/0")
            code = exit_code(words)
            for store in damaged:
                _flip_a_bit(store / "tokens/c/0")
    assert words[0] == "data" or code == 0
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _with_output(block: "re.Match[str]") -> str:
    return f"```console\n$ {block['command']}\n{_printed(block['command'])}```"


def _flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[1000] ^= 1
    file.write_bytes(content)


if __name__ == "__main__":
    for name in ("CHOMP_PREFIX", "COLUMNS"):
        os.environ.pop(name, None)
    for path in (DATA, EVALUATE):
        with tempfile.TemporaryDirectory() as empty:
            path.write_text(page_with_outputs(path, Path(empty)))
