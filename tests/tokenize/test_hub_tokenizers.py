"""A tokenizer by its hub name: from the hub's cache as it is on disk, and without a hub."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from vocabularies import llama_2

from chomp.errors import DataError, StorageError
from chomp.tokenize import JsonTokenizer, load_hub_tokenizer, tokenizer_from_json_file

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PROGRAM = """
import json, sys
from chomp.errors import DataError, StorageError
from chomp.tokenize import load_hub_tokenizer
for arguments in json.load(sys.stdin):
    try:
        tokenizer = load_hub_tokenizer(**arguments)
        print(json.dumps([tokenizer.content_hash, tokenizer.eos_id, tokenizer.bos_id]))
    except (DataError, StorageError) as error:
        print(json.dumps(f"{type(error).__name__}: {error}"))
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache as the hub library lays it out, with one model in it."""
    model = tmp_path / "hub" / "models--someone--small"
    (model / "snapshots" / COMMIT).mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    (model / "snapshots" / COMMIT / "tokenizer.json").write_text(llama_2())
    return tmp_path / "hub"


def loaded(cache: Path, *calls: dict[str, object], **environment: str) -> list[object]:
    """What a fresh process gets for each call: the hub library reads its settings once."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(calls),
        env={**os.environ, "HF_HUB_CACHE": str(cache), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_cached_tokenizer_loads_by_name_and_is_identified_by_its_content(cache: Path):
    main, commit, missing_model, missing_commit, wrong_name = loaded(
        cache,
        {"name": "someone/small"},
        {"name": "someone/small", "revision": COMMIT, "eos": "</s>", "bos": 1},
        {"name": "someone/large"},
        {"name": "someone/small", "revision": "v2"},
        {"name": "a/b/c"},
        HF_HUB_OFFLINE="1",
    )
    assert main == [JsonTokenizer(llama_2()).content_hash, 2, None]
    assert commit == [JsonTokenizer(llama_2(), bos=1).content_hash, 2, 1]
    # No hub was asked: it may have them.
    large, small = "hub tokenizer 'someone/large'", "hub tokenizer 'someone/small'"
    assert str(missing_model).startswith(f"StorageError: {large}, revision 'main': ")
    assert str(missing_commit).startswith(f"StorageError: {small}, revision 'v2': ")
    assert str(wrong_name).startswith("DataError: ")
    assert "form 'repo_name' or 'namespace/repo_name'" in str(wrong_name)
    for refusal in (missing_model, missing_commit, wrong_name):
        assert "Allowed: the name of a model with a tokenizer.json" in str(refusal)
        assert "tokenizer.json" in str(refusal)


@pytest.mark.slow  # the hub library tries five times, with pauses, before it gives up
def test_a_hub_that_refuses_connections_is_a_clear_error(cache: Path):
    (refusal,) = loaded(cache, {"name": "someone/large"}, HF_ENDPOINT="http://127.0.0.1:9")
    large = "StorageError: hub tokenizer 'someone/large', revision 'main': "
    assert str(refusal).startswith(large)
    assert "check the name, the network and your access" in str(refusal)


def test_a_missing_hub_library_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DataError) as caught:
        load_hub_tokenizer("someone/small")
    assert "ModuleNotFoundError" in caught.value.given
    assert "pip install huggingface_hub" in caught.value.fix


def test_a_file_is_read_where_it_lies(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text(llama_2())
    tokenizer = tokenizer_from_json_file(tmp_path / "tokenizer.json", eos="</s>", bos="<s>")
    assert tokenizer.content_hash == JsonTokenizer(llama_2(), bos=1).content_hash


def test_a_file_that_is_missing_or_no_tokenizer_is_named(tmp_path: Path):
    with pytest.raises(StorageError) as caught:
        tokenizer_from_json_file(str(tmp_path / "tokenizer.json"))
    assert "tokenizer.json" in caught.value.given
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError) as caught:
        tokenizer_from_json_file(str(tmp_path / "tokenizer.json"))
    assert f"{tmp_path}/tokenizer.json" in caught.value.given
