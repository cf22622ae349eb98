"""Variables of a config file: whole values keep their type, inside of text they become text."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.config.files import parse_yaml, replace_variables
from chomp.errors import ConfigError

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("ab ")
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("xy"), inner)
)
names = st.lists(st.from_regex(r"[a-z][\w-]{0,5}", fullmatch=True), min_size=1, max_size=3)


def read(text: str) -> Any:
    return replace_variables(parse_yaml(text, source="a file"), source="a file")


def refused(content: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        replace_variables(content, source="a file")
    return str(caught.value)


@given(names, values)
def test_a_whole_value_is_what_the_variable_is_at_any_depth(name: list[str], value: Any):
    variables: Any = value
    for part in reversed(name):
        variables = {part: variables}
    use = f"$variables.{'.'.join(name)}"
    content = {"variables": variables, "a": {"b": [use, use]}, "c": 1}
    found = replace_variables(content, source="a file")
    assert found == {"a": {"b": [value, value]}, "c": 1}
    assert type(found["a"]["b"][0]) is type(value)


@given(values)
def test_a_file_without_variables_stays_as_it_is(value: Any):
    assert replace_variables({"a": value}, source="a file") == {"a": value}


@pytest.mark.parametrize("written", ["{$variables.x}", "${variables.x}"])
@pytest.mark.parametrize(
    ("value", "text"),
    [("wide", "wide"), (256, "256"), (True, "true"), (None, "null"), (0.5, "0.5")],
)
def test_inside_of_text_a_variable_is_its_text_as_yaml_writes_it(written, value, text):
    content = {"variables": {"x": value}, "run_id": f"a-{written}/{written}"}
    assert replace_variables(content, source="f") == {"run_id": f"a-{text}/{text}"}
    # Alone it is text as well: braces are for text.
    content = {"variables": {"x": value}, "run_id": written}
    assert replace_variables(content, source="f") == {"run_id": text}


def test_variables_may_use_each_other_in_any_order():
    content = read(
        'variables: {name: "{$variables.size}-${variables.kind.short}", size: $variables.n, '
        "n: 3, kind: {short: moe}}\nrun_id: $variables.name\nsteps: $variables.size\n"
    )
    assert content == {"run_id": "3-moe", "steps": 3}


def test_names_that_yaml_takes_for_numbers_are_names():
    content = read("variables: {1: x, a: {2: y}}\nb: $variables.1\nc: '{$variables.a.2}'\n")
    assert content == {"b": "x", "c": "y"}


def test_two_uses_of_one_list_are_two_lists():
    found = replace_variables(
        {"variables": {"x": [1]}, "a": "$variables.x", "b": "$variables.x"}, source="f"
    )
    found["a"].append(2)
    assert found["b"] == [1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"variables": {"width": 1}, "a": "$variables.widht"}, "did you mean width?"),
        ({"variables": {"a": {"bc": 1}}, "d": "$variables.a.bd"}, "Fix: write $variables.a.bc."),
        ({"variables": {1.5: 1}, "d": "$variables.1.5"}, "variables: there are none"),
        ({"a": {"b": "$variables.x"}}, "a.b: there is no variable x"),
        ({"variables": {"x": 1}, "a": "$variables.x.y"}, "there is no variable x.y"),
        ({"variables": {"x": "$variables.x"}, "a": 1}, "x -> x"),
        (
            {"variables": {"x": "{$variables.y}", "y": "$variables.x"}, "a": "$variables.x"},
            "lead back to themselves",
        ),
        ({"variables": {"x": 1}, "a": "size $variables.x"}, "write {$variables.x}"),
        ({"variables": {"x": [1]}, "a": "size {$variables.x}"}, "the variable x, [1] (a list)"),
        ({"variables": {"x": 1}, "a": {"$variables.x": None}}, "without quotes"),
        ({"variables": [1], "a": 1}, "a mapping of names to values"),
        ({"variables": {"x": "$variables.nothing"}}, "variables.x: there is no variable nothing"),
    ],
)
def test_a_reference_that_leads_nowhere_is_refused_where_it_stands(content, words: str):
    told = refused(content)
    for part in ("a file: ", words, "Allowed: ", "Fix: "):
        assert part in told


@pytest.mark.parametrize("is_text", [False, True])
def test_variables_that_grow_beyond_a_bound_are_refused(is_text: bool):
    values: dict[str, Any] = {"a0": "x" * 16}
    for number in range(11):
        whole = f"$variables.a{number}"
        values[f"a{number + 1}"] = f"{{{whole}}}" * 9 if is_text else [whole] * 9
    assert "Allowed: 4,000,000 characters" in refused({"variables": values})


def test_text_that_only_looks_a_little_like_a_reference_is_text():
    content = {"a": "$variable.x costs $5, {$x} and ${HOME}"}
    assert replace_variables(content, source="f") == content


@pytest.mark.parametrize("key", ["$variables.a", "x-{$variables.a}", "${variables.a}"])
@pytest.mark.parametrize(
    ("place", "told"),
    [
        (lambda inner: inner, "the config"),
        (lambda inner: {"data": {"components": inner}}, "data.components"),
        (lambda inner: {"tags": [inner]}, "tags.0"),
        (lambda inner: {"variables": {"a": 1, "b": inner}}, "variables.b"),
    ],
)
def test_a_reference_that_is_a_key_is_refused(key: str, place: Any, told: str):
    content = {"variables": {"a": "web"}, **place({key: {"weight": 1}})}
    text = refused(content)
    assert text.startswith(f"a file: {told}: the key {key!r}. Allowed: variables in values")
    assert "Fix: write the name itself" in text
