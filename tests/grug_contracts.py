"""What every variant promises, as functions: each returns what a variant breaks, in three parts.

Here is what reading and importing show; what tracing shows is in `grug_traced_contracts`, what only
a run shows in `grug_run_contracts`. A violation begins with the file that it is about.
"""

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jaxtyping
import pytest

from chomp.config import Config
from chomp.errors import ConfigError
from chomp.executor import ExecutorStep
from chomp.mesh import abstract_arrays
from chomp.mesh.memory import placed_arrays
from chomp.variants.checkout import Variant, variant_folders
from chomp.variants.marks import verbatim_violations
from experiments import grug

ROOT = Path(__file__).parents[1]
BASE = "base"
FILES = ("model.py", "train.py", "launch.py", "README.md")

# ARCHITECTURE section 3, each name with a call that it must take; more parameters may follow.
PROMISED_CALLS = {
    "model": (
        "GrugModelConfig(*, vocab_size)",
        "GrugModelConfig.flops_per_token(self, seq_len)",
        "Transformer.init(cfg, *, key)",
        "Transformer.__call__(self, token_ids, mask, *, key)",
        "Transformer.logits(self, token_ids, mask)",
        "Transformer.next_token_loss(self, token_ids, loss_weight, *, mask, reduction, "
        "logsumexp_weight, key)",
        "Transformer.param_groups(self)",
        "Transformer.init_cache(self, batch_size, max_len)",
        "Transformer.decode_step(self, cache, token_ids)",
        "debug_mesh_and_token_pspec(num_devices)",
    ),
    "train": (
        "GrugTrainerConfig(*, z_loss_weight, ema_beta, log_every, data_seed)",
        "GrugEvalConfig()",
        "GrugRunConfig(*, model, data, optimizer, trainer, eval, checkpoint, logging, mesh, "
        "run_id, output_path)",
        "GrugTrainState(*, step, params, opt_state, ema_params, **others)",
        "initial_state(cfg, *, optimizer, mp, key, ema_beta)",
        "_make_train_step(optimizer, mp, *, z_loss_weight, ema_beta)",
        "run_grug(config)",
        # What `chomp eval` and a dry run ask a template for.
        "losses_of(mp, params, batch)",
        "scores_of(mp, params, batch)",
        "fresh_state(config)",
        "train_step_of(config)",
    ),
    "launch": ("run_config(launch)", "steps(launch)"),
}


@dataclass(frozen=True)
class Template:
    """A variant that was imported."""

    variant: Variant
    model: ModuleType
    train: ModuleType
    launch: ModuleType

    @property
    def launch_class(self) -> Any:
        """The one config class of the launch file."""
        (found,) = launch_classes(self)
        return found

    @cached_property
    def axes(self) -> frozenset[str]:
        """The axes of the mesh that weights of the launched model are cut over.

        Read from their specs, whatever the variant calls its fields.
        """
        cfg, init = self.launch_class().model, self.model.Transformer.init
        model = abstract_arrays(lambda: init(cfg, key=jax.random.key(0)))
        cuts = [cut for array in placed_arrays(model) for cut in array.spec]
        # A cut is none, an axis, or several.
        names = [(cut,) if isinstance(cut, str) else cut or () for cut in cuts]
        return frozenset(name for several in names for name in several)

    @property
    def uses_experts(self) -> bool:
        """Whether the model lies over the `expert` axis too."""
        return "expert" in self.axes

    def breach(self, file: str, given: str, *, allowed: str, fix: str) -> str:
        """A violation that names the file."""
        return breach(self.variant, file, given, allowed=allowed, fix=fix)


def breach(variant: Variant, file: str, given: str, *, allowed: str, fix: str) -> str:
    """A violation that names the file."""
    return str(ConfigError(f"{variant.file_path(file)}: {given}", allowed=allowed, fix=fix))


@contextmanager
def imported(variant: Variant) -> Iterator[Template]:
    """The variant's modules. One that is not of this checkout is forgotten again afterwards.

    Its name must be new all the same: beartype remembers classes by the names of their modules.
    """
    package = f"{grug.__name__}.{variant.name}"
    with pytest.MonkeyPatch.context() as patch:
        if variant.root != ROOT:
            patch.setattr(grug, "__path__", [*grug.__path__, str(variant.folder.parent)])
        try:
            parts = (importlib.import_module(f"{package}.{name}") for name in PROMISED_CALLS)
            yield Template(variant, *parts)
        finally:
            if variant.root != ROOT:
                for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
                    del sys.modules[name]


@contextmanager
def markers_for_values() -> Iterator[None]:
    """Lets configs hold markers where their annotations promise what the executor puts there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        yield


# --- by reading ---------------------------------------------------------------------------------


def something_to_verify(root: Path) -> list[str]:
    """A checkout has variants, and base is one that is held to the contracts."""
    found = {variant.name: variant for variant in variant_folders(root)}
    if BASE in found and found[BASE].not_verified is None:
        return []
    given = "which is not verified" if BASE in found else f"variants {sorted(found)} without it"
    return [
        str(
            ConfigError(
                f"experiments/grug/{BASE}: {given}",
                allowed="a checkout with the base template, which keeps every contract",
                fix="run the tests in the root of a whole checkout",
            )
        )
    ]


def says_why_it_is_not_verified(variant: Variant) -> list[str]:
    """A `# GRUG NOVERIFY` has a reason and a date that is still to come."""
    mark = variant.not_verified
    fault = mark.fault(date.today()) if mark else None
    return [fault] if fault else []


def reason_to_skip(variant: Variant) -> str | None:
    """Why a variant is not held to the contracts; None where it is, also after its exception."""
    mark = variant.not_verified
    if mark is None or says_why_it_is_not_verified(variant):
        return None
    return f"{variant.name} is not verified until {mark.until}: {mark.reason}"


def has_its_files(variant: Variant) -> list[str]:
    """Model, loop, launch file, and twenty lines on what it is; base has the README above it."""
    wanted = FILES[:-1] if variant.name == BASE else FILES
    return [
        breach(
            variant,
            name,
            "there is no such file",
            allowed=f"a folder with {', '.join(wanted)}",
            fix="copy it from experiments/grug/base, or write it",
        )
        for name in wanted
        if not (variant.folder / name).is_file()
    ]


def copies_are_equal(variant: Variant) -> list[str]:
    """What is marked `# verbatim: base` equals base."""
    return verbatim_violations(variant.folder)


# --- by importing -------------------------------------------------------------------------------


def can_be_imported(variant: Variant) -> list[str]:
    """Its three files run when they are imported."""
    try:
        with imported(variant):
            return []
    except Exception as error:
        file = _failing_file(variant, error)
        return [
            breach(
                variant,
                file,
                f"cannot be imported: {type(error).__name__}: {error}",
                allowed="a template that imports chomp, third parties and its own files",
                fix=f"run python -c 'import experiments.grug.{variant.name}.launch'",
            )
        ]


def _failing_file(variant: Variant, error: Exception) -> str:
    trace, found = error.__traceback__, "launch.py"
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.parent == variant.folder:
            found = f"{file.name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def has_the_promised_names(template: Template) -> list[str]:
    """Every name of the template contract is there and takes the call that others make."""
    return [
        told
        for part, calls in PROMISED_CALLS.items()
        for call in calls
        if (told := _broken_call(template, part, call))
    ]


def _broken_call(template: Template, part: str, call: str) -> str | None:
    path, _, parameters = call.partition("(")
    stub = ast.parse(f"def _({parameters}: ...").body[0]
    assert isinstance(stub, ast.FunctionDef)
    found: Any = getattr(template, part)
    for name in path.split("."):
        found = getattr(found, name, None)
    if found is None:
        given = f"has no {path}"
    else:
        taken = inspect.signature(found)
        bound = taken.bind_partial if stub.args.kwarg else taken.bind
        try:
            bound(*stub.args.args, **{each.arg: None for each in stub.args.kwonlyargs})
            return None
        except TypeError as error:
            given = f"{path}{taken} cannot be called as promised, {error}"
    return template.breach(
        f"{part}.py", given, allowed=call, fix="see experiments/grug/base, which has it"
    )


def launch_classes(template: Template) -> list[type]:
    """The config classes that the launch file itself defines."""
    module = template.launch
    return [
        value
        for name, value in vars(module).items()
        if name.endswith("LaunchConfig") and getattr(value, "__module__", "") == module.__name__
    ]


def launches_under_its_own_name(template: Template) -> list[str]:
    """One launch config; its steps end in this file's training, in a folder of its own name."""
    name, classes = template.variant.name, launch_classes(template)
    if len(classes) != 1 or not issubclass(classes[0], Config):
        return [
            template.breach(
                "launch.py",
                f"config classes {[found.__name__ for found in classes]}",
                allowed="one class *LaunchConfig that derives from chomp.config.Config",
                fix="see experiments/grug/base/launch.py",
            )
        ]
    with pytest.MonkeyPatch.context() as patch, markers_for_values():
        patch.delenv("GRUG_RUN_ID", raising=False)
        patch.delenv("FERRY_DATE", raising=False)
        steps = list(template.launch.steps(classes[0]()))
    last = steps[-1] if steps else None
    is_step = isinstance(last, ExecutorStep)
    own = is_step and getattr(last.fn, "__module__", None) == template.launch.__name__
    if is_step and own and last.name == f"grug/{name}":
        return []
    told = f"{last.name!r}, run by {last.fn.__module__}" if is_step else repr(last)
    return [
        template.breach(
            "launch.py",
            f"the last step is {told}",
            allowed=f"an ExecutorStep 'grug/{name}', run by a function of this file",
            fix="set VARIANT to the name of the folder, and give steps() a function of this file",
        )
    ]


Reads = Callable[[Variant], list[str]]
Checks = Callable[[Template], list[str]]
READ: tuple[Reads, ...] = (has_its_files, copies_are_equal, can_be_imported)
IMPORTED: tuple[Checks, ...] = (has_the_promised_names, launches_under_its_own_name)
