"""The page and its summaries: all of the source and nothing but the source, coloured and folded."""

import html
import json
import re
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.errors import ConfigError
from chomp.variants.diff import Content, FolderChanges, changed_files, line_hunks
from chomp.variants.diff_page import code_text, rows_html, totals_text, write_report

NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
# Half of Python, and what HTML and tokenizers stumble over.
PIECES = [
    "def f(",
    "'''",
    '"a"',
    "f'{x}'",
    "<b>",
    "&amp;",
    "</script>",
    "\t",
    "é",
    "# c",
    "\\",
    "0x",
]
LINES = st.lists(st.lists(st.sampled_from(PIECES), max_size=4).map("".join), max_size=8)


class Cells(HTMLParser):
    """The text of every line of a page, by side; what is spelled out for a reader is left out."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.lines: dict[str, list[str]] = {"l": [], "r": []}
        self.cells: list[str] = []  # left and right in turn, empty ones included
        self.tags: list[str] = []
        self._open: list[str] = []
        self.feed(page)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The cells that stand beside each other."""
        return list(zip(self.cells[::2], self.cells[1::2], strict=True))

    def handle_starttag(self, tag, attrs):
        kind = dict(attrs).get("class") or ""
        self._open.append(kind)
        self.tags.append(tag)
        if tag == "div" and kind[:1] in ("l", "r"):
            self.cells.append("")
            if "none" not in kind:
                self.lines[kind[0]].append("")

    def handle_endtag(self, tag):
        self._open.pop()

    def handle_data(self, data):
        side = next((kind[0] for kind in self._open if kind.split()[:1] in (["l"], ["r"])), None)
        if side and "unseen" not in self._open:
            self.lines[side][-1] += data
            self.cells[-1] += data


def changes_of(left: dict[str, bytes], right: dict[str, bytes], **options) -> FolderChanges:
    sides = [{name: Content(data) for name, data in side.items()} for side in (left, right)]
    facts = {"left_label": "base", "right_label": "moe", "extensions": None} | options
    return FolderChanges(**facts, files=changed_files(*sides))


def rows_of(path: str, left: list[str], right: list[str], context_lines: int = 3) -> str:
    """The comparison of two texts, given as lines with their ends."""
    return rows_html(path, left, right, line_hunks(left, right), context_lines)


def page_of(tmp_path, left: dict[str, bytes], right: dict[str, bytes], **options) -> str:
    write_report(changes_of(left, right), tmp_path / "out", made_at=NOON, **options)
    return (tmp_path / "out" / "index.html").read_text()


@given(LINES, LINES, st.integers(0, 2))
def test_every_line_of_both_sides_is_on_the_page_as_it_is_in_the_file(left, right, context):
    sides = [[f"{line}\n" for line in side] for side in (left, right)]
    cells = Cells(rows_of("a.py", *sides, context_lines=context))
    assert cells.lines == {"l": left, "r": right}
    assert set(cells.tags) <= {"div", "span", "mark", "details", "summary", "code"}


def test_source_that_looks_like_html_stays_text(tmp_path):
    evil = b"</script><script>alert(1)</script> <img src=x onerror=alert(2)> \"'&\n"
    page = page_of(tmp_path, {}, {"<img src=x>.py": evil, "b.md": evil, "c.yaml": evil})
    assert page.count("<script>") == 1
    assert "<img" not in page
    assert "onerror" in page
    assert Cells(page).lines["r"] == [evil.decode().strip()] * 3


def test_labels_and_names_are_escaped_too(tmp_path):
    changes = changes_of({"a\u202eb.py": b"x\n"}, {}, left_label="<u>", right_label="&")
    page = write_report(changes, tmp_path / "out", made_at=NOON).read_text()
    assert "<u>" not in page
    assert "\u202e" not in page
    assert "U+202E" in page


def test_the_page_names_folders_filter_and_time_and_counts_files_and_lines(tmp_path):
    page = page_of(
        tmp_path,
        {"a.py": b"1\n2\n", "gone.py": b"x\n", "same.py": b"s\n"},
        {"a.py": b"1\n3\n4\n", "new.py": b"y\nz\n", "same.py": b"s\n"},
    )
    text = re.sub(r"<[^>]+>", "", page.partition("<body>")[2].partition("<nav")[0])
    words = " ".join(text.replace("&rarr;", "→").replace("&minus;", "-").split())
    assert words.startswith("base → moe all files &middot; 2026-01-02 12:00 UTC")
    assert "1 changed 1 added 1 removed 1 unchanged +4 -2 lines" in words
    assert 'href="#file-a.py"' in page
    assert 'id="file-a.py"' in page
    assert "same.py" not in page


def test_equal_files_are_listed_when_asked_for_and_equal_folders_say_so(tmp_path):
    same = {"same.py": b"s\nt\n"}
    assert "The folders are equal." in page_of(tmp_path, same, same)
    page = page_of(tmp_path, same, same, show_unchanged=True)
    assert Cells(page).lines == {"l": ["s", "t"], "r": ["s", "t"]}


def test_nothing_is_loaded_from_anywhere_and_only_the_own_script_may_run(tmp_path):
    page = page_of(tmp_path, {}, {"a.py": b"x\n"})
    assert not re.search(r'(?:src|href)="(?!#)|url\(|@import|https?:', page)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    assert policy.startswith("default-src 'none'")
    assert re.search(r"script-src 'sha256-[\w+/=]+'$", policy)


@pytest.mark.parametrize(("context", "folded"), [(0, [17, 2]), (3, [14]), (8, [9]), (30, [])])
def test_unchanged_lines_beyond_the_context_are_folded(context, folded):
    left = [f"{i}\n" for i in range(20)]
    right = [*left[:17], "new\n", *left[18:]]
    shown = rows_of("a.md", left, right, context_lines=context)
    found = [int(n) for n in re.findall(r"<span>(\d+) unchanged lines", shown)]
    assert found == folded


def test_a_fold_names_the_definition_that_follows_it():
    body = [f"    x{i} = {i}\n" for i in range(20)]
    left = ["class A:\n", "  def f(self):\n", *body]
    shown = rows_of("a.py", left, [*left[:-1], "    y = 1\n"], context_lines=2)
    assert "<code>def f</code>" in shown


def test_binary_empty_renamed_and_unended_files_are_told_in_words(tmp_path):
    body = b"".join(b"line %d\n" % i for i in range(9))
    page = page_of(
        tmp_path,
        {"b.bin": b"\0", "old.py": body, "end.py": b"x\n"},
        {"b.bin": b"\0\0", "empty.py": b"", "new.py": body + b"z\n", "end.py": b"x"},
    )
    assert "Binary: 1 bytes &rarr; 2 bytes." in page
    assert "Empty." in page
    assert "Was old.py (90% alike)" in page
    assert 'Is <a href="#file-new.py">new.py</a> now' in page
    assert page.count("no newline at end of file") == 1


def test_what_a_browser_hides_is_spelled_out():
    shown = rows_of("a.md", ["a\r\x00\u202e\udcff\ufeffb\n"], [])
    names = re.findall(r'<span class="unseen">([^<]+)</span>', shown)
    assert names == ["CR", "NUL", "U+202E", "\\xff", "BOM"]


def coloured(path: str, lines: list[str]) -> list[list[tuple[str, str]]]:
    """The coloured texts of each line and their classes, of a file that is new."""
    cells = re.findall(r'<div class="r add"[^>]*>(.*?)</div>', rows_of(path, [], lines))
    spans = (re.findall(r'<span class="(\w+)">(.*?)</span>', cell) for cell in cells)
    return [[(html.unescape(text), name) for name, text in line] for line in spans]


def test_python_is_coloured():
    source = (
        '@jit\ndef f(x: int) -> str:  # why\n    """Long\n    text."""\n    return "a" + 0x1F\n'
    )
    lines = source.splitlines(keepends=True)
    assert coloured("a.py", lines) == [
        [("@jit", "decorator")],
        [
            ("def", "keyword"),
            ("f", "definition"),
            ("int", "builtin"),
            ("str", "builtin"),
            ("# why", "comment"),
        ],
        [('"""Long', "string")],
        [('    text."""', "string")],
        [("return", "keyword"), ('"a"', "string"), ("0x1F", "number")],
    ]
    assert coloured("a.md", lines) == [[]] * 5


@pytest.mark.parametrize("broken", ["  x = (\n", "a $ b\n", "x = 'half\n"])
def test_broken_python_has_colours_too(broken):
    lines = ["if True:\n", "    pass\n", broken, "return 'text'  # why\n"]
    colours = coloured("a.py", lines)
    assert colours[0][0] == ("if", "keyword")
    assert colours[3] == [("return", "keyword"), ("'text'", "string"), ("# why", "comment")]


def test_an_edited_line_stands_beside_its_old_text():
    page = Cells(
        rows_of(
            "a.md",
            ["width = config.hidden_dim\n"],
            ["# why\n", "depth = 3\n", "width = 2 * config.hidden_dim\n"],
        )
    )
    assert page.pairs == [
        ("", "# why"),
        ("", "depth = 3"),
        ("width = config.hidden_dim", "width = 2 * config.hidden_dim"),
    ]


def marked(old: str, new: str) -> list[list[str]]:
    """The marked parts of an edited line, on the left and on the right."""
    shown = rows_of("a.md", [f"{old}\n"], [f"{new}\n"])
    cells = re.findall(r'<div class="[lr] (?:del|add)[^>]*>(.*?)</div>', shown)
    return [[html.unescape(m) for m in re.findall("<mark>(.*?)</mark>", cell)] for cell in cells]


def test_only_the_words_that_differ_are_marked_and_neighbours_are_one_mark():
    assert marked("x = f(alpha, beta)", "x = g(alpha, beta + one more)") == [
        ["f"],
        ["g", " + one more"],
    ]
    assert marked("a b c = one two + 3", "a b c = three four + 3") == [["one two"], ["three four"]]


def test_a_line_too_long_for_words_is_marked_between_its_common_ends():
    middle = "1, " * 4000
    assert marked(f"[{middle}0]", f"[9, {middle}0]") == [[], ["9, "]]


@given(st.text("ab (,", min_size=1, max_size=20), st.text("ab (,", min_size=1, max_size=20))
def test_what_is_not_marked_is_the_same_on_both_sides(old, new):
    old, new = f"same {old}", f"same {new}"
    shown = rows_of("a.md", [f"{old}\n"], [f"{new}\n"])
    cells = re.findall(r'<div class="[lr] (?:del|add)[^>]*>(.*?)</div>', shown)
    if len(cells) == 2 and "<mark>" in shown:  # else they are no pair
        # Spaces between two marks are marked too.
        left, right = (re.sub("<mark>.*?</mark>| ", "", cell) for cell in cells)
        assert left == right


def test_a_very_long_line_gets_a_window_of_its_own_and_no_colours():
    line = "x = [" + "1, " * 5000 + "]\n"
    shown = rows_of("a.py", [], [line])
    assert 'class="r add long"' in shown
    assert "number" not in shown


def test_the_summaries_say_what_the_page_says(tmp_path):
    body = b"".join(b"line %d\n" % i for i in range(9))
    left, right = {"a|`b.py": b"1\n", "old.py": body}, {"a|`b.py": b"2\n3\n", "new.py": body}
    page_of(tmp_path, left, right)
    facts = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert facts["status_counts"] == {"changed": 1, "added": 1, "removed": 1, "unchanged": 0}
    assert (facts["added_lines"], facts["deleted_lines"]) == (11, 10)
    assert facts["made_at"] == "2026-01-02T12:00:00+00:00"
    assert facts["files"][1]["renamed_from"] == "old.py"
    assert facts["files"][2]["renamed_to"] == "new.py"
    table = (tmp_path / "out" / "summary.md").read_text()
    assert table.startswith(
        "# `base` → `moe`\n\n1 changed, 1 added, 1 removed, 0 unchanged; +11 -10"
    )
    assert "| changed | `a\\|'b.py` | +2 -1 |" in table
    assert "| added | `new.py` (was `old.py`) | +9 -0 |" in table


def test_equal_folders_have_a_summary_too(tmp_path):
    page_of(tmp_path, {}, {})
    assert "No difference." in (tmp_path / "out" / "summary.md").read_text()
    assert totals_text(changes_of({}, {})).startswith("0 changed, 0 added")


def test_code_in_a_table_cannot_leave_its_cell():
    assert code_text("a|b`c\nd") == "`a\\|b'c\N{REPLACEMENT CHARACTER}d`"


def test_an_earlier_report_is_replaced_and_somebody_elses_page_is_not(tmp_path):
    page = tmp_path / "out" / "index.html"
    page_of(tmp_path, {}, {"a.py": b"first\n"})
    assert "second" in page_of(tmp_path, {}, {"a.py": b"second\n"})
    page.write_text("<h1>my site</h1>")
    with pytest.raises(ConfigError) as caught:
        page_of(tmp_path, {}, {})
    assert "report" in caught.value.given
    assert page.read_text() == "<h1>my site</h1>"


def test_context_below_nothing_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError) as caught:
        page_of(tmp_path, {}, {}, context_lines=-1)
    assert "context_lines=-1" in caught.value.given
    assert not (tmp_path / "out").exists()
