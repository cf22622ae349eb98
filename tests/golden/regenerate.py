"""Write the golden files anew: `uv run --group test python -m tests.golden.regenerate`.

Only for a change that is meant to alter numerics, what a step's identity is, or public names; the
difference is reviewed with the change.
"""

import json
import tempfile
from pathlib import Path

import jax

from tests.golden.identity_steps import IDENTITIES, identities, text
from tests.public_surface import RECORDED, surface

CURVE = Path(__file__).with_name("base_20_steps.json")


def base_curve() -> list[float]:
    """Training loss of 20 steps of the tiny base run, on one CPU device."""
    from dataclasses import replace

    from chomp.mesh import MeshConfig
    from experiments.grug.base.train import run_grug
    from tests import tiny

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = tiny.run_config(tiny.build_data(folder), folder / "run", steps=20)
        model = replace(config.model, num_layers=2)
        run_grug(replace(config, model=model, eval=None, mesh=MeshConfig(data=jax.device_count())))
        found = tiny.losses(folder / "run")
    return [found[step] for step in range(20)]


if __name__ == "__main__":
    CURVE.write_text(json.dumps({"loss": base_curve()}, indent=1) + "\n")
    print(f"wrote {CURVE}")
    IDENTITIES.write_text(text(identities()))
    print(f"wrote {IDENTITIES}")
    RECORDED.write_text("\n".join(surface()) + "\n")
    print(f"wrote {RECORDED}")
