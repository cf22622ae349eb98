"""Texts to ids and back: nothing is lost, and the end of a document cannot be written as text."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import TEXTS, byte_level

from chomp.errors import DataError
from chomp.tokenize import BpeTokenizer, ByteTokenizer, Tokenizer, bytes_per_token, train_bpe

# Everything a UTF-8 file can hold: control characters and unassigned ones too, no surrogates.
any_text = st.text(max_size=40)


@pytest.fixture(scope="module")
def bpe() -> BpeTokenizer:
    return train_bpe(TEXTS, vocab_size=300)


@pytest.fixture(scope="module", params=["byte", "bpe"])
def tokenizer(request: pytest.FixtureRequest, bpe: BpeTokenizer) -> Tokenizer:
    return ByteTokenizer() if request.param == "byte" else bpe


def test_every_id_is_below_the_vocabulary_size_and_only_the_end_has_no_bytes(tokenizer: Tokenizer):
    table = tokenizer.token_bytes()
    assert len(table) == tokenizer.vocab_size
    assert [i for i, raw in enumerate(table) if raw is None] == [tokenizer.eos_id]
    lengths = bytes_per_token(tokenizer)
    assert lengths.dtype == np.int32
    assert lengths[tokenizer.eos_id] == 0
    assert all(lengths[i] == len(raw) > 0 for i, raw in enumerate(table) if raw is not None)


def test_ends_of_documents_are_left_out_of_decoded_text(tokenizer: Tokenizer):
    (ids,) = tokenizer.encode_batch(["text"])
    assert tokenizer.decode([*ids, tokenizer.eos_id, *ids]) == "texttext"


def test_ids_above_the_vocabulary_and_broken_characters_still_decode(tokenizer: Tokenizer):
    (ids,) = tokenizer.encode_batch(["ab"])
    assert tokenizer.decode([*ids, tokenizer.vocab_size + 7]) == "ab"
    first_byte_of_a_character = tokenizer.token_bytes().index("é".encode()[:1])
    assert tokenizer.decode([first_byte_of_a_character]) == "\ufffd"


def test_bpe_merges_what_it_was_trained_on(bpe: BpeTokenizer):
    assert bpe.vocab_size == 300
    (ids,) = bpe.encode_batch([TEXTS[1]])
    assert len(ids) < len(TEXTS[1]) / 2


def test_a_vocabulary_is_no_larger_than_its_texts_fill():
    assert train_bpe(["ab"], vocab_size=5000).vocab_size == 258


def test_the_same_texts_give_the_same_tokenizer_in_every_process(bpe: BpeTokenizer):
    assert train_bpe(iter(TEXTS), vocab_size=300).content_hash == bpe.content_hash
    program = "import sys, json, chomp.tokenize as t; texts, size = json.load(sys.stdin); "
    program += "print(t.train_bpe(texts, vocab_size=size).content_hash)"
    other = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps([TEXTS, 300]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == bpe.content_hash


def test_other_texts_sizes_and_ends_are_other_tokenizers(bpe: BpeTokenizer):
    ends = byte_level([], special=["<a>", "<b>"], plain=[]).to_str()
    hashes = [
        bpe.content_hash,
        ByteTokenizer().content_hash,
        train_bpe(TEXTS, vocab_size=299).content_hash,
        train_bpe(TEXTS[:2], vocab_size=300).content_hash,
        BpeTokenizer(ends, eos="<a>").content_hash,
        BpeTokenizer(ends, eos="<b>").content_hash,
    ]
    assert len(set(hashes)) == len(hashes)


def test_json_text_gives_the_tokenizer_back(bpe: BpeTokenizer):
    again = BpeTokenizer(bpe.to_json())
    assert again.content_hash == bpe.content_hash
    assert again.encode_batch(TEXTS) == bpe.encode_batch(TEXTS)


def test_added_tokens_that_are_text_have_the_bytes_of_that_text():
    # Every character of "é¢" also stands for a single byte in the byte-level alphabet.
    rules = byte_level([], special=["<|endoftext|>"], plain=["é¢", "a b"]).to_str()
    tokenizer = BpeTokenizer(rules)
    (ids,) = tokenizer.encode_batch(["xé¢ya b<|endoftext|>"])
    assert (
        b"".join(tokenizer.token_bytes()[i] or b"?" for i in ids) == "xé¢ya b<|endoftext|>".encode()
    )
    assert len(ids) == 1 + 1 + 1 + 1 + len("<|endoftext|>")


@pytest.mark.parametrize("size", [-1, 0, 256])
def test_a_vocabulary_without_room_for_every_byte_is_refused(size: int):
    with pytest.raises(DataError) as caught:
        train_bpe(TEXTS, vocab_size=size)
    assert str(size) in caught.value.given
    assert "257" in caught.value.allowed


@settings(max_examples=20, deadline=None)
@given(texts=st.lists(any_text, max_size=5), size=st.integers(257, 320))
def test_a_tokenizer_trained_on_anything_keeps_any_text(texts: list[str], size: int):
    tokenizer = train_bpe(texts, vocab_size=size)
    assert 257 <= tokenizer.vocab_size <= size
    for text in [*texts, "unseen ✓"]:
        assert tokenizer.decode(tokenizer.encode_batch([text])[0]) == text
