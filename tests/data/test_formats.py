"""From records to documents: texts, ids with weights, conversations."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.config import config_from_mapping, config_to_mapping
from chomp.data import (
    ChatFormat,
    Document,
    Format,
    LmComponentConfig,
    PrebuiltFormat,
    Span,
    TextFormat,
)
from chomp.errors import ConfigError, DataError

texts = st.text(st.characters(codec="utf-8"), max_size=10)
WEIGHED = PrebuiltFormat(loss_weights_key="weights")


def refusal(format: Format, record: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        format.document(record, "a.jsonl:7")
    return caught.value


def talk(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


@given(texts)
def test_the_text_is_what_stands_under_its_key(text):
    expected = Document(id="a:1", text=text)
    assert TextFormat().document({"text": text, "other": 1}, "a:1") == expected
    assert TextFormat(text_key="body").document({"body": text}, "a:1") == expected
    assert TextFormat(text_key="body").document(text, "a:1") == expected


def test_what_has_no_keys_is_its_own_content():
    whole = Document(id="code.py", text="x = 1", split_key="stdlib/code.py")
    assert TextFormat().document(whole, "code.py") is whole
    row = np.array([1, 2], np.uint16)
    for format in (TextFormat(), PrebuiltFormat()):
        assert format.document(row, "a:1") == Document(id="a:1", ids=row)
    assert "no keys: it is a row of token ids" in refusal(WEIGHED, row).given
    assert "no keys: it is a row of token ids" in refusal(ChatFormat(), row).given


@pytest.mark.parametrize("container", [list, tuple, np.array])
def test_ids_may_be_lists_or_arrays_and_may_have_weights(container):
    record = {"input_ids": container([5, 6]), "weights": container([0.5, 2])}
    document = PrebuiltFormat().document(record, "a:1")
    assert document == Document(id="a:1", ids=np.array([5, 6]))
    document = WEIGHED.document(record, "a:1")
    assert document.loss_weights.tolist() == [0.5, 2.0]
    assert document.loss_weights.dtype == np.float32


def test_no_ids_are_an_empty_document():
    for ids in ([], (), np.array([]), np.array([], np.int32)):
        assert PrebuiltFormat().document({"input_ids": ids}, "a:1").is_empty
        assert WEIGHED.document({"input_ids": ids, "weights": []}, "a:1").is_empty


@pytest.mark.parametrize(
    "ids",
    [None, "abc", 3, [1.5], ["1"], [None], [[1, 2]], [[1], [2, 3]], [True], [2**70], {"a": 1}],
)
def test_ids_that_are_no_whole_numbers_are_refused(ids):
    said = refusal(PrebuiltFormat(), {"input_ids": ids})
    assert said.given.startswith("record a.jsonl:7 holds ")
    assert said.given.endswith("under 'input_ids'")
    assert said.allowed == "a list of whole numbers"


@pytest.mark.parametrize("weights", [None, "abc", 1.0, ["1"], [None, None], [[1, 1]], [True, True]])
def test_weights_that_are_no_numbers_are_refused(weights):
    said = refusal(WEIGHED, {"input_ids": [1, 2], "weights": weights})
    assert said.given.endswith("under 'weights'")
    assert said.allowed == "a list of numbers"


@pytest.mark.parametrize("weight", [-1.0, -1e-9, float("nan"), float("inf"), 1e60])
def test_weights_that_no_loss_can_use_are_refused(weight):
    said = refusal(WEIGHED, {"input_ids": [1, 2], "weights": [1.0, weight]})
    assert "record a.jsonl:7 has the weight " in said.given
    assert said.given.endswith(" at 1 under 'weights'")


@pytest.mark.parametrize("weights", [[], [1.0], [1.0, 1.0, 1.0]])
def test_there_is_one_weight_for_each_id(weights):
    said = refusal(WEIGHED, {"input_ids": [1, 2], "weights": weights})
    assert f"2 ids under 'input_ids' and {len(weights)} weights under 'weights'" in said.given


def test_only_the_assistants_content_and_end_are_trained():
    document = ChatFormat().document(talk(("user", "Hi"), ("assistant", "Hello")), "a:1")
    assert document.spans == (
        Span("<|user|>\n", False),
        Span("Hi", False),
        Span("\n", False),
        Span("<|assistant|>\n", False),
        Span("Hello", True),
        Span("\n", True),
    )
    everything = ChatFormat(mask_user_turns=False).document(talk(("user", "Hi")), "a:1")
    assert [span.is_trained for span in everything.spans] == [True, True, True]


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), texts), max_size=5))
def test_masking_decides_what_is_trained_and_never_what_is_read(turns):
    turns.append(("assistant", "Done"))
    masked = ChatFormat().document(talk(*turns), "a:1")
    unmasked = ChatFormat(mask_user_turns=False).document(talk(*turns), "a:1")
    assert [span.text for span in masked.spans] == [span.text for span in unmasked.spans]
    written = "".join(f"<|{role}|>\n{content}\n" for role, content in turns)
    assert "".join(span.text for span in masked.spans) == written
    trained = "".join(span.text for span in masked.spans if span.is_trained)
    assert trained == "".join(f"{text}\n" for role, text in turns if role == "assistant")


@pytest.mark.parametrize(
    "content", ["{role}", "{", "{0}", "%s", "<|assistant|>\n", "<|endoftext|>"]
)
def test_a_message_is_text_whatever_it_looks_like(content):
    document = ChatFormat().document(talk(("user", content), ("assistant", content)), "a:1")
    assert [span.text for span in document.spans[1::3]] == [content] * 2
    assert sum(span.is_trained for span in document.spans) == 2
    # A role is put into the template once, and not looked into.
    odd = ChatFormat(trained_roles=(content,)).document(talk((content, "x")), "a:1")
    assert odd.spans[0].text == f"<|{content}|>\n"


def test_templates_and_keys_are_the_users():
    format = ChatFormat(
        messages_key="turns",
        role_key="from",
        content_key="value",
        turn_start="{{[{role}]",
        turn_end="[/{role}]}}",
        trained_roles=("gpt", "bot"),
    )
    record = {"turns": [{"from": "bot", "value": "a"}, {"from": "human", "value": ""}]}
    document = format.document(record, "a:1")
    assert "".join(span.text for span in document.spans) == "{[bot]a[/bot]}{[human][/human]}"
    assert [span.is_trained for span in document.spans] == [False, True, True, False, False]
    assert format.keys == ("turns",)


def test_a_conversation_without_messages_is_empty():
    assert ChatFormat().document({"messages": []}, "a:1").is_empty


def test_a_conversation_without_a_trained_turn_is_refused():
    said = refusal(ChatFormat(), talk(("user", "Hi"), ("system", "x"), ("user", "Hello?")))
    assert "record a.jsonl:7 has only turns of 'user', 'system'" in said.given
    assert "'assistant'" in said.allowed


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"text": "a"}, "record a.jsonl:7 has no key 'messages'; its keys are 'text'"),
        ({"messages": "a"}, "a.jsonl:7 holds 'a' (of type str) under 'messages'"),
        ({"messages": ["a"]}, "a.jsonl:7, message 0 has no keys: it is a whole text"),
        ({"messages": [{"role": "user"}]}, "message 0 has no key 'content'"),
        ({"messages": [{"rôle": "a"}]}, "has no key 'role' (did you mean rôle?)"),
        (talk(("user", "a"), ("assistant", None)), "message 1 holds null under 'content'"),
        (talk((3, "a")), "message 0 holds 3 (of type int) under 'role'"),
        (talk(("user", [{"type": "text"}])), "(of type list) under 'content'"),
    ],
)
def test_what_is_no_conversation_is_refused(record, said):
    assert said in refusal(ChatFormat(), record).given


@pytest.mark.parametrize("name", ["turn_start", "turn_end"])
@pytest.mark.parametrize(
    "template",
    ["{role", "role}", "{}", "{0}", "{content}", "{role!r}", "{role:>9}", "{role.x}"],
)
def test_templates_hold_the_role_and_nothing_else(name, template):
    with pytest.raises(ConfigError) as caught:
        ChatFormat(**{name: template})
    assert f"{name}={template!r}" in caught.value.given


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ChatFormat(turn_start="<turn>"), "turn_start='<turn>' without {role}"),
        (lambda: ChatFormat(trained_roles=()), "trained_roles=() with mask_user_turns=true"),
        (lambda: ChatFormat(role_key=""), "role_key=''"),
        (lambda: TextFormat(text_key=""), "text_key=''"),
        (lambda: PrebuiltFormat(ids_key=""), "ids_key=''"),
        (lambda: PrebuiltFormat(loss_weights_key=""), "loss_weights_key=''"),
    ],
)
def test_formats_that_can_read_nothing_are_refused(make, said):
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.given.startswith(said)


@pytest.mark.parametrize(
    "format", [TextFormat(text_key="body"), WEIGHED, ChatFormat(trained_roles=("bot",))]
)
def test_every_format_can_be_written_in_a_config(format):
    mapping = {"format": config_to_mapping(format)}
    assert config_from_mapping(LmComponentConfig, mapping).format == format


def test_formats_say_whether_their_documents_have_weights():
    kinds = [TextFormat(), PrebuiltFormat(), WEIGHED, ChatFormat()]
    assert [format.has_loss_weights for format in kinds] == [False, False, True, True]
    assert [format.keys for format in kinds] == [
        *(("text",), ("input_ids",), ("input_ids", "weights"), ("messages",))
    ]
