"""The style of pages: what all have in common, and what a page of differences has beyond it."""

from importlib.resources import files


def page_style(own: str) -> str:
    """The common style and, after it, that of one kind of page."""
    return f"{_source('page_style.css')}\n{own}"


def diff_style() -> str:
    """The whole style of a page of differences, which other pages may show in a part of theirs."""
    return page_style(_source("diff_page.css"))


def _source(name: str) -> str:
    return files("chomp.variants").joinpath(name).read_text(encoding="utf-8")
