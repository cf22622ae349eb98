"""A run opened to look at: its config, its own template, its tokenizer, and then its weights.

What the commands need that look at a model when training is over, or while it goes on. Nothing in
the run folder is changed here.
"""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chomp.cli.run_config import RunConfig, config_changes, run_config
from chomp.cli.run_template import RunTemplate, loaded_template
from chomp.errors import ConfigError, DataError, message, require_at_most
from chomp.tracking.run_files import RESOLVED_CONFIG, TEMPLATE, sources_hash, template_sources

if TYPE_CHECKING:  # for annotations alone
    from jax.sharding import Mesh

    from chomp.checkpoint import StepFolder
    from chomp.checkpoint.places import CheckpointPlace
    from chomp.checkpoint.weights_alone import WeightsAlone, WeightsName
    from chomp.config import Difference
    from chomp.data import RowLimits
    from chomp.kernels.precision import Precision
    from chomp.tokenize import Tokenizer

_HASH_CHARACTERS = 12  # of a tokenizer, in messages

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GivenRun:
    """RUN_OR_CHECKPOINT and the options that go with it."""

    path: str
    overrides: tuple[str, ...] = ()
    template: str | None = None  # in the place of the run's own copy
    tokenizer: str | None = None  # likewise
    is_trusted: bool = False
    allows_changed: bool = False  # go on where the folder is not what the checkpoint was saved with


@dataclass(frozen=True, kw_only=True)
class OpenedRun:
    """A run as its folder tells it, on the devices that are here; no weights are read yet."""

    path: str  # as it was given: a run or one of its checkpoints
    folder: str | None  # of the run; None: the checkpoint lies in none
    config: Any  # the template's GrugRunConfig, after overrides
    changed: Mapping[str, Any]  # the fields that overrides have changed, and their values
    template: RunTemplate
    recorded: RunConfig
    is_own_copy: bool  # its sources are those of the run's own copy
    is_template_given: bool  # by --template
    allows_changed: bool
    tokenizer: Tokenizer
    tokenizer_folder: str
    mesh: Mesh
    mp: Precision

    def limits(self) -> RowLimits:
        """What the model and its attention kernel take of rows, in this run's batches."""
        from chomp.training import row_limits

        config = self.config
        return row_limits(
            config.model, config.data, seq_len=config.trainer.seq_len, mp=self.mp, mesh=self.mesh
        )

    def has_template_of(self, found: StepFolder) -> bool:
        """Whether a checkpoint was saved by a run of this very template."""
        saved = found.metadata.template_hash
        return self.template.digest == saved if saved else self.is_own_copy

    def changes_since(self, found: StepFolder) -> list[Difference]:
        """The fields of the run folder's config that are not as a checkpoint was saved with."""
        return config_changes(found.metadata.config, self.recorded)

    def from_template(self, name: str) -> Callable[..., Any]:
        """A function of the template that takes the precision first, bound to the run's own."""
        return partial(self.template.part(name), self.mp)

    def weights(self, choose: Callable[[StepFolder], Sequence[WeightsName]]) -> WeightsAlone:
        """The weights that `choose` asks for, of the newest whole checkpoint or the one named."""
        import jax

        from chomp.checkpoint.weights_alone import load_weights

        def chosen(found: StepFolder) -> Sequence[WeightsName]:
            # Here, because which checkpoint it will be is only known while it is looked for.
            _require_same_tokenizer(found, self.tokenizer)
            _require_unchanged(self, found)
            return choose(found)

        fresh_state = partial(self.template.part("fresh_state"), self.config)
        with jax.set_mesh(self.mesh):
            params = jax.eval_shape(fresh_state).params
            return load_weights(self.path, params, mesh=self.mesh, choose=chosen)


def opened_run(given: GivenRun, *, may_change: Sequence[str]) -> OpenedRun:
    """The run around a path. `may_change` are patterns of fields that overrides may change."""
    from chomp.checkpoint.places import place_of
    from chomp.kernels.precision import Precision
    from chomp.mesh import prepare_devices, require_fits_mesh
    from chomp.tokenize import load_tokenizer
    from chomp.training.setup import with_reproducible_attention

    prepare_devices()  # before JAX looks for them
    place = place_of(given.path)
    template = loaded_template(_template_folder(given, place), is_trusted=given.is_trusted)
    # From the cheap to the dear: what is wrong with a command shows before devices are asked.
    recorded = run_config(template, place, given.overrides, may_change)
    config, changed = recorded.config, recorded.changed
    tokenizer_folder = _tokenizer_folder(given, place, config)
    tokenizer = load_tokenizer(tokenizer_folder)
    sizes = ("model.vocab_size", config.model.vocab_size)
    require_at_most("tokenizer ids", tokenizer.vocab_size, *sizes)
    mesh = _mesh(config, is_asked=any(name.startswith("mesh") for name in changed))
    # As the loop does it, or the numbers would be those of another kernel.
    config = with_reproducible_attention(config, mesh)
    require_fits_mesh(partial(template.part("fresh_state"), config), mesh)
    return OpenedRun(
        path=given.path,
        folder=place.run,
        config=config,
        changed=changed,
        template=template,
        recorded=recorded,
        is_own_copy=_is_own(template, place),
        is_template_given=given.template is not None,
        allows_changed=given.allows_changed,
        tokenizer=tokenizer,
        tokenizer_folder=tokenizer_folder,
        mesh=mesh,
        mp=Precision.parse(config.trainer.precision),
    )


def _template_folder(given: GivenRun, place: CheckpointPlace) -> Path:
    if given.template is not None:
        return Path(given.template)
    if place.run is None:
        raise ConfigError(
            message(
                given=f"{given.path}, which lies in no run folder, so its model's source is not "
                "known",
                allowed=f"a checkpoint in its run folder, beside {TEMPLATE}/",
                fix="pass --template FOLDER and --tokenizer FOLDER",
            )
        )
    return Path(place.run, TEMPLATE)


def _is_own(template: RunTemplate, place: CheckpointPlace) -> bool:
    """Whether the run's own copy has the same sources: a copy of that copy is as good."""
    own = None if place.run is None else Path(place.run, TEMPLATE)
    if own is None or template.folder == own.resolve():
        return own is not None
    return sources_hash(template_sources(own)) == template.digest


def _tokenizer_folder(given: GivenRun, place: CheckpointPlace, config: Any) -> str:
    """The run's own copy, which outlives the folder it was built in; or the one that is given."""
    from chomp.storage import exists, join
    from chomp.tokenize.load import DESCRIPTION

    if given.tokenizer is not None:
        return given.tokenizer
    own = None if place.run is None else join(place.run, "tokenizer")
    if own is not None and exists(join(own, DESCRIPTION)):
        return own
    # Not taken by itself: a folder outside of the run may hold another tokenizer by now.
    built = config.data.tokenizer.path
    is_there = built is not None and exists(join(built, DESCRIPTION))
    raise DataError(
        message(
            given=f"{given.path} without a tokenizer: "
            + ("it lies in no run folder" if own is None else f"{own} has no {DESCRIPTION}"),
            allowed="a checkpoint in its run folder, which has tokenizer/, or a tokenizer by name",
            fix=f"pass --tokenizer {built if is_there else 'FOLDER'}",
        )
    )


def _require_same_tokenizer(found: StepFolder, tokenizer: Tokenizer) -> None:
    """Another tokenizer would give other tokens the same ids: numbers that mean nothing."""
    trained_with = found.metadata.tokenizer_hash
    if trained_with != tokenizer.content_hash:
        raise DataError(
            message(
                given=f"a tokenizer with the hash {tokenizer.content_hash[:_HASH_CHARACTERS]} for "
                f"{found.path}",
                allowed=f"the one it was trained with, {trained_with[:_HASH_CHARACTERS]}",
                fix="leave out --tokenizer, or pass the folder of that one",
            )
        )


def _require_unchanged(run: OpenedRun, found: StepFolder) -> None:
    """Raise `ConfigError` where the run folder is not what the checkpoint was saved with.

    Identity alone: a later attempt may have changed the rest, which results tell.
    """
    changes = [item for item in run.changes_since(found) if item.mark == "identity"]
    if not run.is_template_given:
        require_template(
            found, run.template.digest, run.template.folder, allows_changed=run.allows_changed
        )
    if changes and not run.allows_changed:
        told = ", ".join(
            f"{item.path}={item.after!r} (saved with {item.before!r})" for item in changes
        )
        raise ConfigError(
            message(
                given=f"{RESOLVED_CONFIG} of {run.folder} is not the config of {found.path}: "
                f"{told}",
                allowed="the config that the checkpoint was saved with",
                fix="bring back the file, or remove it: the checkpoint has the config too; or pass "
                "--allow-changed, and the results will not be the run's own",
            )
        )


def require_template(found: StepFolder, digest: str, folder: Path, *, allows_changed: bool) -> None:
    """Raise `ConfigError` for a copy of the template other than the checkpoint was saved with.

    A checkpoint of an earlier version of chomp does not say: that is logged.
    """
    saved = found.metadata.template_hash
    if not saved:
        _log.warning(
            "%s was saved without a hash of its template: whether %s is the one it was trained "
            "with cannot be checked",
            *(found.path, folder),
        )
    elif saved != digest and not allows_changed:
        raise ConfigError(
            message(
                given=f"{folder} has the hash {digest[:_HASH_CHARACTERS]}: it was edited, is "
                f"damaged, or is of a later attempt than {found.path}",
                allowed=f"the one the checkpoint was saved with, {saved[:_HASH_CHARACTERS]}",
                fix="bring back its files, or pass --allow-changed to use them as they are",
            )
        )


def _mesh(config: Any, *, is_asked: bool) -> Mesh:
    """The run's mesh; where this machine has other devices, rows over all that are here."""
    from chomp.mesh import MeshConfig, create_mesh

    try:
        return create_mesh(config.mesh)
    except ConfigError as error:
        if is_asked:
            raise
        mesh = create_mesh(MeshConfig())
        _log.warning(
            "the run's mesh does not fit this machine: rows are shared out over its %d devices. "
            "Numbers may differ in their last digits; -o mesh.model=... says otherwise. (%s)",
            mesh.size,
            error,
        )
        return mesh
