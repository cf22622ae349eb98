"""What lm-eval's own Hugging Face model says of a tiny Llama, on the tasks in `llama_tasks`.

    python tests/evaluation/llama_reference.py [--exported FOLDER] [--out FILE]

Run by hand, in an environment with torch, transformers, accelerate and lm-eval, to write the golden
file anew; nothing here imports chomp or JAX. The weights come from a formula, so that both sides
have them without a file; `--exported` takes them from an export of chomp's instead. They become a
Llama by the code in `docs/recipes/export_to_transformers.md`.
"""

import argparse
import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/llama_harness.json"
RECIPE = ROOT / "docs/recipes/export_to_transformers.md"
TASKS = Path(__file__).parent / "llama_tasks"
TASK_NAMES = ("capitals", "capitals_shots", "endings", "verses", "answers")

# Fields of GrugModelConfig. Grouped heads of a width of their own, an epsilon and a base that are
# nobody's default: a conversion that forgets one of them shows.
MODEL = {
    "vocab_size": 320,
    "hidden_dim": 32,
    "intermediate_dim": 48,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "max_seq_len": 64,
    "mlp": "swiglu",
    "qk_norm": False,
    "rope_theta": 5000.0,
    "layer_norm_eps": 1e-3,
    "sliding_window": None,
    "logit_soft_cap": None,
}
EOS = "<|endoftext|>"


def shapes() -> dict[str, tuple[int, ...]]:
    """The shape of every array, by the name an export has for it."""
    d, f, v = MODEL["hidden_dim"], MODEL["intermediate_dim"], MODEL["vocab_size"]
    hk, gk = (MODEL[name] * MODEL["head_dim"] for name in ("num_heads", "num_kv_heads"))
    attention = {"w_q": (d, hk), "w_k": (d, gk), "w_v": (d, gk), "w_o": (hk, d)}
    mlp = {"w_up": (d, f), "w_gate": (d, f), "w_down": (f, d)}
    found: dict[str, tuple[int, ...]] = {"token_embed": (v, d), "lm_head": (d, v)}
    found["final_norm"] = (d,)
    for layer in range(MODEL["num_layers"]):
        block = f"blocks.{layer}"
        found |= {f"{block}.attn.{name}": shape for name, shape in attention.items()}
        found |= {f"{block}.mlp.{name}": shape for name, shape in mlp.items()}
        found |= {f"{block}.{name}": (d,) for name in ("attn_norm", "mlp_norm")}
    return found


def arrays() -> dict[str, np.ndarray]:
    """The weights: uniform numbers from a hash of each name, which no library can change."""
    found = {}
    for name, shape in shapes().items():
        size = int(np.prod(shape))
        bits = np.frombuffer(hashlib.shake_256(name.encode()).digest(4 * size), "<u4")
        uniform = (2.0 * (bits.astype(np.float64) / 2**32) - 1.0).reshape(shape)
        # Matrices that more than keep their input's size, so that attention prefers some keys; a
        # head that does not, because the sums that torch forms in float32 must stay small.
        gain = 1.5 if name == "lm_head" else 3.0
        if name == "token_embed":
            gain = shape[0] ** 0.5
        value = gain * shape[0] ** -0.5 * uniform if len(shape) > 1 else 1.0 + 0.5 * uniform
        found[name] = value.astype(np.float32)
    return found


def tasks_in(folder: Path) -> str:
    """The tasks copied to `folder`, told where they are: lm-eval's `include_path`."""
    folder.mkdir()
    for path in TASKS.glob("*.*"):
        (folder / path.name).write_text(path.read_text().replace("FOLDER", str(folder)))
    return str(folder)


def tokenizer_text() -> str:
    """A `tokenizer.json`: a byte-level BPE trained on texts of the tasks."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MODEL["vocab_size"],
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [str(TASKS / name) for name in ("capitals.jsonl", "verses.jsonl")]
    tokenizer.train(texts, trainer)
    return str(tokenizer.to_str())


def write_export(folder: Path) -> None:
    """What `chomp checkpoint export` would write, as far as the recipe reads it."""
    from safetensors.numpy import save_file

    (folder / "tokenizer").mkdir(parents=True)
    save_file(arrays(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model": MODEL}))
    text = tokenizer_text()
    (folder / "tokenizer/tokenizer.json").write_text(text)
    ids = {token["content"]: token["id"] for token in json.loads(text)["added_tokens"]}
    ends = {"eos_id": ids[EOS], "bos_id": None}
    (folder / "tokenizer/chomp_tokenizer.json").write_text(json.dumps(ends))


def recipe_code() -> str:
    """The program in the recipe."""
    (code,) = re.findall(r"```python\n(.*?)```", RECIPE.read_text(), re.DOTALL)
    return str(code)


def answered(kind: str, requests: Sequence[Any], responses: Sequence[Any]) -> list[dict[str, Any]]:
    """Requests as the golden file has them: the texts that were asked about, and what came back."""
    return [
        {"kind": kind, "texts": [text for text in request.args if isinstance(text, str)]}
        | {"response": list(found) if isinstance(found, tuple) else found}
        for request, found in zip(requests, responses, strict=True)
    ]


def reference(llama: Path, tasks: Path) -> dict[str, Any]:
    """Every response and every metric of lm-eval's own model over the folder `llama`."""
    import torch
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    seen: list[dict[str, Any]] = []

    class Recorded(HFLM):
        def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
            found = super().loglikelihood(requests, disable_tqdm=True)
            seen.extend(answered("loglikelihood", requests, found))
            return found

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
            found = super().loglikelihood_rolling(requests, disable_tqdm=True)
            seen.extend(answered("loglikelihood_rolling", requests, found))
            return found

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
            found = super().generate_until(requests, disable_tqdm=True)
            seen.extend(answered("generate_until", requests, found))
            return found

    torch.set_num_threads(1)  # sums in one order
    model = Recorded(
        pretrained=str(llama),
        device="cpu",
        dtype="float32",
        batch_size=4,
        # It counts what a model reads; the last token of a row of ours is only predicted.
        max_length=MODEL["max_seq_len"] - 1,
    )
    results = simple_evaluate(
        model=model,
        tasks=list(TASK_NAMES),
        task_manager=TaskManager(include_path=tasks_in(tasks), include_defaults=False),
        bootstrap_iters=0,
        log_samples=False,
    )
    metrics = {
        f"{task}/{name.removesuffix(',none')}": value
        for task, values in results["results"].items()
        for name, value in values.items()
        if name.endswith(",none") and "_stderr" not in name
    }
    return {"metrics": metrics, "requests": seen}


def main() -> None:
    """Convert, evaluate, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--exported", type=Path, help="a folder of `chomp checkpoint export`")
    parser.add_argument("--out", type=Path, default=GOLDEN)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # All is in local files; nothing is to ask a hub, or to leave anything in a home folder.
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": name, "TOKENIZERS_PARALLELISM": "false"}
        exported = asked.exported or folder / "exported"
        if asked.exported is None:
            write_export(exported)
        code: dict[str, Any] = {"__name__": "recipe"}
        exec(recipe_code(), code)
        code["convert"](exported, folder / "llama")
        found = reference(folder / "llama", folder / "tasks")
        text = (exported / "tokenizer/tokenizer.json").read_text()
    golden = {"made_by": versions(), "tokenizer": text, **found}
    asked.out.write_text(json.dumps(golden, indent=1) + "\n")
    print(f"wrote {asked.out}: {len(found['requests'])} requests")


def versions() -> dict[str, str]:
    """Of what the numbers depend on."""
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "lm_eval", "tokenizers")}


if __name__ == "__main__":
    main()
