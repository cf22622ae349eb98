"""`chomp checkpoint export`: the weights of a checkpoint, for other programs."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chomp.cli.checkpoint_printing import chosen, late_bar, use_the_cpu
from chomp.cli.terminal import say

if TYPE_CHECKING:  # for annotations alone
    from chomp.checkpoint.export import FloatType, Weights


def export_place(
    path: str, out: str, *, weights: Weights, dtype: FloatType | None, allows_changed: bool = False
) -> int:
    """Write the folder and say what is in it, and what is not."""
    from rich.filesize import decimal

    from chomp.checkpoint.export import export_weights, weight_bytes
    from chomp.checkpoint.places import place_of
    from chomp.cli.opened_run import require_template
    from chomp.storage import is_folder, join
    from chomp.tracking.run_files import TEMPLATE, sources_hash, template_sources

    use_the_cpu()
    found, run = chosen(path), place_of(path).run
    # The config is the checkpoint's own; the template is copied from the run folder.
    if run is not None and is_folder(join(run, TEMPLATE)):
        digest = sources_hash(template_sources(join(run, TEMPLATE)))
        require_template(found, digest, Path(run, TEMPLATE), allows_changed=allows_changed)
    with late_bar("exporting", weight_bytes(found, weights)) as on_bytes:
        made = export_weights(found, out, run=run, weights=weights, dtype=dtype, on_bytes=on_bytes)
    say(
        f"{made.path}: {made.num_arrays} arrays, {decimal(made.num_bytes)}, "
        f"{weights} of step {found.metadata.step}"
    )
    for name in made.missing:
        where = f"{run} has none" if run else f"{found.path} is in no run folder"
        say(f"without {name}/: {where}")
    return 0
