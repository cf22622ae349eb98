"""Convert a config file of the first chomp into one that `chomp train` reads.

    uv run python scripts/convert_chomp_yaml.py old.yaml > new.yaml

Keys that mean the same are renamed, defaults that change nothing are left out, and keys that are
read together (what is read, by what tokenizer) become `data.components` and `data.tokenizer`. What
cannot be converted is listed on stderr with what to use instead, and the exit code is 1. Comments
of the file are lost.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from chomp.cli.legacy_keys import HINTS

Content = dict[str, Any]

# Old key -> new key, for values that mean the same.
RENAMED = {
    "data.seed": "train.data_seed",
    "data.packing_max_docs_per_bin": "data.packing.max_documents_per_row",
    "train.profile": "train.profiler.enabled",
    "train.profile_dir": "train.log_dir",
    "train.eval_every": "eval.steps_per_eval",
    "checkpoint.save_every": "checkpoint.every",
}
# Likewise for keys of which each value means another.
TRANSLATED: dict[str, tuple[str, dict[Any, Any]]] = {
    "model.use_checkpoint": ("model.remat", {True: "block", False: "none"}),
    "data.repeat": ("data.stop_strategy", {True: "restart", False: "all_exhausted"}),
    "debug.nan_check": ("train.nonfinite_policy", {True: "raise", False: "skip"}),
}
# Keys without a place here, and the values that change nothing: those are left out.
DROPPED: dict[str, tuple[Any, ...]] = {
    "model.backend": ("megalodon",),
    "model.d_model": (128,),
    "model.rope_base": (None,),
    "model.max_cache_len": (None,),
    "model.cache_unbounded": (False,),
    "model.max_positions": (1_000_000,),
    "model.gemm_backend": ("default",),
    "model.pad_token_id": (0,),
    "model.accum_dtype": ("float32",),
    "model.softmax_dtype": ("float32",),
    "data.hf_eval_split": (None,),
    "data.state_update_interval": (2000,),
    "data.packing_buffer_docs": (128,),
    "data.packing_max_docs_per_bin": (None,),
    "data.grain_prefetch": (0,),
    "data.device_put": (False, True),
    "data.tokenizer.hf_use_fast": (True,),
    "data.tokenizer.hf_trust_remote_code": (False,),
    "data.tokenizer.byte_offset": (0,),
    "data.tokenizer.add_eos": (True,),
    "data.tokenizer.max_doc_tokens": (None, 0),
    "train.jit": (True,),
    "train.profile_dir": (None,),
    "train.generate_temperature": (None,),
    "checkpoint.enabled": (True,),
    "checkpoint.root_dir": (None,),
    "checkpoint.async_save": (True,),
    "debug.check_device_every": (100,),
    "logging.run_dir": (None,),
}
# Keys of the one dataset that a file reads, by their names in a component's stream.
STREAM = {
    "shuffle": "shuffle",
    "shuffle_buffer_size": "window_documents",
    "max_retries": "max_retries",
    "retry_delay_sec": "retry_delay_s",
    "max_eval_samples": "max_validation_documents",
}
# What the first chomp read by default.
DATASET = {"dataset": "Zyphra/Zyda-2", "name": "sample-100BT", "split": "train"}
SPECIAL_IDS = {"bos_token_id": 1, "eos_token_id": 2}  # and the first chomp's defaults
NOTHING_HELD_OUT = 1e-12  # of documents; a fraction is above 0


def converted(old: Content) -> tuple[Content, list[str]]:
    """The content of a file for `chomp train`, and what could not be converted."""
    new = _copy(old)
    problems: list[str] = []
    _convert_special_tokens(new, problems)
    _convert_tokenizer(new, problems)
    _convert_sources(new, problems)
    _convert_precision(new)
    for name, values in DROPPED.items():
        if _has(new, name) and any(_is_same(_get(new, name), value) for value in values):
            _take(new, name)
    for name, (field, meanings) in TRANSLATED.items():
        if _has(new, name):
            value = _take(new, name)
            if isinstance(value, bool):
                _put(new, field, meanings[value])
            else:
                problems.append(f"{name}={value!r}: write true or false")
    for name, field in RENAMED.items():
        if _has(new, name):
            _put(new, field, _take(new, name))
    if _has(new, "eval.steps_per_eval"):
        new["eval"]["steps_per_eval"] = new["eval"]["steps_per_eval"] or None  # 0 is never
    problems += [f"{name}: {HINTS[name]}" for name in HINTS if _has(new, name)]
    if not _section(new, "data.tokenizer"):
        del new["data"]["tokenizer"]
    sections = {key: value for key, value in new.items() if value != {}}
    return {"template": "megalodon", **sections}, problems


def _convert_special_tokens(new: Content, problems: list[str]) -> None:
    """`eos` and `bos` in the place of the ids in `model` and the keys that choose between them."""
    model, tokenizer = new.get("model") or {}, _section(new, "data.tokenizer")
    ids = {key: model.pop(key) for key in SPECIAL_IDS if key in model}
    is_auto = tokenizer.pop("auto_set_special_tokens", True)
    adds_bos = tokenizer.pop("add_bos", False)
    if tokenizer.get("kind") != "hf":
        wrong = [key for key, value in ids.items() if value not in (None, SPECIAL_IDS[key])]
        problems += [
            f"model.{key}: a {tokenizer.get('kind')} tokenizer has its own" for key in wrong
        ]
        if adds_bos:
            problems.append(f"data.tokenizer.add_bos: {HINTS['data.tokenizer.add_bos']}")
        return
    own = _own_special_tokens(tokenizer) if is_auto else {}
    for name in ("eos", "bos") if adds_bos else ("eos",):
        key = f"{name}_token_id"
        found = own.get(name) if is_auto else ids.get(key, SPECIAL_IDS[key])
        if found is not None:
            tokenizer.setdefault(name, found)
    if adds_bos and tokenizer.get("bos") is None:
        problems.append("data.tokenizer.add_bos: set data.tokenizer.bos to its id or its text")


def _own_special_tokens(tokenizer: Content) -> dict[str, str]:
    """The texts of `eos` and `bos` that a tokenizer in a local folder has noted beside its file."""
    place = Path(str(tokenizer.get("hf_name_or_path") or ""))
    folder = place if place.is_dir() else place.parent
    if not (folder / "tokenizer.json").is_file():
        return {}
    noted: Content = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            noted |= json.loads((folder / name).read_text(encoding="utf-8"))
    found = {name: noted.get(f"{name}_token") for name in ("eos", "bos")}
    texts = {k: v.get("content") if isinstance(v, dict) else v for k, v in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _convert_tokenizer(new: Content, problems: list[str]) -> None:
    """`hub` or `json` in the place of `hf`, and a vocabulary that is rounded up already."""
    tokenizer = _section(new, "data.tokenizer")
    name = tokenizer.pop("hf_name_or_path", None)
    multiple = tokenizer.pop("vocab_size_multiple", None)
    if tokenizer.get("kind") == "byte" and tokenizer.get("add_eos") is False:
        del tokenizer["add_eos"]  # without a byte_offset there was no end to add
    if tokenizer.get("kind") == "hf":
        place = Path(str(name))
        file = place / "tokenizer.json" if place.is_dir() else place
        del tokenizer["kind"]
        if name is None:
            problems.append("data.tokenizer.kind: hf without hf_name_or_path: write it")
        elif file.is_file():
            tokenizer |= {"kind": "json", "file": str(file)}
        else:
            tokenizer |= {"kind": "hub", "name": name}
    size = (new.get("model") or {}).get("vocab_size")
    if isinstance(multiple, int) and isinstance(size, int):
        ids = 257 if tokenizer.get("kind") == "byte" else 0  # others are known once they are read
        new["model"]["vocab_size"] = -(-max(size, ids) // multiple) * multiple


def _convert_sources(new: Content, problems: list[str]) -> None:
    """One component in the place of `backend` and the keys that go with it."""
    data = _section(new, "data")
    if "components" in data:
        return
    backend = data.pop("backend", "local_text" if data.get("local_text") else "hf")
    text, key = data.pop("local_text", None), data.pop("text_key", "text")
    dataset = {name: data.pop(f"hf_{name}", default) for name, default in DATASET.items()}
    stream = {here: data.pop(there) for there, here in STREAM.items() if there in data}
    component: Content
    if backend == "hf":
        source = {"kind": "hf", "path": dataset["dataset"], "streaming": True}
        source |= {name: dataset[name] for name in ("name", "split") if dataset[name] is not None}
        component = {"source": source, "stream": stream}
        if key != "text":
            component["format"] = {"kind": "text", "text_key": key}
    elif backend == "local_text" and text:
        component = {"source": {"kind": "memory", "documents": [text]}}
        if data.get("repeat", True):
            component["stream"] = {}
        if "shuffle" in stream:
            data["shuffle"] = stream["shuffle"]
        # It is the only text there is: nothing can be held out, and so nothing evaluated.
        data.setdefault("validation_fraction", NOTHING_HELD_OUT)
        every, steps = _get(new, "train.eval_every"), _get(new, "train.steps")
        if every and not (isinstance(steps, int) and every > steps):
            problems.append("train.eval_every: nothing is held out of one text; set it to 0")
        _take(new, "train.eval_every")
        new["eval"] = None
    else:
        problems.append(f"data.backend={backend!r}: use data.components")
        return
    data["components"] = {"text": component}


def _convert_precision(new: Content) -> None:
    """`train.precision` in the place of the model's dtypes."""
    parts = {"params": "model.param_dtype", "compute": "model.compute_dtype"}
    given = {part: _take(new, name) for part, name in parts.items() if _has(new, name)}
    text = ",".join(f"{part}={dtype}" for part, dtype in given.items() if dtype is not None)
    if text:
        _put(new, "train.precision", text)


def _is_same(one: Any, other: Any) -> bool:
    """Equal; true is not 1, as it is to Python."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _section(content: Content, name: str) -> Content:
    """A section, which is made where there is none."""
    here = content
    for part in name.split("."):
        if not isinstance(here.get(part), dict):
            here[part] = {}
        here = here[part]
    return here


def _get(content: Content, name: str) -> Any:
    *path, key = name.split(".")
    here: Any = content
    for part in path:
        here = here.get(part) if isinstance(here, dict) else None
    return here.get(key) if isinstance(here, dict) else None


def _has(content: Content, name: str) -> bool:
    path, _, key = name.rpartition(".")
    here: Any = content
    for part in path.split("."):
        here = here.get(part) if isinstance(here, dict) else None
    return isinstance(here, dict) and key in here


def _take(content: Content, name: str) -> Any:
    path, _, key = name.rpartition(".")
    return _section(content, path).pop(key, None)


def _put(content: Content, name: str, value: Any) -> None:
    path, _, key = name.rpartition(".")
    _section(content, path)[key] = value


def _copy(value: Any) -> Any:
    return {key: _copy(each) for key, each in value.items()} if isinstance(value, dict) else value


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the converted file; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", help="a YAML file of the first chomp")
    old = yaml.safe_load(Path(parser.parse_args(arguments).file).read_text(encoding="utf-8"))
    new, problems = converted(old or {})
    print(yaml.safe_dump(new, sort_keys=False, allow_unicode=True), end="")
    for problem in problems:
        print(f"not converted: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
