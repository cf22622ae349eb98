"""Tables in a terminal: whole, in as much room as there is."""

from chomp.cli.output import print_rows

ROWS = [
    {"name": "a", "tokens": 1234, "text": "one two three four", "folder": "outputs/tokens/a-0123"},
    {"name": "b", "tokens": None, "text": "-", "folder": "outputs/tokens/b-4567"},
]


def lines_at(width: int, capsys, monkeypatch) -> list[str]:
    """What is printed in a terminal of that width."""
    monkeypatch.setenv("COLUMNS", str(width))
    print_rows(ROWS, title="stores")
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_a_table_that_fits_has_borders(capsys, monkeypatch):
    lines = lines_at(80, capsys, monkeypatch)
    assert "│ a    │  1,234 │ one two three four │ outputs/tokens/a-0123 │" in lines


def test_one_that_is_too_wide_loses_them_and_wraps_text_but_no_path(capsys, monkeypatch):
    assert "a      1,234  one two three four  outputs/tokens/a-0123" in lines_at(
        58, capsys, monkeypatch
    )
    lines = lines_at(48, capsys, monkeypatch)
    assert max(map(len, lines)) <= 48
    assert sum("outputs/tokens/a-0123" in line for line in lines) == 1
    assert not any("one two three four" in line for line in lines)


def test_one_that_cannot_fit_is_a_list_of_each_rows_values(capsys, monkeypatch):
    lines = lines_at(30, capsys, monkeypatch)
    assert lines[:2] == ["stores", "name    a"]
    assert "folder  outputs/tokens/a-0123" in lines
    assert "tokens  -" in lines


def test_in_a_pipe_a_table_is_as_wide_as_its_content(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    print_rows([{"text": "x" * 300}])
    assert f"│ {'x' * 300} │" in capsys.readouterr().out
