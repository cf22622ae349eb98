"""Messages as they are printed, one from each room, compared to the letter.

All other tests look at an error's type and fields. Read a change here the way a user would.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from chomp.checkpoint import LoadOptions
from chomp.checkpoint.resume import search_for
from chomp.config import apply_overrides, config_from_mapping
from chomp.data import JsonlSource, LmComponentConfig, LmDataConfig, source_documents
from chomp.errors import ChompError
from chomp.evaluation.harness.tasks import load_tasks
from chomp.executor import ExecutorStep, Resources, plan_steps, versioned
from chomp.launch.process import ProcessRunner
from chomp.mesh import MeshConfig
from chomp.optim import AdamConfig, GrugOptimizerConfig
from chomp.storage import read_json
from chomp.tokenize import JsonTokenizer, train_bpe
from chomp.tracking import flat_metrics


def work(config: object) -> None:
    """What the steps of these tests would do."""


def step(rate: float = 0.1, **settings: object) -> ExecutorStep:
    return ExecutorStep("train", work, {"rate": versioned(rate)}, **settings)


def jsonl(folder: Path, line: str) -> JsonlSource:
    (folder / "a.jsonl").write_text(line)
    return JsonlSource(paths=(str(folder / "a.jsonl"),))


def tasks(folder: Path) -> str:
    (folder / "colours.yaml").write_text("task: colours\noutput_type: generate_until\n")
    return str(folder)


CASES: dict[str, Callable[[Path], object]] = {
    "config": lambda _: config_from_mapping(AdamConfig, {"b1": "high"}, source="run.yaml"),
    "override": lambda _: apply_overrides(AdamConfig(), ["b3=0.9"]),
    "bound": lambda _: AdamConfig(b1=1.5),
    "data config": lambda _: LmDataConfig(components={"ema": LmComponentConfig()}),
    "record": lambda folder: list(source_documents(jsonl(folder, '{"txt": "hello"}'))),
    "tokenizer": lambda _: JsonTokenizer(train_bpe(["a"], vocab_size=257).to_json(), eos="</s>"),
    "text": lambda _: train_bpe(["a"], vocab_size=257).encode_batch(["fine", "a\ud800"]),
    "checkpoint": lambda folder: search_for(str(folder), LoadOptions(load_checkpoint=True)),
    "mesh": lambda _: MeshConfig(data=3).shape(4),
    "optimizer": lambda _: GrugOptimizerConfig().build(10, {"layer": {"b": "bias"}}),
    "plan": lambda folder: plan_steps(
        [step(rate, override_output_path="out") for rate in (0.1, 0.2)], prefix=str(folder)
    ),
    "launch": lambda folder: ProcessRunner(
        plan_steps([step(resources=Resources(custom={"TPU": 4}))], prefix=str(folder))
    ),
    "storage": lambda folder: read_json(str(folder / "gone.json")),
    "harness": lambda folder: load_tasks(["colour"], include_path=tasks(folder)),
    "metric": lambda _: flat_metrics({"train/x": [1, 2]}),
}
MESSAGES = {
    "config": ("run.yaml: b1='high' (a string). Allowed: a number. Fix: set b1 to a number."),
    "override": (
        "override: 'b3=0.9': b3 is not a known key. "
        "Allowed: the keys of AdamConfig: b1, b2, eps, nesterov. "
        "Fix: remove b3."
    ),
    "bound": (
        "b1=1.5. Allowed: above 0 and below 1. Fix: set b1 to a number in that range, such as 0.9."
    ),
    "data config": (
        "a component named 'ema'. "
        "Allowed: any other name: eval/ema/* is for the averaged weights. "
        "Fix: rename the component."
    ),
    "record": (
        "record FOLDER/a.jsonl:0 has no key 'text' (did you mean txt?); its keys are 'txt'. "
        "Allowed: records with the key 'text', as the format is set. "
        "Fix: set the format's key to 'txt'."
    ),
    "tokenizer": (
        "tokenizer text: end-of-document token '</s>' is not one of its special tokens. "
        "Allowed: a special token: 0 (<|endoftext|>). "
        "Fix: name one of these, by id or text."
    ),
    "text": (
        "character 1: '\\ud800' (U+D800) is half of a surrogate pair, which UTF-8 cannot hold, "
        "in 'a\\ud800'. "
        "Allowed: texts whose characters all have ids. "
        "Fix: use a tokenizer that can write any text (byte-level or with byte fallback), or "
        "remove such characters from the documents."
    ),
    "checkpoint": (
        "trainer.load_checkpoint=true, but FOLDER has no complete checkpoint. "
        "Allowed: a folder with at least one step-N. "
        "Fix: correct the path, or set trainer.load_checkpoint=null to start from scratch."
    ),
    "mesh": (
        "mesh replica=1 data=3 expert=1 model=1 (3 devices) on a machine with 4. "
        "Allowed: sizes whose product is 4. "
        "Fix: use one of: replica=1 data=4 expert=1 model=1; replica=1 data=2 expert=1 model=2;"
        " replica=1 data=2 expert=2 model=1; replica=2 data=2 expert=1 model=1; replica=1 "
        "data=1 expert=1 model=4."
    ),
    "optimizer": (
        "parameter groups ['bias'] at layer/b. "
        "Allowed: ['matrix', 'embedding', 'vector', 'dynamics', 'state']. "
        "Fix: correct the model's param_groups()."
    ),
    "plan": (
        "two different steps, 'train' and 'train', with one output folder, out. "
        "Allowed: one step per folder. "
        "Fix: give 'train' another name or override_output_path."
    ),
    "launch": (
        "step 'train' asks for TPU. "
        "Allowed: CPUs and GPUs, which is what processes of one machine can be given. "
        "Fix: run it with --on ray on a cluster that has them, or leave them out."
    ),
    "storage": (
        "cannot read FOLDER/gone.json: 'gone.json' does not exist in FOLDER, which holds "
        "nothing. "
        "Allowed: a path that exists. "
        "Fix: correct 'gone.json', or make it."
    ),
    "harness": (
        "the task colour (did you mean colours?). "
        "Allowed: colours. "
        "Fix: correct the name, or pass the folder that holds the task as --include-path "
        "(include_path)."
    ),
    "metric": (
        "the metric 'train/x' is a list. "
        "Allowed: a number, a string, a bool, None or a 0-d array of one of these. "
        "Fix: log each number under its own name, such as 'train/x/mean'."
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_message_reads_as_written(case: str, tmp_path: Path):
    with pytest.raises(ChompError) as caught:
        CASES[case](tmp_path)
    assert str(caught.value).replace(str(tmp_path), "FOLDER") == MESSAGES[case]
