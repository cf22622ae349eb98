"""Tokenizers on disk: what is loaded is what was saved, or nothing."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as HuggingFaceTokenizer
from vocabularies import bert, llama_2, llama_3, unigram

from chomp.errors import DataError, StorageError
from chomp.tokenize import ByteTokenizer, JsonTokenizer, load_tokenizer, save_tokenizer, train_bpe

TEXT = "she sells sea shells by the sea shore\n"


def trained() -> JsonTokenizer:
    return train_bpe([TEXT], vocab_size=280)


def with_own_end() -> JsonTokenizer:
    rules = HuggingFaceTokenizer.from_str(trained().to_json())
    rules.add_special_tokens(["</s>"])
    return JsonTokenizer(rules.to_str(), eos="</s>")


def with_beginning(rules: Callable[[], str]) -> Callable[[], JsonTokenizer]:
    return lambda: JsonTokenizer(rules(), bos=JsonTokenizer(rules()).eos_id)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved BPE tokenizer."""
    save_tokenizer(trained(), str(tmp_path / "tokenizer"))
    return tmp_path / "tokenizer"


def change_description(folder: Path, **changes: object) -> None:
    path = folder / "chomp_tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_rules(folder: Path) -> None:
    rules = json.loads((folder / "tokenizer.json").read_text())
    rules["model"]["merges"].pop()
    (folder / "tokenizer.json").write_text(json.dumps(rules))


@pytest.mark.parametrize(
    "make",
    [
        ByteTokenizer,
        trained,
        with_own_end,
        *(with_beginning(rules) for rules in (llama_2, llama_3, unigram, bert)),
    ],
)
def test_a_saved_tokenizer_loads_the_same(folder: Path, make: Callable[[], Any]):
    saved = make()
    save_tokenizer(saved, str(folder))  # in the place of another
    loaded = load_tokenizer(str(folder))
    assert type(loaded) is type(saved)
    for name in ("content_hash", "vocab_size", "eos_id", "bos_id"):
        assert getattr(loaded, name) == getattr(saved, name)
    texts = ["the cat", "a b"]
    assert loaded.encode_batch(texts) == saved.encode_batch(texts)
    if saved.can_encode_any_text:
        assert loaded.eos_id not in loaded.encode_batch(["a <|endoftext|> </s> b"])[0]
    assert loaded.token_bytes() == saved.token_bytes()


def test_a_byte_tokenizer_has_no_rules(tmp_path: Path):
    save_tokenizer(ByteTokenizer(), str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["chomp_tokenizer.json"]


def test_a_folder_from_before_other_vocabularies_and_beginnings_loads(folder: Path):
    path = folder / "chomp_tokenizer.json"
    old = {**json.loads(path.read_text()), "kind": "bpe"}
    del old["bos_id"]
    path.write_text(json.dumps(old))
    assert load_tokenizer(str(folder)).content_hash == old["content_hash"]
    assert load_tokenizer(str(folder)).bos_id is None


def test_a_tokenizer_that_could_not_be_loaded_again_is_not_saved(tmp_path: Path):
    class Foreign:
        vocab_size, eos_id, bos_id, content_hash = 2, 1, None, "x"
        encode_batch = decode = token_bytes = ByteTokenizer.token_bytes

    with pytest.raises(DataError) as caught:
        save_tokenizer(Foreign(), str(tmp_path / "tokenizer"))
    assert "Foreign" in caught.value.given
    assert not (tmp_path / "tokenizer").exists()


def test_another_layout_of_the_same_rules_is_the_same_tokenizer(folder: Path):
    rules = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(rules, indent=None))
    load_tokenizer(str(folder))


@pytest.mark.parametrize(
    ("harm", "given"),
    [
        (change_rules, "tokenizer {folder} has the hash"),
        # What a kill leaves between the two files, of which the description is written last.
        (lambda folder: (folder / "chomp_tokenizer.json").unlink(), "no tokenizer in {folder}"),
        (
            lambda folder: (folder / "tokenizer.json").write_text(
                train_bpe([TEXT], vocab_size=270).to_json()
            ),
            "tokenizer {folder} has the hash",
        ),
        (lambda folder: change_description(folder, eos_id=1), "end-of-document id 1"),
        (lambda folder: change_description(folder, eos_id=10_000), "end-of-document id 10000"),
        (lambda folder: change_description(folder, vocab_size=281), "vocab_size 281"),
        # A special token: only the hash tells.
        (lambda folder: change_description(folder, bos_id=0), "tokenizer {folder} has the hash"),
        (lambda folder: change_description(folder, kind="unigram"), "'unigram'"),
        *(
            (partial(change_description, **change), "chomp_tokenizer.json")
            for change in ({"eos_id": None}, {"eos_id": "0"}, {"bos_id": "0"})
        ),
    ],
)
def test_a_folder_that_was_changed_or_is_not_whole_is_refused(
    folder: Path, harm: Callable[[Path], object], given: str
):
    harm(folder)
    with pytest.raises(DataError) as caught:
        load_tokenizer(str(folder))
    assert given.format(folder=folder) in caught.value.given


@pytest.mark.parametrize("content", ["[]", "null", "{}", '{"kind": "bpe"}'])
def test_a_description_without_its_fields_is_refused(folder: Path, content: str):
    (folder / "chomp_tokenizer.json").write_text(content)
    with pytest.raises(DataError) as caught:
        load_tokenizer(str(folder))
    assert "content_hash, eos_id, kind" in caught.value.allowed


def test_a_beginning_of_a_byte_tokenizer_is_refused(tmp_path: Path):
    save_tokenizer(ByteTokenizer(), str(tmp_path))
    change_description(tmp_path, bos_id=0)
    with pytest.raises(DataError) as caught:
        load_tokenizer(str(tmp_path))
    assert "bos_id 0" in caught.value.given


def test_missing_rules_are_named(folder: Path):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(StorageError) as caught:
        load_tokenizer(str(folder))
    assert "'tokenizer.json'" in caught.value.given
