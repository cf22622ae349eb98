"""Where a document ends and begins: an id that is named, or found by its usual name."""

import hashlib
import json

import pytest
from vocabularies import bert, byte_level, llama_2, llama_3

from chomp.errors import DataError
from chomp.tokenize import ByteTokenizer, JsonTokenizer, Tokenizer, train_bpe


def with_specials(*names: str) -> str:
    return byte_level([], special=list(names), plain=[]).to_str()


def test_every_tokenizer_says_what_begins_a_document():
    for tokenizer in (ByteTokenizer(), train_bpe(["text"], vocab_size=260)):
        assert isinstance(tokenizer, Tokenizer)
        assert tokenizer.bos_id is None


@pytest.mark.parametrize("name", ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>"])
def test_the_end_is_found_by_its_usual_name(name: str):
    tokenizer = JsonTokenizer(with_specials("<pad>", name, "<|eot_id|>"))
    assert tokenizer.eos_id == 257
    assert tokenizer.bos_id is None


def test_the_end_of_a_bert_is_its_separator():
    assert JsonTokenizer(bert()).eos_id == 2


@pytest.mark.parametrize(("eos", "bos"), [(2, 1), ("</s>", "<s>"), (None, "<s>"), ("</s>", 1)])
def test_end_and_beginning_are_named_by_id_or_by_text(eos: int | str | None, bos: int | str):
    tokenizer = JsonTokenizer(llama_2(), eos=eos, bos=bos)
    assert (tokenizer.eos_id, tokenizer.bos_id) == (2, 1)
    assert {1, 2}.isdisjoint(tokenizer.encode_batch(["<s>a</s>"])[0])
    assert tokenizer.decode([1, *tokenizer.encode_batch(["a b"])[0], 2]) == "a b"


def test_one_token_may_end_and_begin_documents():
    tokenizer = JsonTokenizer(with_specials("<|endoftext|>"), bos="<|endoftext|>")
    assert tokenizer.bos_id == tokenizer.eos_id == 256


def test_two_usual_ends_are_ambiguous_until_one_is_named():
    rules = with_specials("</s>", "<|endoftext|>", "<pad>")
    with pytest.raises(DataError) as caught:
        JsonTokenizer(rules, source="some/tokenizer.json")
    assert "256 (</s>), 257 (<|endoftext|>)" in caught.value.given
    assert "some/tokenizer.json" in caught.value.given
    assert "258 (<pad>)" in caught.value.allowed
    assert "eos=" in caught.value.fix
    assert JsonTokenizer(rules, eos="</s>").eos_id == 256


def test_a_vocabulary_without_a_usual_end_lists_what_it_has():
    with pytest.raises(DataError) as caught:
        JsonTokenizer(with_specials("<a>"))
    assert "256 (<a>)" in caught.value.allowed
    with pytest.raises(DataError) as caught:
        JsonTokenizer(with_specials())
    assert "none" in caught.value.allowed


def test_a_long_list_of_special_tokens_is_cut():
    rules = with_specials(*(f"<unused{i}>" for i in range(40)))
    with pytest.raises(DataError) as caught:
        JsonTokenizer(rules)
    assert "267 (<unused11>) and 28 more" in caught.value.allowed


@pytest.mark.parametrize(
    ("role", "named", "told"),
    [
        ("eos", "<eot>", "end-of-document token '<eot>'"),
        ("eos", 5, "end-of-document id 5"),
        ("eos", 9999, "end-of-document id 9999"),
        ("eos", "a", "end-of-document token 'a'"),
        ("bos", "<bos>", "beginning-of-document token '<bos>'"),
        ("bos", -1, "beginning-of-document id -1"),
    ],
)
def test_a_token_that_texts_can_be_given_neither_ends_nor_begins(
    role: str, named: int | str, told: str
):
    with pytest.raises(DataError) as caught:
        JsonTokenizer(llama_3(), **{role: named})
    assert told in caught.value.given
    assert "301 (<|end_of_text|>)" in caught.value.allowed


def test_the_hash_tells_ends_and_beginnings_apart_and_is_as_before_without_one():
    rules = llama_2()
    plain = JsonTokenizer(rules)
    # Stores hold this hash: it must stay what it was when there was no beginning to name.
    content = json.dumps(json.loads(plain.to_json()), sort_keys=True)
    assert plain.content_hash == hashlib.sha256(f"{content} eos=2".encode()).hexdigest()
    others = [JsonTokenizer(rules, bos=1), JsonTokenizer(rules, bos=2), JsonTokenizer(rules, eos=1)]
    assert len({plain.content_hash, *(other.content_hash for other in others)}) == 4
