"""The page docs/tutorials/executor-101.md as a program: its file, its commands, what they print.

`python -m tests.launch.tutorial_page` writes what the commands print now into the page.
"""

import os
import re
import shlex
import tempfile
from pathlib import Path

from tests.forked_commands import ForkedCommands

PAGE = Path(__file__).parents[2] / "docs/tutorials/executor-101.md"
_CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)


def page_with_outputs(folder: Path, started: ForkedCommands) -> str:
    """The page with what its commands print, run one after the other in an empty folder."""
    [source] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (folder / "two_steps.py").write_text(source)

    def with_output(block: "re.Match[str]") -> str:
        asked = re.findall(r"^\$ (.*)$", block[1], re.MULTILINE)
        told = [f"$ {command}\n{_output(command, folder, started)}" for command in asked]
        return f"```console\n{''.join(told)}```"

    return _CONSOLE.sub(with_output, PAGE.read_text())


def _output(command: str, folder: Path, started: ForkedCommands) -> str:
    program, *words = shlex.split(command)
    if program == "echo":
        text, redirection, file = words
        assert redirection == ">>"
        with (folder / file).open("a") as opened:
            opened.write(f"{text}\n")
        return ""
    assert (program, words[0]) == ("python", "two_steps.py")
    env = {key: value for key, value in os.environ.items() if key != "CHOMP_PREFIX"}
    done = started.run("two_steps.py", *words[1:], env=env, cwd=folder)
    text = done.stdout + done.stderr  # the terminal of whoever reads shows both
    return text if text.endswith("\n") or not text else f"{text}\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as empty:
        forked = ForkedCommands("chomp.launch", env=os.environ)
        text = page_with_outputs(Path(empty), forked)
        forked.close()
    PAGE.write_text(text)
