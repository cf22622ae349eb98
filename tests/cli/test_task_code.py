"""Task files of somebody else: no spelling of them runs code unless that was asked for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

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
    "in a file that is included": "include: theirs.txt\n",
    "as a metric": "metric_list: [{{metric: {folder}/measure, aggregation: mean}}]\n",
    "as a metric of a hub": "metric_list: [{{metric: acc, hf_evaluate: true}}]\n",
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
    words = SPELLINGS[spelling].format(folder=folder)
    directive, mark, rest = words.rpartition("---\n")
    include = "" if "include" in rest else "include: colours.yaml\n"
    text = f"{directive}{mark}{include}task: theirs\n{rest}"
    path = folder / "theirs.yaml"
    path.write_bytes(text.encode("utf-16" if spelling == "in another encoding" else "utf-8"))
    return path


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_code_is_refused_however_it_is_written(folder: Path, tmp_path: Path, spelling: str):
    task_file(folder, spelling)
    with pytest.raises(ConfigError, match=r"theirs\.(yaml|txt), which .*--allow-code"):
        load_tasks(["colours"], include_path=str(folder))
    with pytest.raises(ConfigError, match="--allow-code"):
        load_tasks(["theirs"], include_path=str(folder))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "text",
    [
        "{{{{ cycler.__init__.__globals__.os.system('touch {ran}') }}}}",
        "{{{{ ''.__class__.__mro__[1].__subclasses__() }}}}",
        "{{{{ range.__init__.__globals__ }}}}",
    ],
)
def test_a_text_that_is_filled_in_does_not_reach_python(folder: Path, tmp_path: Path, text: str):
    words = text.format(ran=tmp_path / "ran")
    content = f'include: colours.yaml\ntask: theirs\ndoc_to_text: "{words}"\n'
    (folder / "theirs.yaml").write_text(content)
    with pytest.raises(ConfigError, match="SecurityError"):
        load_tasks(["theirs"], include_path=str(folder))
    assert not (tmp_path / "ran").exists()
