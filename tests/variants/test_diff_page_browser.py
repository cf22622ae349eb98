"""The diff page in a real browser: views, keys, colours, and nothing asked of a network."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from chomp.variants.diff import Content, FolderChanges, changed_files
from chomp.variants.diff_page import write_report
from tests.chromium_pipe import MISSING, ChromiumPage, browser

pytestmark = pytest.mark.skipif(browser() is None, reason=MISSING)

BODY = [f"    x{i} = {i}\n" for i in range(60)]
EDITED = [*BODY[:10], "    new = 1\n", *BODY[10:40], "    x40 = 4040\n", *BODY[41:]]
LEFT = {
    "model.py": "".join(["def f():\n", *BODY]),
    "wide.py": "x = '" + "a" * 20_000 + "'\n",
    "gone.py": "import os\n",
}
RIGHT = {
    "model.py": "".join(["def f():\n", *EDITED]),
    "wide.py": "x = '" + "a" * 20_000 + "b'\n",
    "evil.md": "</script><script>document.title = 'broken'</script><img src=http://evil.test/x>\n",
}
VIEW = "document.documentElement.dataset.view"
HERE = "[...document.querySelectorAll('.change')].findIndex((c) => c.matches('.here'))"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
# Where the two lines of an edit are seen: the second change of the first file.
CELLS = "document.querySelectorAll('.change')[1].querySelectorAll('div')"
EDGES = f"[...{CELLS}].map((cell) => cell.getBoundingClientRect()).map((box) => [box.x, box.y])"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    sides = [
        {name: Content(text.encode()) for name, text in tree.items()} for tree in (LEFT, RIGHT)
    ]
    changes = FolderChanges("base", "moe", None, changed_files(*sides))
    return write_report(changes, tmp_path_factory.mktemp("report")).as_uri()


@pytest.fixture
def page(chromium: ChromiumPage, address: str) -> Iterator[ChromiumPage]:
    """The page as a new reader sees it, on a wide screen; at the end, nothing has gone wrong."""
    chromium.look()
    chromium.open(address)
    chromium.value("localStorage.clear()")
    chromium.open(address)
    chromium.requests.clear()
    yield chromium
    assert chromium.errors == []
    assert all(request == address for request in chromium.requests)


def test_source_is_shown_and_not_run(page):
    assert page.value("document.title") == "base → moe"
    assert page.value("document.images.length") == 0
    shown = page.value("document.getElementById('file-evil.md').textContent")
    assert RIGHT["evil.md"].strip() in shown


def test_the_two_views_show_an_edited_line_beside_or_below_what_it_was(page):
    assert page.value(VIEW) == "split"
    (left_x, left_y), (right_x, right_y) = page.value(EDGES)
    assert right_x > left_x
    assert right_y == left_y
    page.press("u")
    assert page.value(VIEW) == "unified"
    (left_x, left_y), (right_x, right_y) = page.value(EDGES)
    assert right_x == left_x
    assert right_y > left_y


def test_the_chosen_view_and_theme_are_remembered_for_the_page(page, address):
    before = page.value(BACKGROUND)
    page.value("document.getElementById('view').click()")
    page.value("document.getElementById('theme').click()")
    page.open(address)
    assert page.value(VIEW) == "unified"
    assert page.value("document.getElementById('view').textContent") == "Split"
    assert page.value(BACKGROUND) != before


def test_a_page_without_storage_works_and_remembers_nothing(page, address):
    forbidden = "Object.defineProperty(window, 'localStorage', {get() { throw new Error('no') }})"
    script = page.send("Page.addScriptToEvaluateOnNewDocument", source=forbidden)
    page.open(address)
    page.press("u")
    assert page.value(VIEW) == "unified"
    page.send("Page.removeScriptToEvaluateOnNewDocument", **script)
    page.open(address)
    assert page.value(VIEW) == "split"


def test_keys_move_between_changes_in_order_and_stop_at_the_ends(page):
    count = page.value("document.querySelectorAll('.change').length")
    assert count == 5  # an added line, an edited one, the wide line, an added and a removed file
    places = []
    for key in "jnjjj" + "jkp":
        page.press(key)
        places.append(page.value(HERE))
    assert places == [0, 1, 2, 3, 4, 4, 3, 2]
    assert page.value("document.getElementById('position').textContent") == "3 / 5"
    box = "document.querySelector('.here').getBoundingClientRect()"
    assert page.value(f"{box}.top >= 0 && {box}.top < innerHeight")
    for key, name in [("K", "model.py"), ("J", "wide.py"), ("j", "")]:
        page.press(key)
        assert page.value("document.querySelector('.here').id").removeprefix("file-") == name
    assert page.value(HERE) == 2


def test_help_opens_with_its_key_and_closes_with_it(page):
    is_open = "document.getElementById('keys').open"
    assert page.value(is_open) is False
    page.press("?")
    assert page.value(is_open) is True
    page.press("u")
    assert page.value(VIEW) == "split"  # other keys wait until it is closed
    page.press("?")
    assert page.value(is_open) is False


def test_unchanged_lines_are_folded_until_asked_for(page):
    seen = "[...document.querySelectorAll('.fold .block')].map((block) => block.checkVisibility())"
    assert page.value(seen) == [False] * 3
    page.value("document.querySelector('.fold summary').click()")
    assert page.value(seen) == [True, False, False]
    page.press("e")
    assert page.value(seen) == [True] * 3
    page.press("e")
    assert page.value(seen) == [False] * 3


def test_the_system_decides_on_dark_until_the_reader_does(page, address):
    light = page.value(BACKGROUND)
    page.look(scheme="dark")
    dark = page.value(BACKGROUND)
    assert sum(channels(dark)) < 150 < 600 < sum(channels(light))
    page.press("t")
    assert page.value(BACKGROUND) == light


def channels(colour: str) -> list[int]:
    return [int(part) for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]


@pytest.mark.parametrize("width", [400, 1280])
def test_no_line_makes_the_page_wider_than_the_screen(page, address, width):
    page.look(width=width)
    page.open(address)
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value(VIEW) == ("unified" if width == 400 else "split")


def test_a_link_to_a_file_leads_to_it_though_it_was_closed(page):
    file = "document.getElementById('file-gone.py')"
    page.value(f"{file}.open = false")
    page.value("document.querySelector('.files a[href=\"#file-gone.py\"]').click()")
    # The event of a new address comes after the click's own.
    page.send(
        "Runtime.evaluate",
        expression="new Promise((done) => setTimeout(done, 0))",
        awaitPromise=True,
    )
    assert page.value(f"{file}.open") is True


def test_a_picture_shows_the_changed_lines_in_their_colours(page, tmp_path: Path):
    page.press("j")
    page.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    colour = "getComputedStyle(document.querySelector('.add')).backgroundColor"
    red, green, _ = channels(page.value(colour))
    assert green > red
