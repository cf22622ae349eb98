"""Text of others on a terminal: shown, and never obeyed."""

import io
import logging

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from chomp.storage.printable import PlainConsole, PlainFormatter, escaped

EVIL = "a\x1b[2Jb\x9bc\x07d\x7f\u202ee\ud800"
SHOWN = r"a\x1b[2Jb\x9bc\x07d\x7f\u202ee\ud800"


def test_what_a_terminal_would_obey_is_escaped_and_the_rest_stays():
    assert escaped(EVIL) == SHOWN
    assert escaped("tab\tline\nč 🎉 \\x1b") == "tab\tline\nč 🎉 \\x1b"


def test_a_console_obeys_neither_controls_nor_markup_in_what_it_prints():
    out = io.StringIO()
    # A terminal: what rich itself says of colours has escapes of its own, which stay.
    console = PlainConsole(file=out, force_terminal=True, width=200)
    table = Table(EVIL)
    table.add_row(f"[link=file:///etc]{EVIL}[/nothing]")
    for item in (table, Panel(Text(EVIL, style="red"), title=Text(EVIL)), "\x1b[2J"):
        console.print(item)
    text = out.getvalue()
    assert "\x1b[31m" in text
    assert "[link=file:///etc]" in text
    assert not [sign for sign in ("\x1b[2J", "\x9b", "\u202e", "\x07") if sign in text]


def test_log_messages_are_escaped():
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "run %s", (EVIL,), None)
    assert PlainFormatter().format(record) == f"run {SHOWN}"
