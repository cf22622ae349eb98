"""The architecture rules hold for this repository, and each of them notices a planted breach.

The second half is what makes the first half worth something: a rule that can no longer fail would
pass here for ever. Breaches are planted in a small tree of their own under `tmp_path`.
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import rules

ROOT = Path(__file__).resolve().parents[2]

CLEAN_TREE = {
    "src/chomp/__init__.py": '__version__ = "0"\n',
    "src/chomp/errors.py": "class ChompError(Exception): ...\n",
    "src/chomp/config/__init__.py": "from chomp.config.schema import Config\n",
    "src/chomp/config/schema.py": "from chomp.errors import ChompError\n\nclass Config: ...\n",
    "src/chomp/storage/__init__.py": "from chomp import config\n",
    "src/chomp/mesh/__init__.py": "import jax\nfrom chomp.config import Config\n",
    "src/chomp/data/__init__.py": "from chomp.data.rows import ROWS\n",
    "src/chomp/data/rows.py": "from chomp import __version__, mesh\n\nROWS = 1\n",
    "src/chomp/cli/__init__.py": "",
    # A command may import JAX once it has been started.
    "src/chomp/cli/main.py": "def train():\n    from chomp.cli.train import jax\n",
    "src/chomp/cli/train.py": "import jax\nfrom chomp import data\n",
    "experiments/__init__.py": "",
    "experiments/grug/__init__.py": "",
    "experiments/grug/base/__init__.py": "",
    "experiments/grug/base/model.py": "import jax\n",
    "experiments/grug/base/train.py": "from experiments.grug.base.model import jax\n",
    "experiments/grug/moe/model.py": "import chomp.data\n",
    "experiments/grug/moe/train.py": "from . import model\nfrom .model import chomp\n",
    # A speedrun may import one variant.
    "experiments/speedrun/race.py": "from experiments.grug.base import model\n",
}

Rule = Callable[[Path], list[str]]


@dataclass(frozen=True)
class Breach:
    """Files that break one rule, and words its one violation must hold: the file and both ends."""

    rule: Rule
    files: dict[str, str]
    words: tuple[str, ...] = field(default=())


BREACHES = {
    "a low room imports a high one": Breach(
        rules.upward_imports,
        {"src/chomp/config/low.py": "import os\nfrom chomp.data.rows import ROWS\n"},
        ("src/chomp/config/low.py:2:", "chomp.config (layer 0)", "chomp.data (layer 3)"),
    ),
    "a room imports another of its own layer": Breach(
        rules.upward_imports,
        {"src/chomp/storage/disk.py": "import chomp.mesh as m\n"},
        ("src/chomp/storage/disk.py:1:", "chomp.storage (layer 1)", "chomp.mesh (layer 1)"),
    ),
    "an upward import from the package": Breach(
        rules.upward_imports,
        {"src/chomp/storage/disk.py": "from chomp import data\n"},
        ("src/chomp/storage/disk.py:1:", "chomp.storage (layer 1)", "chomp.data (layer 3)"),
    ),
    "an upward import inside a function": Breach(
        rules.upward_imports,
        {"src/chomp/config/low.py": "def rows():\n    from chomp.data import rows\n"},
        ("src/chomp/config/low.py:2:", "chomp.config (layer 0)", "chomp.data (layer 3)"),
    ),
    "an upward import for the type checker only": Breach(
        rules.upward_imports,
        {"src/chomp/mesh/axes.py": "import typing\nif typing.TYPE_CHECKING:\n import chomp.cli\n"},
        ("src/chomp/mesh/axes.py:3:", "chomp.mesh (layer 1)", "chomp.cli (layer 6)"),
    ),
    "an upward import by name at run time": Breach(
        rules.upward_imports,
        {"src/chomp/mesh/axes.py": "import importlib\nimportlib.import_module('chomp.cli')\n"},
        ("src/chomp/mesh/axes.py:2:", "chomp.mesh (layer 1)", "chomp.cli (layer 6)"),
    ),
    "an upward relative import": Breach(
        rules.upward_imports,
        {"src/chomp/mesh/axes.py": "from ..data import rows\n"},
        ("src/chomp/mesh/axes.py:1:", "chomp.mesh (layer 1)", "chomp.data (layer 3)"),
    ),
    "errors imports a room": Breach(
        rules.upward_imports,
        {"src/chomp/errors.py": "from chomp.config import Config\n"},
        ("src/chomp/errors.py:1:", "chomp.errors (layer -1)", "chomp.config (layer 0)"),
    ),
    "the package imports a room": Breach(
        rules.upward_imports,
        {"src/chomp/__init__.py": "__version__ = '0'\nfrom chomp.errors import ChompError\n"},
        ("src/chomp/__init__.py:2:", "chomp (layer -2)", "chomp.errors (layer -1)"),
    ),
    "a room without a layer": Breach(
        rules.upward_imports,
        {"src/chomp/attic/__init__.py": ""},
        ("src/chomp/attic/__init__.py:1:", "chomp.attic", "add it to the table LAYERS"),
    ),
    "an import of a room without a layer": Breach(
        rules.upward_imports,
        {"src/chomp/cli/main.py": "import chomp.attic\n"},
        ("src/chomp/cli/main.py:1:", "chomp.attic", "add it to the table LAYERS"),
    ),
    "a circle inside one room": Breach(
        rules.import_cycles,
        {
            "src/chomp/data/a.py": "import chomp.data.b\n",
            "src/chomp/data/b.py": "from chomp.data import c\n",
            "src/chomp/data/c.py": "x = 1\nfrom chomp.data.a import x\n",
        },
        (
            "src/chomp/data/a.py:1 imports chomp.data.b",
            "src/chomp/data/b.py:1 imports chomp.data.c",
            "src/chomp/data/c.py:2 imports chomp.data.a",
        ),
    ),
    "a circle through a package and a function": Breach(
        rules.import_cycles,
        {"src/chomp/data/rows.py": "def late():\n    from chomp.data import ROWS\n"},
        (
            "src/chomp/data/__init__.py:1 imports chomp.data.rows",
            "src/chomp/data/rows.py:2 imports chomp.data",
        ),
    ),
    "the library imports a template": Breach(
        rules.outside_imports,
        {"src/chomp/cli/main.py": "def go():\n    from experiments.grug.base import train\n"},
        ("src/chomp/cli/main.py:2:", "chomp.cli.main", "experiments.grug.base"),
    ),
    "the library imports its tests": Breach(
        rules.outside_imports,
        {"src/chomp/cli/main.py": "import tests.conftest\n"},
        ("src/chomp/cli/main.py:1:", "chomp.cli.main", "tests.conftest"),
    ),
    "the library imports a benchmark": Breach(
        rules.outside_imports,
        {"src/chomp/cli/main.py": "from benchmarks import loader\n"},
        ("src/chomp/cli/main.py:1:", "chomp.cli.main", "benchmarks"),
    ),
    "a relative import in the library": Breach(
        rules.relative_imports,
        {"src/chomp/data/late.py": "from .rows import ROWS\n"},
        ("src/chomp/data/late.py:1:", "chomp.data.late", "chomp.data.rows"),
    ),
    "a relative import in a package's own file": Breach(
        rules.relative_imports,
        {"src/chomp/data/__init__.py": "from . import rows\n"},
        ("src/chomp/data/__init__.py:1:", "chomp.data", "chomp.data.rows"),
    ),
    "a variant imports another": Breach(
        rules.imports_across_variants,
        {"experiments/grug/moe/model.py": "from experiments.grug.base.model import jax\n"},
        ("experiments/grug/moe/model.py:1:", "grug.moe imports", "experiments.grug.base.model"),
    ),
    "a variant imports another from their folder": Breach(
        rules.imports_across_variants,
        {"experiments/grug/moe/model.py": "def f():\n    from experiments.grug import base\n"},
        ("experiments/grug/moe/model.py:2:", "grug.moe imports", "experiments.grug.base"),
    ),
    "a variant imports another relatively": Breach(
        rules.imports_across_variants,
        {"experiments/grug/moe/model.py": "from ..base.model import jax\n"},
        ("experiments/grug/moe/model.py:1:", "grug.moe imports", "experiments.grug.base.model"),
    ),
    "a variant whose name begins like another's": Breach(
        rules.imports_across_variants,
        {"experiments/grug/base_wide/model.py": "import experiments.grug.base.model\n"},
        ("experiments/grug/base_wide/model.py:1:", "base_wide imports", "experiments.grug.base"),
    ),
    "a variant imports a speedrun": Breach(
        rules.imports_across_variants,
        {"experiments/grug/moe/model.py": "import experiments.speedrun.race\n"},
        ("experiments/grug/moe/model.py:1:", "grug.moe imports", "experiments.speedrun.race"),
    ),
    "the help of the command imports JAX": Breach(
        rules.commands_that_load_jax,
        {"src/chomp/cli/main.py": "try:\n    import jax.numpy as jnp\nfinally:\n    pass\n"},
        ("chomp/cli/main.py:2: `chomp --help` imports jax", "`chomp --help` without JAX"),
    ),
    "the help of the command imports JAX through another room": Breach(
        rules.commands_that_load_jax,
        {"src/chomp/cli/main.py": "from chomp.data.rows import ROWS\n"},
        (
            "chomp/cli/main.py:1",
            "chomp/data/rows.py:1",
            "chomp/mesh/__init__.py:1: `chomp --help` imports jax",
        ),
    ),
    "a plan imports JAX in a way that no reader of the source can see": Breach(
        rules.commands_that_load_jax,
        {
            "src/chomp/executor/__init__.py": "ExecutorStep = dict\n",
            "src/chomp/launch/__init__.py": "__builtins__['__import__']('ja' + 'x')\n",
            "src/chomp/launch/main.py": "",
        },
        ("chomp/launch/__init__.py:1: `launch.py --plan` imports jax",),
    ),
    "the submission of a job imports JAX": Breach(
        rules.commands_that_load_jax,
        {"src/chomp/launch/__init__.py": "", "src/chomp/launch/ray_run.py": "import jax\n"},
        ("chomp/launch/ray_run.py:1: `ray_run --help` imports jax",),
    ),
    "a command cannot be run": Breach(
        rules.commands_that_load_jax,
        {"src/chomp/cli/main.py": "import no_such_module\n"},
        ("chomp.cli.main: `chomp --help` fails", "No module named 'no_such_module'"),
    ),
    "a module is a drawer": Breach(
        rules.drawer_names,
        {"src/chomp/data/_utils.py": ""},
        ("src/chomp/data/_utils.py:1:", "the name _utils", "any name but utils"),
    ),
    "a folder is a drawer": Breach(
        rules.drawer_names,
        {"src/chomp/data/common/rows.py": ""},
        ("src/chomp/data/common:1:", "the name common", "any name but utils"),
    ),
}


def plant(root: Path, files: dict[str, str]) -> Path:
    """Write `files` below `root`, and give `root` back."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def listed(violations: list[str]) -> str:
    """Violations one to a line, for the message of a failing test."""
    return "\n" + "\n".join(violations)


def test_rooms_import_only_rooms_of_a_lower_layer() -> None:
    violations = rules.upward_imports(ROOT)
    assert not violations, listed(violations)


def test_no_module_of_the_library_imports_itself_in_a_circle() -> None:
    violations = rules.import_cycles(ROOT)
    assert not violations, listed(violations)


def test_the_library_imports_no_template_test_or_benchmark() -> None:
    violations = rules.outside_imports(ROOT)
    assert not violations, listed(violations)


def test_the_library_imports_absolutely() -> None:
    violations = rules.relative_imports(ROOT)
    assert not violations, listed(violations)


def test_no_variant_imports_another_variant_or_a_speedrun() -> None:
    violations = rules.imports_across_variants(ROOT)
    assert not violations, listed(violations)


def test_help_plan_and_job_submission_do_not_import_jax() -> None:
    violations = rules.commands_that_load_jax(ROOT)
    assert not violations, listed(violations)


def test_no_module_of_the_library_is_named_for_being_a_drawer() -> None:
    violations = rules.drawer_names(ROOT)
    assert not violations, listed(violations)


def test_the_rules_read_the_real_library() -> None:
    assert (ROOT / "src" / "chomp" / "errors.py").is_file()


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_a_clean_tree_breaks_no_rule(rule: Rule, tmp_path: Path) -> None:
    assert rule(plant(tmp_path, CLEAN_TREE)) == []


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_a_repository_without_library_or_templates_breaks_no_rule(
    rule: Rule, tmp_path: Path
) -> None:
    assert rule(tmp_path) == []


@pytest.mark.parametrize("breach", BREACHES.values(), ids=BREACHES.keys())
def test_a_planted_breach_is_named_once_with_its_file_and_both_ends(
    breach: Breach, tmp_path: Path
) -> None:
    violations = breach.rule(plant(tmp_path, CLEAN_TREE | breach.files))
    assert len(violations) == 1, listed(violations)
    for word in (*breach.words, "Allowed: ", "Fix: "):
        assert word in violations[0]


def test_every_rule_has_a_planted_breach_and_a_test_on_this_repository() -> None:
    names = {rule.__name__ for rule in rules.RULES}
    assert {breach.rule.__name__ for breach in BREACHES.values()} == names
    tree = ast.parse(Path(__file__).read_text())
    called_on_root = {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and [getattr(argument, "id", None) for argument in node.args] == ["ROOT"]
    }
    assert called_on_root == names
