"""Which lines and words count as changed: the fewest there can be, placed where they read best."""

import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.variants.file_changes import Content
from chomp.variants.line_changes import Block, common_pairs, line_changes, paired_rows, word_changes

FEW_KINDS = st.lists(st.sampled_from(["a\n", "b\n", "    c\n", "\n"]), max_size=12)
MANY = 5000

# Bytes before and after, where programs that count lines are known to disagree.
EDGES = {
    "both empty": (b"", b""),
    "from empty": (b"", b"a\nb\n"),
    "to empty": (b"a\nb\n", b""),
    "one empty line": (b"", b"\n"),
    "newline at the end taken away": (b"a\nb\n", b"a\nb"),
    "newline at the end added": (b"a\nb", b"a\nb\n"),
    "no newline on either side": (b"a\nb", b"a\nc"),
    "line added behind a last line without newline": (b"a", b"a\nb"),
    "windows line ends": (b"a\r\nb\r\n", b"a\nb\n"),
    "a form feed and a line separator end no line": (b"a\x0cb\n", "a\u2028b\nc\n".encode()),
    "not UTF-8": (b"\xff\xfe\n\xff\n", b"\xff\xfe\n\xfe\n"),
    "binary": (b"\x00\x01\n", b"\x00\x02\n\n"),
    "one line of a million characters": (b"x" * 10**6 + b"\n", b"x" * 10**6 + b"y\n"),
    "all lines alike": (b"a\n" * 900, b"a\n" * 400),
    "alike with one change": (b"a\n" * 400 + b"b\n" + b"a\n" * 9, b"a\n" * 380),
    "the longest run is not in the best answer": (
        b"".join(b"%d\n" % i for i in [9, 1, 9, 2, 9, 3, 7, 7, 7]),
        b"".join(b"%d\n" % i for i in [7, 7, 7, 9, 1, 9, 2, 9, 3]),
    ),
    "reversed": (
        b"".join(b"%d\n" % i for i in range(99)),
        b"".join(b"%d\n" % i for i in reversed(range(99))),
    ),
}


def longest_by_table(left: list[str], right: list[str]) -> int:
    """The length of the longest common subsequence as textbooks have it."""
    above = [0] * (len(right) + 1)
    for item in left:
        row = [0]
        for index, other in enumerate(right):
            row.append(above[index] + 1 if item == other else max(above[index + 1], row[index]))
        above = row
    return above[-1]


@given(FEW_KINDS, FEW_KINDS)
def test_as_many_lines_stay_as_can_and_the_blocks_cover_both_texts(left, right):
    pairs = common_pairs(left, right)
    assert len(pairs) == longest_by_table(left, right)
    assert all(left[i] == right[j] for i, j in pairs)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs))

    blocks = line_changes(left, right)
    rows = [row for block in blocks for row in paired_rows(block, left, right)]
    assert [row.left for row in rows if row.left is not None] == list(range(len(left)))
    assert [row.right for row in rows if row.right is not None] == list(range(len(right)))
    assert sum(block.added for block in blocks) == len(right) - len(pairs)
    assert sum(block.deleted for block in blocks) == len(left) - len(pairs)
    assert all(a.is_equal != b.is_equal for a, b in pairwise(blocks))
    for block in blocks:
        if block.is_equal:
            stays = right[block.right_start : block.right_end]
            assert left[block.left_start : block.left_end] == stays != []


@pytest.mark.parametrize("name", EDGES)
def test_lines_are_counted_as_git_counts_them(name: str, tmp_path: Path):
    left, right = EDGES[name]
    (tmp_path / "left").write_bytes(left)
    (tmp_path / "right").write_bytes(right)
    command = ["git", "diff", "--no-index", "--no-ext-diff", "--minimal", "--numstat"]
    told = subprocess.run(
        [*command, "left", "right"], cwd=tmp_path, capture_output=True, text=True
    ).stdout.split("\t")[:2]
    counted = [int(number) for number in told if number.isdigit()] or [0, 0]
    blocks = line_changes(Content(left).lines, Content(right).lines)
    assert [sum(block.added for block in blocks), sum(block.deleted for block in blocks)] == counted


def test_two_long_texts_that_share_every_line_in_another_order_are_compared_exactly():
    # Rows of the table are kept by the hundred and made again: this crosses many such borders.
    left = [f"{i}\n" for i in range(MANY)]
    shifted = [*left[MANY // 3 :], *left[: MANY // 3]]
    assert len(common_pairs(left, shifted)) == MANY - MANY // 3
    assert len(common_pairs(left, left[::-1])) == 1


def test_an_added_function_is_shown_as_itself_and_not_across_its_neighbour():
    first, second = "def f():\n    return 1\n\n\n", "def g():\n    return 1\n\n\n"
    left = f"{first}x = 1\n".splitlines(keepends=True)
    right = f"{first}{second}x = 1\n".splitlines(keepends=True)
    changed = [block for block in line_changes(left, right) if not block.is_equal]
    assert changed == [Block(False, 4, 4, 4, 8)]


def test_an_edited_line_stands_beside_what_it_was():
    left = ["width = config.hidden_dim\n"]
    right = ["# why\n", "depth = 3\n", "width = 2 * config.hidden_dim\n"]
    (block,) = line_changes(left, right)
    rows = [(row.left, row.right, row.is_pair) for row in paired_rows(block, left, right)]
    assert rows == [(None, 0, False), (None, 1, False), (0, 2, True)]


def marked(text: str, spans: list[tuple[int, int]]) -> list[str]:
    return [text[start:end] for start, end in spans]


def test_only_the_words_that_differ_are_marked_and_neighbours_are_one_mark():
    old, new = "x = f(alpha, beta)", "x = g(alpha, beta + one more)"
    before, after = word_changes(old, new)
    assert marked(old, before) == ["f"]
    assert marked(new, after) == ["g", " + one more"]
    assert word_changes(old, old) == ([], [])


def test_a_line_too_long_for_words_is_marked_between_its_common_ends():
    middle = "1, " * 4000
    before, after = word_changes(f"[{middle}0]", f"[9, {middle}0]")
    assert before == []
    assert len(after) == 1
    assert after[0][1] - after[0][0] == 3
    assert word_changes("", "new " * 4000) == ([], [(0, 16000)])


@given(st.text("ab (,", max_size=20), st.text("ab (,", max_size=20))
def test_what_is_not_marked_is_the_same_on_both_sides(old, new):
    before, after = word_changes(old, new)
    # But for spaces, which are marked where they stand between two marks.
    assert unmarked(old, before) == unmarked(new, after)


def unmarked(text: str, spans: list[tuple[int, int]]) -> str:
    inside = {index for start, end in spans for index in range(start, end)}
    kept = (letter for index, letter in enumerate(text) if index not in inside)
    return "".join(kept).replace(" ", "")
