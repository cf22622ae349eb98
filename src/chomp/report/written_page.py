"""A page written down: `index.html` in a folder, never over somebody else's."""

from pathlib import Path
from typing import Any

from chomp.errors import require
from chomp.report.page import GENERATOR, render
from chomp.report.payload import page_payload
from chomp.report.record import read_record
from chomp.report.run_payload import run_payload
from chomp.storage import join, make_folder, read_bytes, write_text_atomic
from chomp.storage.files import require_inside
from chomp.tracking.run_files import REPORT

PAGE = "index.html"
# The mark of a page stands in its head.
_HEAD_BYTES = 4000


def page_of_run(folder: str) -> str:
    """Where the page of one run is, unless somebody asked for another place."""
    return join(folder, REPORT, PAGE)


def write_run_page(folder: str) -> str:
    """The path of the run's own page, once it is drawn from the folder as it is now."""
    require_inside(join(folder, REPORT), folder)
    runs = [run_payload(read_record(folder))]
    return write_page(page_payload(runs), Path(folder, REPORT))


def remove_run_page(folder: str) -> None:
    """Remove the run's own page, if it has one, before the run goes on; never somebody else's."""
    page = Path(page_of_run(folder))
    if _is_ours(page):
        page.unlink(missing_ok=True)


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
        not page.exists() or _is_ours(page),
        f"{page} exists and was not written by this program",
        allowed="a new folder, or one with an earlier page of runs",
        fix="choose another folder with --out, or remove that page",
    )


def _is_ours(page: Path) -> bool:
    """Whether there is a page, and it is one of this program."""
    mark = f'content="{GENERATOR}"'.encode()
    return page.is_file() and mark in read_bytes(page)[:_HEAD_BYTES]
