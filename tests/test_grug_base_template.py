"""The base part of `test_grug_variant_contracts`, as one test:

    uv run --group test pytest tests/test_grug_base_template.py

In a session that asks every variant, base is asked there, and not a second time here.
"""

from pathlib import Path

import pytest

from chomp.variants.checkout import variant_folders
from tests import grug_contracts as contracts
from tests import grug_run_contracts as run_contracts
from tests.grug_contracts import BASE, ROOT
from tests.grug_traced_contracts import TRACED

EVERY_VARIANT = Path(__file__).with_name("test_grug_variant_contracts.py")


def is_asked_elsewhere(session: pytest.Session) -> bool:
    """Whether the session holds the contracts of base as those of one variant among others."""
    params = [
        item.callspec.params
        for item in session.items
        if item.path == EVERY_VARIANT and hasattr(item, "callspec")
    ]
    return any(found["variant"].name == BASE for found in params if "variant" in found)


def test_base_keeps_every_contract(request: pytest.FixtureRequest, tmp_path: Path):
    if is_asked_elsewhere(request.session):
        pytest.skip(f"in this session, {EVERY_VARIANT.name} asks base")
    violations = contracts.something_to_verify(ROOT)
    (base,) = (variant for variant in variant_folders(ROOT) if variant.name == BASE)
    violations += [told for contract in contracts.READ for told in contract(base)]
    with contracts.imported(base) as template:
        checks = (*contracts.IMPORTED, *TRACED)
        violations += [told for contract in checks for told in contract(template)]
        runs = run_contracts.made_runs(template, tmp_path)
    violations += run_contracts.run_violations(runs)
    assert not violations, "\n" + "\n".join(violations)
