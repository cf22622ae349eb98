"""Task files of somebody else: no spelling of them runs code unless that was asked for."""

import contextlib
import random
import re
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lm_eval.api.task
import lm_eval.utils
import pytest
from jinja2 import Environment

from chomp.errors import ConfigError
from chomp.evaluation.harness import load_tasks
from tests.evaluation.local_tasks import local_tasks

# They import lm-eval, which takes seconds.
pytestmark = pytest.mark.slow

# Each goes on from a task that is data alone.
SPELLINGS = {
    "as usual": "doc_to_text: !function theirs.text\n",
    "in a list": "doc_to_choice: [!function theirs.text]\n",
    "escaped": "doc_to_text: !%66unction theirs.text\n",
    "by a directive": "%TAG !e! !func\n---\ndoc_to_text: !e!tion theirs.text\n",
    "in another encoding": "doc_to_text: !function theirs.text\n",
    "behind a byte order mark": "doc_to_text: !function theirs.text\n",
    "under a key that is written twice": "doc_to_text: Q\ndoc_to_text: !function theirs.text\n",
    "by an alias": "metadata: {{a: &a !function theirs.text}}\ndoc_to_text: *a\n",
    "by a merge key of a list": "<<: [{{doc_to_text: Q}}, {{process_docs: theirs.text}}]\n",
    "as a key": "metadata: {{!function theirs.text : 1}}\n",
    "in a file that is included": "include: theirs.txt\n",
    "as a metric": "metric_list: [{{metric: {folder}/measure, aggregation: mean}}]\n",
    "as a metric of a hub": "metric_list: [{{metric: acc, hf_evaluate: true}}]\n",
    "as a metric by a merge key": "<<: {{metric_list: [{{metric: {folder}/measure}}]}}\n",
    "as a metric in a list": "metric_list: [{{metric: [{folder}/measure]}}]\n",
    "as a metric of a group": "group: ours\n"
    "task: [{{task: t, metric_list: [{{metric: {folder}/measure}}]}}]\n",
    "in a file that a merge key includes": "<<: {{include: theirs.txt}}\n",
    "by the name of a class": "class: theirs.Task\n",
    "as a function of examples": "fewshot_config: {{process_docs: theirs.text}}\n",
    "as a reader of pickles": "dataset_path: pandas\n",
    "as a folder of data": "dataset_path: {folder}\n",
    "as code of a data set": "dataset_kwargs: {{trust_remote_code: true}}\n",
    "by an unknown key": "process_everything: theirs.text\n",
}
ENCODINGS = {"in another encoding": "utf-16", "behind a byte order mark": "utf-8-sig"}
# What no safe parser reads is not handed on either, though lm-eval's own would read the first.
UNREADABLE = {
    "a tab before the tag": "doc_to_text:\t!function theirs.text\n",
    "an include of a place elsewhere": "include: ../../theirs.txt\n",
    "an include that is no name": "include: {{a: theirs.txt}}\n",
    "aliases without end": "metadata:\n  a0: &a0 [1]\n"
    + "".join(f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)),
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder of harmless tasks, and beside them code that tells when it is run."""
    with local_tasks(tmp_path) as tasks:
        tells = f"open({str(tmp_path / 'ran')!r}, 'a').close()\ndef text(doc): return 'Q'\n"
        (tasks / "theirs.py").write_text(tells)
        (tasks / "measure").mkdir()
        (tasks / "measure/measure.py").write_text(tells)
        words = "include: colours.yaml\ntask: theirs\ndoc_to_text: !function theirs.text\n"
        (tasks / "theirs.txt").write_text(words)
        yield tasks


def task_file(folder: Path, spelling: str) -> Path:
    """The task `theirs`, with code in it in one of the ways there are."""
    words = (SPELLINGS | UNREADABLE)[spelling].format(folder=folder)
    directive, mark, rest = words.rpartition("---\n")
    include = "" if "include" in rest else "include: colours.yaml\n"
    text = f"{directive}{mark}{include}task: theirs\n{rest}"
    path = folder / "theirs.yaml"
    path.write_bytes(text.encode(ENCODINGS.get(spelling, "utf-8")))
    return path


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_code_is_refused_however_it_is_written(folder: Path, tmp_path: Path, spelling: str):
    task_file(folder, spelling)
    with pytest.raises(ConfigError, match=r"theirs\.(yaml|txt) .*--allow-code"):
        load_tasks(["colours"], include_path=str(folder))
    with pytest.raises(ConfigError, match="--allow-code"):
        load_tasks(["theirs"], include_path=str(folder))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("spelling", UNREADABLE)
def test_a_file_that_cannot_be_read_safely_is_not_handed_on(
    folder: Path, tmp_path: Path, spelling: str
):
    task_file(folder, spelling)
    with pytest.raises(ConfigError, match=r"theirs\.yaml could not be read"):
        load_tasks(["theirs"], include_path=str(folder))
    assert load_tasks(["colours"], include_path=str(folder)).items
    assert not (tmp_path / "ran").exists()


def test_files_that_include_each_other_many_times_are_read_once(folder: Path):
    for number in range(12):
        names = ", ".join([f"part{number + 1}.yaml"] * 9)
        (folder / f"part{number}.yaml").write_text(f"include: [{names}]\nmetadata: {{a: 1}}\n")
    (folder / "part12.yaml").write_text("include: colours.yaml\ntask: theirs\n")
    assert load_tasks(["colours"], include_path=str(folder)).items


@pytest.mark.parametrize(
    "text",
    [
        "{{{{ cycler.__init__.__globals__.os.system('touch {ran}') }}}}",
        "{{{{ ''.__class__.__mro__[1].__subclasses__() }}}}",
        "{{{{ range.__init__.__globals__ }}}}",
        "{{% set a = cycler.__init__ %}}{{{{ a.__globals__.os.system('touch {ran}') }}}}",
        "{{{{ '{{0.__class__.__mro__}}'.format(1) }}}}",
        "{{{{ (cycler|attr('__init__')).__globals__ }}}}",
    ],
)
def test_a_text_that_is_filled_in_does_not_reach_python(folder: Path, tmp_path: Path, text: str):
    words = text.format(ran=tmp_path / "ran")
    content = f'include: colours.yaml\ntask: theirs\ndoc_to_text: "{words}"\n'
    (folder / "theirs.yaml").write_text(content)
    with pytest.raises(ConfigError, match="SecurityError"):
        load_tasks(["theirs"], include_path=str(folder))
    assert not (tmp_path / "ran").exists()


def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if another version of lm-eval kept its environment elsewhere."""
    monkeypatch.setattr(lm_eval.utils, "env", Environment())


def plain_renderer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if tasks of another version filled in their texts by themselves."""

    def render(template: str, document: dict[str, Any]) -> str:
        return Environment().from_string(template).render(**document)

    monkeypatch.setattr(lm_eval.utils, "apply_template", render)


def other_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if another version called what fills in a text otherwise."""
    monkeypatch.delattr(lm_eval.api.task.ConfigurableTask, "doc_to_text")


@pytest.mark.parametrize("differ", [plain_environment, plain_renderer, other_tasks])
@pytest.mark.parametrize("allow_code", [False, True])
def test_without_the_sandbox_no_task_is_loaded(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    differ: Callable[[pytest.MonkeyPatch], None],
    allow_code: bool,
):
    differ(monkeypatch)
    with pytest.raises(ConfigError, match=re.escape(version("lm-eval"))):
        load_tasks(["colours"], include_path=str(folder), allow_code=allow_code)


def test_no_mixture_of_spellings_runs_code(folder: Path, tmp_path: Path):
    draw = random.Random(0)
    usual = (folder / "colours.yaml").read_text().replace("task: colours", "task: theirs")
    parts = [words.format(folder=folder) for words in (SPELLINGS | UNREADABLE).values()]
    tokens = ["!function theirs.text", "!!python/name:theirs.text ", "<<: ", "&a ", "*a", "\t"]
    tokens += ["!!bool x", "? [a]\n", "---\n", "{", "}", "[", "]", "'", '"', "|\n", "#", "\0", "- "]
    tokens += [f"{{{{ cycler.__init__.__globals__.os.system('touch {tmp_path / 'ran'}') }}}}"]
    tokens += ["{{ '{{' }}", "{% include 'theirs.py' %}", "{%", "}}", "\ufeff", "task: theirs\n"]
    tokens += ["doc_to_text: !function theirs.text\n", "include: theirs.txt\n"]
    number_read = 0
    for _ in range(200):
        text = usual
        if draw.random() < 0.5:
            text += draw.choice(parts)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(text) + 1)
            text = text[:at] + draw.choice(tokens) + text[at + draw.choice([0, 0, 1, 5]) :]
        (folder / "theirs.yaml").write_text(text)
        with contextlib.suppress(ConfigError):
            number_read += len(load_tasks(["theirs"], include_path=str(folder)).items)
        assert not (tmp_path / "ran").exists(), text
    assert number_read > 0  # some changes are harmless: then the task is read
