"""A run loaded to look at: its config, its own template, its tokenizer, and then its weights.

What the commands need that look at a model when training is over, or while it goes on. Nothing in
the run folder is changed here.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from chomp.checkpoint import (
    CheckpointPlace,
    LoadedWeights,
    StepFolder,
    WeightsName,
    best_weights,
    load_weights,
    place_of,
    require_checkpoints_at,
    these_weights,
)
from chomp.cli.load_config import RUN_CLASS
from chomp.cli.options import GivenRun
from chomp.cli.templates import LoadedTemplate, load_template, require_same_template
from chomp.config import Difference, apply_overrides, config_difference, config_from_mapping
from chomp.data import RowLimits
from chomp.errors import ConfigError, DataError, require, require_at_most
from chomp.kernels.precision import Precision
from chomp.mesh import (
    MeshConfig,
    create_mesh,
    leave_on_error,
    prepare_devices,
    require_fits_mesh,
)
from chomp.storage import exists, join, read_json
from chomp.storage.secrets import without_secrets
from chomp.tokenize import DESCRIPTION, Tokenizer, load_tokenizer
from chomp.tracking.run_files import (
    DERIVED,
    RESOLVED_CONFIG,
    TEMPLATE,
    sources_hash,
    template_sources,
)
from chomp.training import row_limits
from chomp.training.setup import with_reproducible_attention

_HASH_CHARACTERS = 12  # in messages
# Sections that say what is done beside training. Another value of theirs is no other model.
_BESIDE_TRAINING = ("eval", "samples", "logging", "checkpoint", "mesh")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LoadedRun:
    """A run as its folder has it, on the devices of this machine; no weights are read yet."""

    given: GivenRun
    folder: str | None  # of the run; None: the checkpoint lies in none
    config: Any  # the template's GrugRunConfig, after overrides
    changed: Mapping[str, Any]  # the fields that overrides have changed, and their values
    recorded: Any  # the config without overrides
    recorded_mapping: Mapping[str, Any]  # what it was read from
    template: LoadedTemplate
    is_own_template: bool  # its sources are those of the run's own copy
    tokenizer: Tokenizer
    tokenizer_folder: str
    mesh: Mesh
    mp: Precision

    @property
    def path(self) -> str:
        """As it was given: a run or one of its checkpoints."""
        return self.given.run

    def limits(self) -> RowLimits:
        """What the model and its attention kernel take of rows, in this run's batches."""
        return row_limits(self.config, self.mesh)

    def has_template_of(self, found: StepFolder) -> bool:
        """Whether a checkpoint was saved by a run of this very template."""
        saved = found.metadata.template_hash
        return self.template.digest == saved if saved else self.is_own_template

    def changes_since(self, found: StepFolder) -> list[Difference]:
        """The fields of the run folder's config that are not as a checkpoint was saved with.

        Without what the run's place decides, and what only redaction has made different.
        """
        saved = found.metadata.config
        # In the mapping too: a field that an older version did not write has a default in both.
        written = {item.path for item in config_difference(saved, self.recorded_mapping)}
        return [
            item
            for item in config_difference(saved, self.recorded)
            if item.path in written
            and item.path != "output_path"
            # Checkpoints have a path below the output prefix relative to it.
            and not (
                isinstance(item.before, str)
                and item.before.startswith("<prefix>")
                and str(item.after).endswith(item.before.removeprefix("<prefix>"))
            )
            and without_secrets(item.before) != without_secrets(item.after)
        ]

    def from_template(self, name: str) -> Callable[..., Any]:
        """A function of the template that takes the precision first, bound to the run's own."""
        return partial(self.template.part(name), self.mp)

    def weights(self, choose: Callable[[StepFolder], Sequence[WeightsName]]) -> LoadedWeights:
        """The weights that `choose` asks for, of the newest whole checkpoint or the one named."""

        def chosen(found: StepFolder) -> Sequence[WeightsName]:
            # Here, because which checkpoint it will be is only known while it is looked for.
            trained_with, given = found.metadata.tokenizer_hash, self.tokenizer.content_hash
            if trained_with != given:
                # It would give other tokens the same ids: numbers that mean nothing.
                raise DataError(
                    f"a tokenizer with the hash {given[:_HASH_CHARACTERS]} for {found.path}",
                    allowed=f"the one it was trained with, {trained_with[:_HASH_CHARACTERS]}",
                    fix="leave out --tokenizer, or pass the folder of that one",
                )
            if self.given.template is None:
                require_same_template(
                    self.template.digest,
                    self.template.folder,
                    saved=found.metadata.template_hash,
                    checkpoint=found.path,
                    allows_changed=self.given.allow_changed,
                )
            # Identity fields alone: a later attempt may have changed others, which results list.
            changes = [
                f"{item.path}={item.after!r} (saved with {item.before!r})"
                for item in self.changes_since(found)
                if item.mark == "identity"
            ]
            require(
                not changes or self.given.allow_changed,
                f"{RESOLVED_CONFIG} of {self.folder} is not the config of {found.path}: "
                f"{', '.join(changes)}",
                allowed="the config that the checkpoint was saved with",
                fix="bring back the file, or remove it: the checkpoint has the config too; or pass "
                "--allow-changed, and the results will not be the run's own",
            )
            return choose(found)

        fresh_state = partial(self.template.part("fresh_state"), self.config)
        with jax.set_mesh(self.mesh):
            params = jax.eval_shape(fresh_state).params
            return load_weights(self.path, params, mesh=self.mesh, choose=chosen)

    def one_model(self, name: WeightsName | None) -> LoadedWeights:
        """The weights of that name; None: the average, if there is one."""
        choose = best_weights if name is None else partial(these_weights, names=(name,))
        return self.weights(choose)


@contextmanager
def leaving_together() -> Iterator[None]:
    """Of several processes, let one that fails keep no other waiting."""
    try:
        yield
    except BaseException:
        # Only then: asking for the number of processes would look for devices first.
        if jax.distributed.is_initialized():
            with leave_on_error():
                raise
        raise


def load_run(given: GivenRun, *, may_change: Sequence[str]) -> LoadedRun:
    """The run around a path. `may_change` are patterns of fields that overrides may change."""
    prepare_devices()  # before JAX looks for them
    place = place_of(given.run)
    own = place.run and join(place.run, TEMPLATE)
    folder = given.template or own
    if folder is None:
        raise ConfigError(
            f"{given.run}, which lies in no run folder, so its model's source is not known",
            allowed=f"a checkpoint in its run folder, beside {TEMPLATE}/",
            fix="pass --template FOLDER and --tokenizer FOLDER",
        )
    template = load_template(Path(folder), is_trusted=given.trust)
    # From cheap to expensive: a wrong command is refused before devices are used.
    mapping, source = _recorded_mapping(place)
    recorded = config_from_mapping(template.part(RUN_CLASS), mapping, source=source)
    if place.run is not None:
        recorded = replace(recorded, output_path=place.run)  # it was trained elsewhere, perhaps
    config = apply_overrides(recorded, given.overrides or ())
    changed = {}
    # By what has changed and not by what was typed: an alias or a whole section says it too.
    for item in config_difference(recorded, config):
        is_known = any(fnmatchcase(item.path, pattern) for pattern in may_change)
        is_turned_off = item.after is None and isinstance(item.before, dict)
        if is_turned_off or not is_known:
            section = item.path.split(".")[0]
            is_trained = item.mark == "identity" and section not in _BESIDE_TRAINING
            why = "is part of what was trained" if is_trained else "has no effect on this command"
            raise ConfigError(
                f"-o {item.path}={item.after}, which {why}",
                allowed=f"changes of {', '.join(may_change)}",
                fix=f"leave it out: the run has {item.before}"
                + (", and another value needs another run" if is_trained else ""),
            )
        changed[item.path] = item.after
    # The run's own copy outlives the folder that the tokenizer was built in.
    copy = place.run and join(place.run, "tokenizer")
    tokenizer_folder = given.tokenizer or copy
    if given.tokenizer is None and (copy is None or not exists(join(copy, DESCRIPTION))):
        # Only offered, not taken: a folder outside of the run may hold another tokenizer by now.
        built = config.data.tokenizer.path
        is_there = built is not None and exists(join(built, DESCRIPTION))
        raise DataError(
            f"{given.run} without a tokenizer: "
            + ("it lies in no run folder" if copy is None else f"{copy} has no {DESCRIPTION}"),
            allowed="a checkpoint in its run folder, which has tokenizer/, or a tokenizer by name",
            fix=f"pass --tokenizer {built if is_there else 'FOLDER'}",
        )
    tokenizer = load_tokenizer(str(tokenizer_folder))
    sizes = ("model.vocab_size", config.model.vocab_size)
    require_at_most("tokenizer ids", tokenizer.vocab_size, *sizes)
    try:
        mesh = create_mesh(config.mesh)
    except ConfigError as error:
        if any(name.startswith("mesh") for name in changed):
            raise
        mesh = create_mesh(MeshConfig())
        _log.warning(
            "the run's mesh does not fit this machine: rows are shared out over its %d devices. "
            "Numbers may differ in their last digits; -o mesh.model=... says otherwise. (%s)",
            mesh.size,
            error,
        )
    # As the loop does it, or the numbers would be those of another kernel.
    config = with_reproducible_attention(config, mesh)
    require_fits_mesh(partial(template.part("fresh_state"), config), mesh)
    return LoadedRun(
        given=given,
        folder=place.run,
        config=config,
        changed=changed,
        recorded=recorded,
        recorded_mapping=mapping,
        template=template,
        # A copy of the run's own copy is as good.
        is_own_template=own is not None
        and sources_hash(template_sources(Path(own))) == template.digest,
        tokenizer=tokenizer,
        tokenizer_folder=str(tokenizer_folder),
        mesh=mesh,
        mp=Precision.parse(config.trainer.precision),
    )


def _recorded_mapping(place: CheckpointPlace) -> tuple[dict[str, Any], str]:
    """The config as the run folder has it, or else the checkpoint, and where that was."""
    location = None if place.run is None else join(place.run, RESOLVED_CONFIG)
    if location is not None and exists(location):
        content = read_json(location)
        require(
            isinstance(content, dict),
            f"{location}, which holds a {type(content).__name__}",
            allowed="the config of a run, as training wrote it",
            fix="bring back a copy of the file, or remove it: checkpoints have one too",
        )
        return {key: value for key, value in content.items() if key != DERIVED}, location
    # A checkpoint that was copied out of its run: its metadata has the config it was saved under.
    found = require_checkpoints_at(place)
    for item in found:
        if isinstance(item, StepFolder):
            return item.metadata.config, item.path
    raise found[0].error()  # type: ignore[union-attr]  # none of them is a StepFolder
