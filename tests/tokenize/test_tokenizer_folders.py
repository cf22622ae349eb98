"""Tokenizers on disk: what is loaded is what was saved, or nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as HuggingFaceTokenizer
from vocabularies import bert, llama_2, llama_3, unigram

from chomp.errors import DataError, StorageError
from chomp.tokenize import ByteTokenizer, JsonTokenizer, load_tokenizer, save_tokenizer, train_bpe

TEXT = "she sells sea shells by the sea shore\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved BPE tokenizer."""
    save_tokenizer(train_bpe([TEXT], vocab_size=280), str(tmp_path / "tokenizer"))
    return tmp_path / "tokenizer"


def change_description(folder: Path, **changes: object) -> None:
    path = folder / "chomp_tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_saved_bpe_tokenizer_loads_the_same(folder: Path):
    loaded, trained = load_tokenizer(str(folder)), train_bpe([TEXT], vocab_size=280)
    assert loaded.content_hash == trained.content_hash
    assert loaded.encode_batch([TEXT, "other"]) == trained.encode_batch([TEXT, "other"])
    assert (loaded.vocab_size, loaded.eos_id) == (trained.vocab_size, trained.eos_id)


def test_a_loaded_tokenizer_does_not_take_quoted_ends_for_ends_either(folder: Path):
    loaded = load_tokenizer(str(folder))
    assert loaded.eos_id not in loaded.encode_batch(["a <|endoftext|> b"])[0]


def test_a_saved_byte_tokenizer_loads_the_same(tmp_path: Path):
    save_tokenizer(ByteTokenizer(), str(tmp_path))
    assert isinstance(load_tokenizer(str(tmp_path)), ByteTokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["chomp_tokenizer.json"]


def test_a_tokenizer_with_an_end_of_its_own_loads_with_that_end(tmp_path: Path):
    rules = HuggingFaceTokenizer.from_str(train_bpe([TEXT], vocab_size=280).to_json())
    rules.add_special_tokens(["</s>"])
    saved = JsonTokenizer(rules.to_str(), eos="</s>")
    save_tokenizer(saved, str(tmp_path))
    loaded = load_tokenizer(str(tmp_path))
    assert loaded.eos_id == saved.eos_id == saved.vocab_size - 1
    assert loaded.content_hash == saved.content_hash


@pytest.mark.parametrize("rules", [llama_2, llama_3, unigram, bert])
@pytest.mark.parametrize("has_bos", [False, True])
def test_every_kind_of_vocabulary_loads_the_same(tmp_path: Path, rules: Any, has_bos: bool):
    found = JsonTokenizer(rules())
    saved = JsonTokenizer(rules(), bos=found.eos_id) if has_bos else found
    save_tokenizer(saved, str(tmp_path))
    loaded = load_tokenizer(str(tmp_path))
    assert loaded.content_hash == saved.content_hash
    assert (loaded.eos_id, loaded.bos_id) == (saved.eos_id, saved.bos_id)
    assert loaded.encode_batch(["the cat"]) == saved.encode_batch(["the cat"])
    assert loaded.token_bytes() == saved.token_bytes()


def test_a_folder_from_before_other_vocabularies_and_beginnings_loads(folder: Path):
    path = folder / "chomp_tokenizer.json"
    old = {**json.loads(path.read_text()), "kind": "bpe"}
    del old["bos_id"]
    path.write_text(json.dumps(old))
    assert load_tokenizer(str(folder)).content_hash == old["content_hash"]
    assert load_tokenizer(str(folder)).bos_id is None


def test_saving_over_another_tokenizer_replaces_it(folder: Path):
    save_tokenizer(ByteTokenizer(), str(folder))
    assert isinstance(load_tokenizer(str(folder)), ByteTokenizer)


def test_a_tokenizer_that_could_not_be_loaded_again_is_not_saved(tmp_path: Path):
    class Foreign:
        vocab_size, eos_id, bos_id, content_hash = 2, 1, None, "x"
        encode_batch = decode = token_bytes = ByteTokenizer.token_bytes

    with pytest.raises(DataError) as caught:
        save_tokenizer(Foreign(), str(tmp_path / "tokenizer"))
    assert "Foreign" in caught.value.given
    assert not (tmp_path / "tokenizer").exists()


def test_rules_changed_after_saving_are_refused(folder: Path):
    rules = json.loads((folder / "tokenizer.json").read_text())
    rules["model"]["merges"].pop()
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    with pytest.raises(DataError) as caught:
        load_tokenizer(str(folder))
    assert str(folder) in caught.value.given


def test_another_layout_of_the_same_rules_is_the_same_tokenizer(folder: Path):
    rules = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(rules, indent=None))
    load_tokenizer(str(folder))


@pytest.mark.parametrize("eos_id", [1, 10_000])
def test_a_changed_end_id_is_refused(folder: Path, eos_id: int):
    change_description(folder, eos_id=eos_id)
    with pytest.raises(DataError) as caught:
        load_tokenizer(str(folder))
    assert "end-of-document id" in caught.value.given


@pytest.mark.parametrize(
    "change", [{"eos_id": None}, {"eos_id": "0"}, {"bos_id": "0"}, {"vocab_size": 281}]
)
def test_a_changed_description_is_refused(folder: Path, change: dict[str, object]):
    change_description(folder, **change)
    with pytest.raises(DataError) as caught:
        load_tokenizer(str(folder))
    assert "chomp_tokenizer.json" in caught.value.given


def test_a_changed_beginning_id_is_refused(folder: Path):
    change_description(folder, bos_id=0)  # a special token: only the hash tells
    with pytest.raises(DataError) as caught:
        load_tokenizer(str(folder))
    assert str(folder) in caught.value.given


def test_a_beginning_of_a_byte_tokenizer_is_refused(tmp_path: Path):
    save_tokenizer(ByteTokenizer(), str(tmp_path))
    change_description(tmp_path, bos_id=0)
    with pytest.raises(DataError) as caught:
        load_tokenizer(str(tmp_path))
    assert "bos_id 0" in caught.value.given


def test_a_half_written_folder_is_refused(folder: Path):
    # The description is written last, so this is what a kill between the two files leaves.
    (folder / "chomp_tokenizer.json").unlink()
    with pytest.raises(DataError) as caught:
        load_tokenizer(str(folder))
    assert "chomp_tokenizer.json is missing" in caught.value.given


def test_a_kill_while_replacing_a_tokenizer_leaves_a_folder_that_is_refused(folder: Path):
    newer = train_bpe([TEXT], vocab_size=270)
    (folder / "tokenizer.json").write_text(newer.to_json())
    with pytest.raises(DataError) as caught:
        load_tokenizer(str(folder))
    assert str(folder) in caught.value.given


def test_missing_rules_are_named(folder: Path):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(StorageError) as caught:
        load_tokenizer(str(folder))
    assert "'tokenizer.json'" in caught.value.given


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(DataError) as caught:
        load_tokenizer(str(tmp_path / "nowhere"))
    assert f"{tmp_path}/nowhere" in caught.value.given


@pytest.mark.parametrize("content", ["[]", "null", "{}", '{"kind": "bpe"}'])
def test_a_description_without_its_fields_is_refused(folder: Path, content: str):
    (folder / "chomp_tokenizer.json").write_text(content)
    with pytest.raises(DataError) as caught:
        load_tokenizer(str(folder))
    assert "content_hash, eos_id, kind" in caught.value.allowed


def test_an_unknown_kind_is_refused_rather_than_read_as_bytes(folder: Path):
    change_description(folder, kind="unigram")
    with pytest.raises(DataError) as caught:
        load_tokenizer(str(folder))
    assert "'unigram'" in caught.value.given
