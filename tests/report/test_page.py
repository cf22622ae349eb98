"""The text of the run page: one file, nothing loaded, every script allowed by its digest."""

import base64
import hashlib
import json
import math
import re

import pytest

from chomp.report.page import GENERATOR, UPLOT_VERSION, render
from tests.report import page_payload as made


def inline_scripts(page: str) -> list[str]:
    return re.findall(r"<script>(.*?)</script>", page, re.DOTALL)


def test_the_page_allows_exactly_its_own_scripts_and_loads_nothing():
    page = render(made.payload(made.run(0)))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
    digests = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        for script in inline_scripts(page)
    ]
    assert len(digests) == 2
    assert policy == (
        "default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digests[0]}' 'sha256-{digests[1]}'"
    )
    assert not re.search(r'\b(?:src|href)\s*=\s*["\']?(?:https?:|//)', page)
    assert "@import" not in page


def test_the_payload_comes_back_as_it_was_whatever_text_is_in_it():
    payload = made.payload(made.run(0, name=made.EVIL), notes=["<!-- @style@ {braces} \\u003c"])
    page = render(payload)
    held = re.search(r'id="payload">(.*?)</script>', page, re.DOTALL)[1]
    assert "<" not in held
    assert json.loads(held) == payload


def test_no_place_for_a_part_is_left_open_and_the_page_names_its_maker():
    page = render(made.payload(made.run(0)))
    assert f'<meta name="generator" content="{GENERATOR}">' in page
    assert "<title>run-a</title>" in page
    assert not re.search(r"@(policy|style|script|library|payload|title)@", page)


def test_the_bundled_library_is_the_version_that_is_stated():
    assert f"(v{UPLOT_VERSION})" in inline_scripts(render(made.payload(made.run(0))))[0]


def test_a_number_that_json_does_not_have_is_refused():
    run = made.run(0)
    run["numbers"]["eval/loss"] = math.nan
    with pytest.raises(ValueError, match="JSON compliant"):
        render(made.payload(run))


def test_half_a_surrogate_pair_is_no_hindrance():
    run = made.run(0, name="odd \ud800 name")
    run["series"]["odd/\udfff"] = run["series"]["train/loss"]
    page = render(made.payload(run))
    assert "odd ? name" in page
    assert page.encode().decode() == page
