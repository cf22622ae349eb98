"""Checkpoints of base for this variant, and back: the same numbers, layers stacked or apart.

    python -m experiments.grug.array_stacked.convert RUN_OR_CHECKPOINT OUT [--to stacked|base]

The other template begins with the weights in OUT (`train.initialize_from`), or goes on with the
run (`train.load_checkpoint_path`): averages and the optimizer's state are converted alike. All goes
by names: `params/blocks/3/attn/w_q` is index 3 of `params/blocks/attn/w_q`, so base is not needed.
Other templates name their layers so too: weights that base would not have are refused.
"""

import argparse
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from chomp.checkpoint import (
    AVERAGE,
    CHECKPOINTS,
    WEIGHTS,
    DamagedCheckpoint,
    StepFolder,
    checked_arrays,
    described,
    in_columns,
    named_leaves,
    place_of,
    problem_with_files,
    read_step_folder,
    require_checkpoints_at,
    save_step_checkpoint,
    within,
)
from chomp.config import config_from_mapping
from chomp.errors import CheckpointError, ChompError, StorageError
from chomp.launch.console import print_error
from chomp.mesh import abstract_arrays
from chomp.storage import exists, join, normalise
from experiments.grug.array_stacked.model import GrugModelConfig, Transformer

Leaves = Mapping[str, np.ndarray]  # arrays of a state, or of its weights, by name
Form = Literal["stacked", "base"]

# Anywhere in a name: in a state the weights' own names stand behind those of its fields.
_APART = re.compile(r"((?:.*?/)?blocks)/(\d+)/(.+)")
_STACKED = re.compile(r"((?:.*?/)?blocks)/(?!\d+/)(.+)")
_SHOWN_ROWS = 6


def stacked_from_base(leaves: Leaves) -> dict[str, np.ndarray]:
    """The leaves under this variant's names: of all layers, each weight as one array."""
    layers: dict[str, dict[int, np.ndarray]] = {}
    stacked: dict[str, np.ndarray] = {}
    for name, value in leaves.items():
        if (match := _APART.fullmatch(name)) is None:
            stacked[name] = value
        else:
            before, index, after = match.groups()
            layers.setdefault(f"{before}/{after}", {})[int(index)] = value
    num_layers = max((len(own) for own in layers.values()), default=0)
    for name, own in layers.items():
        if sorted(own) != list(range(num_layers)):
            raise _not_alike(f"{name} in the layers {sorted(own)} of {num_layers}")
        if len(kinds := {(value.shape, str(value.dtype)) for value in own.values()}) > 1:
            raise _not_alike(f"{name} as {sorted(kinds)}")
        stacked[name] = np.stack([own[index] for index in range(num_layers)])
    return stacked


def base_from_stacked(leaves: Leaves) -> dict[str, np.ndarray]:
    """The leaves under base's names: an array for each layer."""
    apart: dict[str, np.ndarray] = {}
    lengths: dict[str, int] = {}
    for name, value in leaves.items():
        if (match := _STACKED.fullmatch(name)) is None:
            apart[name] = value
        else:
            lengths[name] = len(value) if value.ndim else 0
            before, after = match.groups()
            apart |= {f"{before}/{index}/{after}": own for index, own in enumerate(value)}
    if len(set(lengths.values())) > 1:
        raise _not_alike(f"stacks of different lengths, {lengths}")
    return apart


def _not_alike(given: str) -> CheckpointError:
    return CheckpointError(
        given,
        allowed="layers that are all alike: only such can be stacked",
        fix="convert checkpoints of base or of array_stacked, as their templates saved them",
    )


def form_of(names: Collection[str]) -> Form | None:
    """How a state with these names keeps its layers; None if in neither way, or in both."""
    is_apart, is_stacked = (any(map(form.fullmatch, names)) for form in (_APART, _STACKED))
    if is_apart == is_stacked:
        return None
    return "base" if is_apart else "stacked"


def convert(place: str, out: str, *, to: Form | None = None) -> str:
    """Write the newest checkpoint at `place` in the other form below the new folder `out`.

    Gives the path of the checkpoint. `to` says what is expected to come out. Its weights must be
    those of base for the config that it was saved with. Every array is compared with its receipt,
    and all of them are held in memory at once.
    """
    found = read_step_folder(require_checkpoints_at(place_of(place))[0].path)
    form = form_of(found.metadata.arrays)
    wanted: Form = to or ("stacked" if form == "base" else "base")
    if form is None or form == wanted:
        kept = {"base": "apart, as base does", "stacked": "stacked", None: "in no known way"}[form]
        choose = "choose a checkpoint of the other template"
        raise CheckpointError(
            f"--to {wanted} with {found.path}, which keeps its layers {kept}",
            allowed="layers under blocks/0, blocks/1, … for --to stacked, stacked ones for "
            "--to base",
            fix=choose if form is None else "use it as it is, or leave out --to",
        )
    target = normalise(out)
    if exists(target):
        raise StorageError(
            f"{target} is there already",
            allowed="a new folder: a conversion never changes what is there",
            fix="choose another OUT, or remove the folder",
        )
    _require_weights_of_base(found, form)
    if (problem := problem_with_files(found)) is not None:
        raise DamagedCheckpoint(found.path, problem)
    leaves = dict(checked_arrays(found))
    converted = stacked_from_base(leaves) if wanted == "stacked" else base_from_stacked(leaves)
    state = {name: jnp.asarray(value) for name, value in converted.items()}
    about = replace(found.metadata, continues=described(found))  # where it comes from
    return save_step_checkpoint(join(target, CHECKPOINTS), state, about)


def _require_weights_of_base(found: StepFolder, form: Form) -> None:
    """Raise `CheckpointError` unless base has these weights, for the config they were saved with.

    What an optimizer keeps has the names of the weights, so those are enough.
    """
    model, fields = found.metadata.config.get("model", {}), GrugModelConfig.__dataclass_fields__
    # A field of another template's does no harm by itself: its weights say what it has done.
    config = config_from_mapping(GrugModelConfig, {n: x for n, x in model.items() if n in fields})
    # Of one number each, seen as a whole array: the conversion says what comes out, for nothing.
    abstract = abstract_arrays(lambda: Transformer.init(config, key=jax.random.key(0)))
    one, leaves = np.int8(0), named_leaves(abstract)
    weights = {name: np.broadcast_to(one, leaf.shape) for name, leaf in leaves.items()}
    weights = weights if form == "stacked" else base_from_stacked(weights)
    wanted = {name: value.shape for name, value in weights.items()}
    for field in (WEIGHTS, AVERAGE):
        saved = {
            name.removeprefix(field): tuple(array["shape"])
            for name, array in within(found.metadata.arrays, field).items()
        }
        if saved == wanted or (not saved and field == AVERAGE):  # which need not be there
            continue
        rows = [
            (field + name, saved.get(name, "(missing)"), wanted.get(name, "(missing)"))
            for name in sorted(saved | wanted)
            if saved.get(name) != wanted.get(name)
        ]
        more = f"  and {len(rows) - _SHOWN_ROWS} more\n" if len(rows) > _SHOWN_ROWS else ""
        table = in_columns(("array", "saved", "in base"), rows[:_SHOWN_ROWS])
        raise CheckpointError(
            f"{found.path} holds other arrays than base would:\n{table}{more}",
            allowed="a checkpoint of base or of array_stacked, with the weights of their models",
            fix="choose such a checkpoint; for a variant of your own, copy this file and its model",
        )


def main() -> None:
    """Convert, and say how the result is used; a `ChompError` is told by its message alone."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("place", metavar="RUN_OR_CHECKPOINT", help="or a folder of checkpoints")
    parser.add_argument("out", metavar="OUT", help="a new folder")
    parser.add_argument("--to", choices=("stacked", "base"), help="default: what it is not")
    arguments = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")  # a run may be training on the accelerators
    try:
        made = convert(arguments.place, arguments.out, to=arguments.to)
    except ChompError as error:
        print_error(error)
        sys.exit(error.exit_code)
    print(f"wrote {made}; begin with it: -o train.initialize_from={arguments.out}")


if __name__ == "__main__":
    main()
