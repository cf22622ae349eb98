"""A page written down: `index.html` in a folder, never over somebody else's."""

from pathlib import Path
from typing import Any

from chomp.errors import require
from chomp.report.page import GENERATOR, render
from chomp.report.payload import page_payload
from chomp.report.record import read_record
from chomp.report.run_payload import run_payload
from chomp.storage import join, make_folder, read_bytes, write_text_atomic
from chomp.tracking.run_files import REPORT

PAGE = "index.html"
# The mark of a page stands in its head.
_HEAD_BYTES = 4000


def page_of_run(folder: str) -> str:
    """Where the page of one run is, unless somebody asked for another place."""
    return join(folder, REPORT, PAGE)


def write_run_page(folder: str) -> str:
    """The path of the run's own page, once it is drawn from the folder as it is now."""
    runs = [run_payload(read_record(folder))]
    return write_page(page_payload(runs), Path(folder, REPORT))


def write_page(payload: dict[str, Any], out: Path) -> str:
    """The page's path, once it is in `out`, which is made. An earlier page there is replaced."""
    require_free(out)
    make_folder(out)
    write_text_atomic(out / PAGE, render(payload))
    return str(out / PAGE)


def require_free(out: Path) -> None:
    """Raise `ConfigError` if `out` holds a page that is not one of these."""
    page = out / PAGE
    require(
        not page.exists() or f'content="{GENERATOR}"'.encode() in read_bytes(page)[:_HEAD_BYTES],
        given=f"{page} is there, and is not a page of this program",
        allowed="a folder that is new, or holds an earlier page of runs",
        fix="choose another folder with --out, or remove that page",
    )
