"""Vocabularies as the hub has them: every text keeps its bytes, or is refused by name."""

import json
import pickle
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as HuggingFaceTokenizer
from vocabularies import (
    BYTE_PIECES,
    MARK,
    SPECIALS,
    TEXTS,
    bert,
    byte_level,
    changed,
    gemma,
    letters,
    llama_2,
    llama_3,
    unigram,
    with_byte_pieces,
)

from chomp.errors import DataError
from chomp.tokenize import (
    ByteTokenizer,
    JsonTokenizer,
    Tokenizer,
    UnencodableText,
    bytes_per_token,
    tokenizer_from_json_file,
    train_bpe,
)
from chomp.tokenize.tokenizer import MAX_TEXT

# All of Unicode but "▁", which is a blank to these vocabularies, as it is to SentencePiece.
any_text = st.text(st.characters(exclude_characters=MARK, exclude_categories=["Cs"]), max_size=40)

KINDS = {
    "llama_3": llama_3,
    "llama_2": llama_2,
    "gemma": gemma,
    "unigram": unigram,
    "unigram_never": lambda: unigram("never"),
}
TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "byte": ByteTokenizer,
    "bpe": lambda: train_bpe(TEXTS, vocab_size=300),
    **{name: partial(lambda rules: JsonTokenizer(rules()), rules) for name, rules in KINDS.items()},
}
QUOTES = [
    "<|endoftext|>",
    *SPECIALS,
    "<0x0A>",
    "<0xFF>",
    "<|end_of_text|>",
    "[SEP]",
    "</s></s>",
    "<</s>",
]


@pytest.fixture(scope="module", params=TOKENIZERS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def tokenizer(kind: str) -> Tokenizer:
    """One of each kind that can write any text."""
    return TOKENIZERS[kind]()


def raw(tokenizer: Tokenizer, text: str) -> bytes:
    """The bytes of the ids of `text`, one after the other."""
    table = tokenizer.token_bytes()
    return b"".join(table[i] or b"(no bytes)" for i in tokenizer.encode_batch([text])[0])


def special_ids(tokenizer: Tokenizer) -> set[int]:
    return {i for i, raw in enumerate(tokenizer.token_bytes()) if raw is None}


@given(text=any_text)
@example("")
@example(" one blank in front")
@example("  two blanks,  and a blank at the end ")
@example("\x00\x01\x1b[0m\r\n\t\x7f\x85 \u2028\ufeff\u200d \U0010ffff 👩‍👩‍👧")
@example("    return <0x0A></s>")
def test_any_text_comes_back_and_its_tokens_are_its_bytes(
    kind: str, tokenizer: Tokenizer, text: str
):
    assert tokenizer.can_encode_any_text
    # The documented rule: a blank the rules put in front counts, though the text has none.
    adds_blank = {"llama_2": text != "", "unigram": text != "" and text[0] != " "}
    counted = " " * adds_blank.get(kind, False) + text
    (ids,) = tokenizer.encode_batch([text])
    assert raw(tokenizer, text) == counted.encode()
    assert bytes_per_token(tokenizer)[ids].sum() == len(counted.encode())
    # A Metaspace in front of a blank adds none, so that blank is taken for it in decoding.
    is_first_blank_lost = kind == "unigram"
    assert tokenizer.decode(ids) == (text.removeprefix(" ") if is_first_blank_lost else text)


@given(before=any_text, after=any_text, quote=st.sampled_from(QUOTES))
def test_a_quoted_token_is_text(tokenizer: Tokenizer, before: str, after: str, quote: str):
    text = f"a{before}{quote}{after}"
    (ids,) = tokenizer.encode_batch([text])
    assert special_ids(tokenizer).isdisjoint(ids)
    assert tokenizer.decode(ids) == text


def test_a_batch_is_encoded_text_by_text(tokenizer: Tokenizer):
    texts = ["", "one", "two words", ""]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode_batch([t])[0] for t in texts]
    assert tokenizer.encode_batch([]) == []


def test_a_mark_in_a_document_is_the_blank_it_becomes():
    assert raw(JsonTokenizer(gemma()), f"a{MARK}b") == b"a b"


def test_a_byte_level_vocabulary_that_puts_a_blank_in_front_counts_it():
    rules = byte_level([], special=["</s>"], plain=[])
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer = JsonTokenizer(rules.to_str())
    assert [raw(tokenizer, text) for text in ("a", " a", "")] == [b" a", b" a", b""]


def test_an_added_token_that_is_a_piece_too_has_the_bytes_of_the_piece():
    tokenizer = JsonTokenizer(gemma())
    (ids,) = tokenizer.encode_batch(["  \n"])
    assert [tokenizer.token_bytes()[i] for i in ids] == [b"  ", b"\n"]


def test_a_word_piece_has_the_bytes_of_its_letters_alone():
    tokenizer = JsonTokenizer(bert())
    assert not tokenizer.can_encode_any_text
    text = "The mat,\n  and AUS"
    # Case and white space are thrown away by the rules, and so are not counted.
    assert raw(tokenizer, text) == b"themat,andaus"
    assert tokenizer.decode(tokenizer.encode_batch([text])[0]) == "the mat, and aus"
    inner = [piece for piece in tokenizer.token_bytes() if piece and piece.startswith(b"##")]
    assert inner == []


def test_the_mark_of_a_words_end_is_no_text():
    rules = HuggingFaceTokenizer(
        models.BPE({"a": 0, "b": 1, "b</w>": 2}, [], end_of_word_suffix="</w>")
    )
    rules.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rules.add_special_tokens(["<eos>"])
    assert raw(JsonTokenizer(rules.to_str()), "ab bb") == b"abbb"


def test_a_piece_that_is_nothing_but_a_mark_is_that_text():
    rules = HuggingFaceTokenizer(models.WordPiece({"[UNK]": 0, "##": 1, "##a": 2}))
    rules.add_special_tokens(["[SEP]"])
    assert JsonTokenizer(rules.to_str()).token_bytes() == [None, b"##", b"a", None]


@pytest.mark.parametrize("has_every_form", [True, False])
def test_bytes_that_end_a_word_need_ids_of_their_own_where_ends_are_marked(has_every_form: bool):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ends = [f"{character}</w>" for character in alphabet if has_every_form or character != "Ċ"]
    vocab = {piece: i for i, piece in enumerate([*alphabet, *ends])}
    rules = HuggingFaceTokenizer(models.BPE(vocab, [], end_of_word_suffix="</w>"))
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rules.add_special_tokens(["<|endoftext|>"])
    tokenizer = JsonTokenizer(rules.to_str())
    assert tokenizer.can_encode_any_text == has_every_form
    assert raw(tokenizer, "a é b") == "a é b".encode()


def test_a_byte_piece_without_fallback_is_the_text_it_looks_like():
    tokenizer = JsonTokenizer(letters("<0x0A>", "a"))
    assert tokenizer.token_bytes() == [b"<0x0A>", b"a", None]


@pytest.mark.parametrize(
    ("rules", "text", "named"),
    [
        (letters("a", "b", "<unk>", unknown="<unk>"), "abßa", "character 2: 'ß' (U+00DF)"),
        # Without an unknown token the library drops the character and says nothing.
        (letters("a", "b"), "abßa", "character 2: 'ß' (U+00DF)"),
        (letters("a", "b", unknown="<unk>"), "abßa", "character 2: 'ß' (U+00DF)"),
        (unigram(with_fallback=False), "the ✓ mat", "character 4: '✓'"),
        (changed(unigram(with_fallback=False), unk_id=None), "the ✓", "character 4: '✓'"),
        (bert(), "The quux", "character 4: 'quux'"),
        (bert(), "a" * 101, f"character 0: '{'a' * 20}'"),
        (changed(bert(), unk_token="none"), "The quux", "character 4: 'q' (U+0071)"),
    ],
)
def test_a_text_with_an_unknown_character_is_refused_by_name(rules: str, text: str, named: str):
    tokenizer = JsonTokenizer(rules)
    assert not tokenizer.can_encode_any_text
    with pytest.raises(UnencodableText) as caught:
        tokenizer.encode_batch(["a", text, "ß"])
    assert caught.value.text_index == 1
    assert named in caught.value.given


def test_a_byte_level_vocabulary_with_a_missing_byte_refuses_what_needs_it():
    alphabet = set(pre_tokenizers.ByteLevel.alphabet()) - {"Ċ"}  # byte 10
    rules = HuggingFaceTokenizer.from_str(letters(*sorted(alphabet)))
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = JsonTokenizer(rules.to_str())
    assert not tokenizer.can_encode_any_text
    assert len(tokenizer.encode_batch(["é b"])[0]) == 4
    with pytest.raises(UnencodableText) as caught:
        tokenizer.encode_batch(["a\nb"])
    assert r"character 1: '\n' (U+000A)" in caught.value.given


def test_fallback_to_bytes_that_are_not_all_there_refuses_what_needs_the_others():
    pieces = [piece for piece in BYTE_PIECES if piece != "<0xC3>"]
    tokenizer = JsonTokenizer(changed(letters("a", *pieces), byte_fallback=True))
    assert not tokenizer.can_encode_any_text
    assert raw(tokenizer, "a\n") == b"a\n"
    with pytest.raises(UnencodableText) as caught:
        tokenizer.encode_batch(["aé"])
    assert "character 1: 'é' (U+00E9)" in caught.value.given


def test_half_of_a_surrogate_pair_is_refused_by_name(tokenizer: Tokenizer):
    with pytest.raises(UnencodableText) as caught:
        tokenizer.encode_batch(["fine", "ab\ud800", "c\udfff"])
    assert caught.value.text_index == 1
    assert r"character 2: '\ud800'" in caught.value.given
    str(caught.value).encode()  # printable, whatever the text was


@pytest.mark.parametrize("split", [pre_tokenizers.WhitespaceSplit(), None])
def test_a_word_piece_is_not_given_to_a_text_that_quotes_it(split: object):
    rules = HuggingFaceTokenizer.from_str(bert(split))
    rules.normalizer = normalizers.NFKC()
    vocab = {piece: i for i, piece in enumerate(["[UNK]", "[CLS]", "[SEP]", *"[]", "SEP]", "SEP"])}
    rules.model = models.WordPiece(vocab, unk_token="[UNK]")
    tokenizer = JsonTokenizer(rules.to_str())
    # The second is another text, which this normaliser turns into the first.
    for text in ("[SEP]", "\uff3bSEP\uff3d"):
        assert raw(tokenizer, text) == b"[SEP]"


def test_a_normaliser_does_not_turn_text_into_special_tokens_or_bytes():
    rules = HuggingFaceTokenizer.from_str(unigram())
    rules.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer = JsonTokenizer(rules.to_str())
    (ids,) = tokenizer.encode_batch(["a\uff1c/S\uff1eb\uff1c0x41\uff1e"])
    assert special_ids(tokenizer).isdisjoint(ids)
    assert tokenizer.decode(ids) == "a</s>b<0x41>"


def test_a_bpe_whose_merges_make_a_special_token_does_not_give_it_to_texts():
    vocab = {piece: i for i, piece in enumerate(["</s>", "<", "/", "s", ">", "</", "s>"])}
    merges = [("<", "/"), ("s", ">"), ("</", "s>")]
    rules = HuggingFaceTokenizer(models.BPE(vocab, merges))
    rules.add_special_tokens(["</s>"])
    assert raw(JsonTokenizer(rules.to_str()), "</</s>s>") == b"</</s>s>"
    ignoring = HuggingFaceTokenizer(models.BPE(vocab, merges[:2], ignore_merges=True))
    ignoring.add_special_tokens(["</s>"])
    assert raw(JsonTokenizer(ignoring.to_str()), "</s>") == b"</s>"


def test_a_special_token_of_one_character_is_refused_in_texts():
    tokenizer = JsonTokenizer(letters("a", "$", special="$"), eos="$")
    with pytest.raises(UnencodableText) as caught:
        tokenizer.encode_batch(["a$"])
    assert "character 1: '$' (U+0024)" in caught.value.given


def test_ids_are_those_of_the_text_whatever_the_rules_add_for_models():
    plain = JsonTokenizer(llama_2())
    rules = HuggingFaceTokenizer.from_str(llama_2())
    rules.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    rules.enable_truncation(4)
    rules.enable_padding(length=64)
    assert JsonTokenizer(rules.to_str()).encode_batch(TEXTS) == plain.encode_batch(TEXTS)


def test_dropout_of_merges_is_left_out():
    steady = train_bpe(TEXTS, vocab_size=300)
    tokenizer = JsonTokenizer(changed(steady.to_json(), dropout=0.9))
    assert tokenizer.encode_batch(TEXTS) == steady.encode_batch(TEXTS)
    assert tokenizer.content_hash == steady.content_hash


def test_ids_that_the_library_would_give_otherwise_are_refused():
    # It counts added tokens on from the number of pieces, not from the highest id.
    with pytest.raises(DataError) as caught:
        JsonTokenizer(changed(letters("a", "b"), vocab={"a": 0, "b": 2}))
    assert "1 of them" in caught.value.given
    assert "gaps" in caught.value.fix
    with pytest.raises(DataError) as caught:
        JsonTokenizer(letters("a", "b").replace('"id":2', '"id":9'))
    assert "</s> is 2, not 9" in caught.value.given


def test_every_id_is_below_the_vocabulary_size_though_ids_are_left_out():
    rules = changed(letters("a", "</s>", "b"), vocab={"a": 0, "</s>": 1, "b": 7})
    tokenizer = JsonTokenizer(rules)
    assert tokenizer.vocab_size == 8
    assert tokenizer.encode_batch(["ab"]) == [[0, 7]]
    assert [len(piece or b"") for piece in tokenizer.token_bytes()] == [1, 0, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
@pytest.mark.parametrize("rules", KINDS.values())
def test_a_pickled_tokenizer_is_the_same(rules: Callable[[], str], protocol: int):
    tokenizer = JsonTokenizer(rules(), bos=JsonTokenizer(rules()).eos_id)
    again = pickle.loads(pickle.dumps(tokenizer, protocol))
    texts = [*TEXTS, *QUOTES, "unseen ✓"]
    assert again.encode_batch(texts) == tokenizer.encode_batch(texts)
    assert again.content_hash == tokenizer.content_hash
    assert (again.eos_id, again.bos_id) == (tokenizer.eos_id, tokenizer.bos_id)


def test_bytes_per_token_is_made_once_and_cannot_be_written_to():
    table = bytes_per_token(JsonTokenizer(llama_2()))
    assert bytes_per_token(JsonTokenizer(llama_2())) is table
    assert bytes_per_token(JsonTokenizer(gemma())) is not table
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 1
    assert table.dtype == np.int32
    assert table[:3].tolist() == [0, 0, 0]  # <unk>, <s>, </s>


def test_plain_added_tokens_in_a_marked_vocabulary_have_the_bytes_of_their_text():
    rules = HuggingFaceTokenizer.from_str(gemma())
    rules.add_tokens([AddedToken("a b ✓", normalized=False)])
    tokenizer = JsonTokenizer(rules.to_str())
    assert raw(tokenizer, "xa b ✓y") == "xa b ✓y".encode()
    assert len(tokenizer.encode_batch(["xa b ✓y"])[0]) == 3


def test_a_unigram_without_its_own_byte_pieces_can_be_given_them():
    plain = HuggingFaceTokenizer.from_str(unigram(with_fallback=False))
    assert not JsonTokenizer(plain.to_str()).can_encode_any_text
    assert JsonTokenizer(with_byte_pieces(plain)).can_encode_any_text


@pytest.mark.parametrize("name", ["bpe", *KINDS])
def test_a_text_too_long_for_one_piece_gets_the_ids_of_the_whole(name: str):
    text = train_bpe(TEXTS, vocab_size=300).to_json() if name == "bpe" else KINDS[name]()
    tokenizer = JsonTokenizer(text)
    long = " ab ba" * (MAX_TEXT // 5)
    whole = tokenizer._tokenizer.encode(long, add_special_tokens=False)
    assert list(tokenizer.encode_batch(["ab", long])[1]) == whole.ids


def test_a_character_without_an_id_is_found_far_into_a_long_text():
    tokenizer = JsonTokenizer(letters("a", " "))
    with pytest.raises(UnencodableText) as caught:
        tokenizer.encode_batch(["a", "a" * (MAX_TEXT + 999) + "é" + "a" * 9])
    assert caught.value.text_index == 1
    assert f"character {MAX_TEXT + 999}: 'é'" in caught.value.given


def test_training_takes_no_longer_for_a_text_without_spaces():
    letters_only = "".join(random.Random(0).choices("acgt", k=200_000))
    tokenizer = train_bpe([letters_only], vocab_size=300)  # 16 s where words have no bound
    assert tokenizer.decode(tokenizer.encode_batch([letters_only])[0]) == letters_only


def _growing(times: int) -> dict[str, object]:
    """A normaliser that writes ten letters for one, `times` times over."""
    tenfold = {"type": "Replace", "pattern": {"String": "q"}, "content": "q" * 10}
    return {"type": "Sequence", "normalizers": [tenfold] * times}


def _split(regex: str) -> dict[str, object]:
    pattern = {"Regex": regex}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


HARMFUL = {
    "a normaliser that grows texts a hundredfold": {"normalizer": _growing(2)},
    "an empty pattern": {
        "normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"}
    },
    "an empty table of characters": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAAAAAAAAAA"}
    },
    "a table of 8 GB": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
    "a regex that backtracks": {"pre_tokenizer": _split("(a+)+$")},
    "words of length 0": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "a decoder that strips too much": {
        "decoder": {"type": "Strip", "content": "a", "start": 10**9, "stop": 10**9}
    },
    "an id of 32 bits": {"vocab": {"zz": 2**32 - 1}},
}


@pytest.mark.parametrize(
    "change",
    [
        *HARMFUL.values(),
        pytest.param({"normalizer": _growing(9)}, marks=pytest.mark.slow),
        pytest.param({"vocab": {"zz": 2 * 10**9}}, marks=pytest.mark.slow),
    ],
)
def test_a_file_that_would_end_or_fill_the_process_is_refused(
    tmp_path: Path, change: dict[str, object]
):
    rules = json.loads(byte_level([], special=["</s>"], plain=[]).to_str())
    rules["model"]["vocab"].update(change.get("vocab", {}))
    rules |= {name: value for name, value in change.items() if name != "vocab"}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(rules))
    with pytest.raises(DataError):
        tokenizer_from_json_file(path)


def test_a_document_on_which_the_library_panics_is_refused_by_name():
    rules = json.loads(byte_level([], special=["</s>"], plain=[]).to_str())
    rules["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [_split("(b+)+$"), rules["pre_tokenizer"]],
    }
    tokenizer = JsonTokenizer(json.dumps(rules))
    assert tokenizer.encode_batch(["a short text"])
    with pytest.raises(DataError):
        tokenizer.encode_batch(["fine", "b" * 100 + "c"])
