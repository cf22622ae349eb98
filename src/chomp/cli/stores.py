"""The token stores behind a CONFIG: where each is, whether it is built, what it holds."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chomp.cli.given_config import GivenConfig
from chomp.cli.run_data import RunData, run_data
from chomp.errors import DataError, message

if TYPE_CHECKING:  # for annotations alone
    from rich.table import Table

    from chomp.data import LmDataConfig, Split

SPLITS: tuple[Split, ...] = ("train", "validation")


@dataclass(frozen=True, kw_only=True)
class StorePlace:
    """A store of a config; without a component, one that was given by its folder."""

    path: str
    component: str = ""
    split: Split | None = None

    @property
    def title(self) -> str:
        """The store as a person would name it."""
        return f"{self.component}, {self.split} split" if self.component else self.path

    @property
    def is_built(self) -> bool:
        """Whether its building has ended."""
        from chomp.data.store.token_store import MANIFEST
        from chomp.storage import exists, join

        return exists(join(self.path, MANIFEST))


def store_places(data: LmDataConfig, splits: Sequence[Split] = SPLITS) -> list[StorePlace]:
    """The stores of a data config, by component and split.

    A component that is never trained on and a stream have no train store.
    """
    places = []
    for name, component in data.components.items():
        paths = {"train": component.train_store, "validation": component.validation_store}
        for split in splits:
            path = paths[split]
            if path is not None:
                places.append(StorePlace(path=path, component=name, split=split))
    return places


def places_of(given: GivenConfig) -> tuple[list[StorePlace], RunData | None]:
    """The stores of a CONFIG, which must all be built; or the one store that was given itself."""
    if given.kind() == "token store":
        given.refuse_options()
        return [StorePlace(path=given.path)], None
    run = run_data(given)
    require_built(run)
    return store_places(run.data), run


def require_built(run: RunData, splits: Sequence[Split] = SPLITS) -> None:
    """Raise `DataError` unless the tokenizer and the stores of those splits are built."""
    from chomp.storage import exists, join
    from chomp.tokenize.load import DESCRIPTION

    places = store_places(run.data, splits)
    missing = [f"{place.title} ({place.path})" for place in places if not place.is_built]
    tokenizer = run.data.tokenizer.path
    if tokenizer is None or not exists(join(tokenizer, DESCRIPTION)):
        missing.insert(0, f"the tokenizer ({tokenizer})")
    if not missing:
        return
    raise DataError(
        message(
            given="not built:\n" + "".join(f"  {item}\n" for item in missing),
            allowed="a config whose tokenizer and token stores are built",
            fix=_how_to_build(run),
        )
    )


def store_table(places: Iterable[StorePlace]) -> Table:
    """What the stores hold, one line each."""
    from rich.filesize import decimal
    from rich.table import Table
    from rich.text import Text

    from chomp.data.store.token_store import read_manifest
    from chomp.storage import folder_size_bytes

    table = Table("component", "split")
    for heading in ("documents", "tokens", "dtype", "size"):
        table.add_column(heading, justify="right")
    table.add_column("folder")
    for place in places:
        manifest = read_manifest(place.path)
        table.add_row(
            Text(manifest.identity.name),
            manifest.identity.split,
            f"{manifest.num_documents:,}",
            f"{manifest.num_tokens:,}",
            manifest.dtype,
            decimal(folder_size_bytes(place.path)),
            Text(place.path),
        )
    return table


def _how_to_build(run: RunData) -> str:
    if run.completed_steps is None:
        return f"build them with `{run.given.command('build')}`"
    return (
        "run this command in the folder the run was started from, if paths are relative to it; "
        "else `chomp data build` with the config that made the run builds them again"
    )
