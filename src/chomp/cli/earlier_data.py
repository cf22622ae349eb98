"""Keys of the first chomp that have to be read together: what is read, by what tokenizer, in what
dtype. Each function takes them out of a file's content and puts in what they mean here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from chomp.errors import require

Content = dict[str, Any]

COMPONENT = "text"  # the name of the one component that such a file has
_HF = ("hf_dataset", "hf_name", "hf_split")
# Of a stream, by the names they have there.
OF_STREAM = {
    "shuffle": "shuffle",
    "shuffle_buffer_size": "window_documents",
    "max_retries": "max_retries",
    "retry_delay_sec": "retry_delay_s",
    "max_eval_samples": "max_validation_documents",
}
# The first chomp's defaults of keys that another backend or tokenizer does not read.
UNREAD_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "hf_dataset": ("Zyphra/Zyda-2",),
    "hf_name": ("sample-100BT",),
    "hf_split": ("train",),
    "text_key": ("text",),
    "local_text": (None, ""),
    "hf_name_or_path": (None, "pszemraj/bytebpe-tokenizer-32k-mlm"),
}
# Likewise the ids of special tokens, by the field that they are where a tokenizer has it.
SPECIAL_IDS = {"bos_token_id": 1, "eos_token_id": 2}
_SPECIAL_DEFAULTS = {"auto_set_special_tokens": True, "add_bos": False}
_NOTHING_HELD_OUT = 1e-12  # of documents; a fraction is above 0
_TOKENIZER_FILE = "tokenizer.json"
_log = logging.getLogger(__name__)


def with_components(data: Content) -> Content:
    """A `data` section with a component in the place of `backend` and the keys that go with it."""
    asked = [key for key in ("backend", *_HF, "text_key", "local_text") if key in data]
    if not asked:
        return data
    backend = data.get("backend", "local_text" if "local_text" in data else "hf")
    require(
        backend in ("hf", "local_text"),
        given=f"data.backend={backend!r}",
        allowed="hf or local_text, or data.components, which has more kinds of source",
        fix="write backend: hf with hf_dataset, or data.components",
    )
    require(
        "components" not in data,
        given=f"data.{asked[0]} with data.components",
        allowed="one of them",
        fix="say all of it in data.components",
    )
    return _hugging_face(data) if backend == "hf" else _local_text(data)


def taken_multiple(tokenizer: Content) -> int | None:
    """What the model's vocabulary is to be a multiple of, taken out of a `tokenizer` section."""
    multiple = tokenizer.pop("vocab_size_multiple", None)
    is_count = isinstance(multiple, int) and not isinstance(multiple, bool) and multiple >= 1
    require(
        multiple is None or is_count,
        given=f"data.tokenizer.vocab_size_multiple={multiple!r}",
        allowed="a whole number of 1 or more, or null",
        fix="write 128, or leave it out to have model.vocab_size as it is",
    )
    return multiple


def with_tokenizer_kind(tokenizer: Content) -> Content:
    """A `tokenizer` section with `hub` or `json` in the place of `hf`."""
    left = _without_harmless(tokenizer)
    name, kind = left.pop("hf_name_or_path", None), left.get("kind")
    if kind != "hf":
        _refuse_unread_name(name, kind)
        return left
    left["kind"] = "hub"
    if name is None:
        require(
            any(key in left for key in ("name", "path")),
            given="data.tokenizer.kind=hf without data.tokenizer.hf_name_or_path",
            allowed="a name on the hub, or the path of a tokenizer",
            fix="write hf_name_or_path: NAME",
        )
        return left
    require(
        isinstance(name, str),
        given=f"data.tokenizer.hf_name_or_path={name!r}",
        allowed="a name on the hub, or the path of a tokenizer",
        fix="write hf_name_or_path: NAME",
    )
    place = Path(name)
    file = place / _TOKENIZER_FILE if place.is_dir() else place
    # As it was meant by the library that read it: a name of the hub, unless something is there.
    if file.is_file():
        return {**left, "kind": "json", "file": str(file)}
    return {**left, "name": name}


def with_special_tokens(model: Content, tokenizer: Content) -> tuple[Content, Content]:
    """Both sections with `eos` and `bos` in the place of the keys that decide them together.

    Those are the ids in `model`, unless `auto_set_special_tokens` (the default) asks for the
    tokenizer's own. A document begins with BOS only where `add_bos` says so.
    """
    kind = tokenizer.get("kind")
    without_ids = {key: value for key, value in model.items() if key not in SPECIAL_IDS}
    if kind not in ("hf", "hub", "json"):
        _refuse_special_ids(model, kind)
        return without_ids, tokenizer
    left = dict(tokenizer)
    asked = {key: left.pop(key) for key in _SPECIAL_DEFAULTS if key in left}
    if kind != "hf" and not asked and without_ids == model:
        return model, tokenizer  # nothing here is a key of the first chomp
    for key, value in asked.items():
        require(
            isinstance(value, bool),
            given=f"data.tokenizer.{key}={value!r}",
            allowed="true or false",
            fix="write one of them",
        )
    is_auto, adds_bos = ({**_SPECIAL_DEFAULTS, **asked}[key] for key in _SPECIAL_DEFAULTS)
    own = _own_special_tokens(left) if is_auto else {}
    for name in ("eos", "bos") if adds_bos else ("eos",):
        key = f"{name}_token_id"
        require(
            is_auto or name not in left,
            given=f"data.tokenizer.{name} with data.tokenizer.auto_set_special_tokens=false, "
            f"which takes model.{key}",
            allowed="one of them",
            fix="remove auto_set_special_tokens",
        )
        found = own.get(name) if is_auto else model.get(key, SPECIAL_IDS[key])
        if found is not None:
            left.setdefault(name, found)
    require(
        not adds_bos or left.get("bos") is not None,
        given="data.tokenizer.add_bos=true with a tokenizer whose own beginning is not known here",
        allowed="a tokenizer in a folder with its tokenizer_config.json, or a token that is named",
        fix="replace add_bos by data.tokenizer.bos=its id or its text",
    )
    # Where add_bos=false is written out, nobody expects a BOS.
    is_clear = {"eos": not is_auto, "bos": "add_bos" in asked and not (adds_bos and is_auto)}
    for name in (name for name, is_expected in is_clear.items() if not is_expected):
        given = model.get(f"{name}_token_id")
        if given not in (None, SPECIAL_IDS[f"{name}_token_id"]):
            _log.warning(
                "model.%s_token_id=%s has no effect: special tokens are the tokenizer's own, and a "
                "document begins with one only with add_bos (set data.tokenizer.%s=%s to use it)",
                *(name, given, name, given),
            )
    return without_ids, left


def _own_special_tokens(tokenizer: Content) -> dict[str, str]:
    """The texts of `eos` and `bos` that a tokenizer in a local folder has noted beside its file."""
    place = Path(str(tokenizer.get("hf_name_or_path") or tokenizer.get("file") or ""))
    folder = place if place.is_dir() else place.parent
    if not (folder / _TOKENIZER_FILE).is_file():
        return {}
    noted: Content = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            noted |= json.loads((folder / name).read_text())
    found = {name: noted.get(f"{name}_token") for name in ("eos", "bos")}
    texts = {k: v.get("content") if isinstance(v, dict) else v for k, v in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _refuse_special_ids(model: Content, kind: Any) -> None:
    """Raise `ConfigError` for ids that a tokenizer of that kind, which has its own, cannot have."""
    wrong = [
        f"model.{key}={model[key]!r}"
        for key, default in SPECIAL_IDS.items()
        if model.get(key) not in (None, default)
    ]
    require(
        not wrong,
        given=f"{' and '.join(wrong)} with {_kind_words(kind)}, which has its own special tokens",
        allowed="ids of special tokens with data.tokenizer.kind=hf",
        fix=f"remove {' and '.join(text.partition('=')[0] for text in wrong)}",
    )


def precision(model: Content) -> tuple[Content, str | None, list[str]]:
    """A `model` section without its dtypes, what they are as `train.precision`, and their keys."""
    parts = {"params": "param_dtype", "compute": "compute_dtype"}
    given = {part: model[key] for part, key in parts.items() if model.get(key) is not None}
    left = {key: value for key, value in model.items() if key not in parts.values()}
    text = ",".join(f"{part}={dtype}" for part, dtype in given.items())
    return left, text or None, [f"model.{parts[part]}" for part in given]


def _hugging_face(data: Content) -> Content:
    """One split of a dataset, read as a stream: the first chomp had no token stores."""
    require(
        bool(data.get("hf_dataset")),
        given="data.backend=hf without data.hf_dataset",
        allowed="the name of a dataset, or a folder of files",
        fix="write hf_dataset: NAME",
    )
    _refuse_unread(data, ("local_text",), "hf")
    source: Content = {"kind": "hf", "path": data["hf_dataset"], "streaming": True}
    source |= {key.removeprefix("hf_"): data[key] for key in _HF[1:] if key in data}
    stream = {here: data[key] for key, here in OF_STREAM.items() if key in data}
    component = {"source": source, "stream": stream, **_format(data)}
    return _with_component(data, component, (*_HF, *OF_STREAM, "local_text"))


def _local_text(data: Content) -> Content:
    """The one text, over and over: a stream goes on with the next epoch in the middle of a row."""
    require(
        bool(data.get("local_text")),
        given="data.backend=local_text without data.local_text",
        allowed="a text",
        fix='write local_text: "..."',
    )
    _refuse_unread(data, (*_HF, "text_key"), "local_text")
    component: Content = {"source": {"kind": "memory", "documents": [data["local_text"]]}}
    if data.get("repeat", True):
        component["stream"] = {}
    # The only text there is: a hash that holds out one in twenty would leave nothing to train on.
    data = {"validation_fraction": _NOTHING_HELD_OUT, **data}
    return _with_component(data, component, (*_HF, "local_text"))


def _without_harmless(tokenizer: Content) -> Content:
    """A `tokenizer` section without defaults that change nothing beside what else is said."""
    left = dict(tokenizer)
    if left.get("kind") == "byte" and left.get("add_eos") is False:
        del left["add_eos"]  # without a `byte_offset` there was no end to add
    return left


def _format(data: Content) -> Content:
    return {"format": {"kind": "text", "text_key": data["text_key"]}} if "text_key" in data else {}


def _with_component(data: Content, component: Content, taken: Iterable[str]) -> Content:
    left = {key: value for key, value in data.items() if key not in {*taken, "backend", "text_key"}}
    return {**left, "components": {COMPONENT: component}}


def _refuse_unread(data: Content, keys: Iterable[str], backend: str) -> None:
    found = [key for key in keys if key in data and data[key] not in UNREAD_DEFAULTS[key]]
    require(
        not found,
        given=f"data.{' and data.'.join(found)} with data.backend={backend}, which does not "
        "read it",
        allowed=f"the keys of {backend}",
        fix=f"remove {' and '.join(found)}, or change the backend",
    )


def _refuse_unread_name(name: Any, kind: Any) -> None:
    key = "hf_name_or_path"
    require(
        name in UNREAD_DEFAULTS[key],
        given=f"data.tokenizer.{key}={name!r} with {_kind_words(kind)}, which does not read it",
        allowed=f"data.tokenizer.{key} with data.tokenizer.kind=hf",
        fix=f"remove {key}, or write kind: hf",
    )


def _kind_words(kind: Any) -> str:
    return f"data.tokenizer.kind={kind}" if kind else "a tokenizer of no kind that is named"
