"""`chomp data verify`: whether stores are as they were written."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from collections.abc import Sequence

from chomp.cli.given_config import GivenConfig
from chomp.cli.stores import StorePlace, places_of
from chomp.cli.terminal import say
from chomp.errors import DataError, message


def verify_data(targets: Sequence[GivenConfig]) -> int:
    """Verify all stores of all targets; `DataError` at the end if any is damaged."""
    from chomp.data.store.verify import verify_store

    found: dict[str, StorePlace] = {}
    for given in targets:
        places, _ = places_of(given)
        found |= {place.path: place for place in places}
    damaged = {}
    for path, place in found.items():
        problems = verify_store(path)
        say(_verdict(place, len(problems)), style="red" if problems else "")
        for problem in problems:
            say(f"  {problem}")
        if problems:
            damaged[path] = problems
    if damaged:
        raise _damage(damaged, len(found), targets)
    return 0


def _verdict(place: StorePlace, num_problems: int) -> str:
    from chomp.data.store.token_store import read_manifest

    where = f"{place.title} ({place.path})" if place.component else place.path
    if num_problems:
        return f"damaged: {where}"
    manifest = read_manifest(place.path)
    counts = f"{manifest.num_documents:,} documents, {manifest.num_tokens:,} tokens"
    return f"whole: {where}, {counts}"


def _damage(
    damaged: dict[str, list[str]], num_stores: int, targets: Sequence[GivenConfig]
) -> DataError:
    builds = [
        given.command("build") for given in targets if given.kind() in ("YAML file", "launch file")
    ]
    again = f"run `{builds[0]}`" if builds else "run `chomp data build` with the config they are of"
    return DataError(
        message(
            given=f"{len(damaged)} of {num_stores} stores damaged: {', '.join(damaged)}",
            allowed="stores whose files are as they were written",
            fix="bring back the files that are named, or move these folders away, then "
            f"{again} to build them again (the next run makes a plan in packing/ again by itself)",
        )
    )
