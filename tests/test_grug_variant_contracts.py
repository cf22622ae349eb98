"""Every folder under `experiments/grug` keeps the template contract; `-k NAME` asks one alone.

What can be read or traced is read or traced; the rest is run, for twenty steps on eight CPU devices
as the variant's own launch file says, and once more from the middle on. The checks are functions in
`grug_contracts`, `grug_traced_contracts` and `grug_run_contracts`; that each of them can fail is
shown in `test_grug_contract_breaches`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chomp.variants.checkout import Variant, variant_folders
from tests import grug_contracts as contracts
from tests import grug_run_contracts as run_contracts
from tests.grug_contracts import ROOT, Template
from tests.grug_run_contracts import Runs
from tests.grug_traced_contracts import TRACED


# A module's fixture with parameters: pytest does all tests of a variant before those of the next.
@pytest.fixture(scope="module", params=variant_folders(ROOT), ids=lambda variant: variant.name)
def variant(request: pytest.FixtureRequest) -> Variant:
    """Each variant, one after the other."""
    found: Variant = request.param
    return found


@pytest.fixture(scope="module")
def verified(variant: Variant) -> Variant:
    """A variant that is held to the contracts: one whose exception has no fault is skipped."""
    if reason := contracts.reason_to_skip(variant):
        pytest.skip(reason)
    return variant


@pytest.fixture(scope="module")
def template(verified: Variant) -> Iterator[Template]:
    """The variant, imported."""
    with contracts.imported(verified) as found:
        yield found


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all variants keep their outputs: the stores of one are those of the next."""
    return tmp_path_factory.mktemp("contracts")


@pytest.fixture(scope="module")
def runs(template: Template, prefix: Path) -> Runs:
    """The runs of the variant."""
    return run_contracts.made_runs(template, prefix)


def listed(violations: list[str]) -> str:
    """Violations one to a line, for the message of a failing test."""
    return "\n" + "\n".join(violations)


def name_of(contract: Callable[..., list[str]]) -> str:
    """A contract as it stands in the name of its test."""
    return contract.__name__


def test_there_are_variants_and_base_is_verified():
    violations = contracts.something_to_verify(ROOT)
    assert not violations, listed(violations)


def test_a_variant_that_is_not_verified_says_why_and_until_when(variant: Variant):
    violations = contracts.says_why_it_is_not_verified(variant)
    assert not violations, listed(violations)


@pytest.mark.parametrize("contract", contracts.READ, ids=name_of)
def test_a_variant_reads_as_promised(contract: contracts.Reads, verified: Variant):
    violations = contract(verified)
    assert not violations, listed(violations)


@pytest.mark.parametrize("contract", [*contracts.IMPORTED, *TRACED], ids=name_of)
def test_a_template_is_what_others_take_it_for(contract: contracts.Checks, template: Template):
    violations = contract(template)
    assert not violations, listed(violations)


def test_the_loss_falls_within_twenty_steps_on_text(runs: Runs):
    violations = run_contracts.the_loss_falls(runs.straight)
    assert not violations, listed(violations)


def test_a_run_that_was_lost_continues_bit_for_bit(runs: Runs):
    violations = run_contracts.resumes_bit_for_bit(runs.straight, runs.resumed)
    assert not violations, listed(violations)


def test_averaged_weights_are_there_only_when_asked_for(runs: Runs):
    violations = run_contracts.averages_only_when_asked(runs.straight, runs.plain)
    assert not violations, listed(violations)


def test_batches_of_one_size_are_one_program(runs: Runs):
    violations = run_contracts.compiles_once(runs.straight)
    assert not violations, listed(violations)


def test_a_run_logs_every_promised_key(
    runs: Runs, variant: Variant, record_property: Callable[[str, object], None]
):
    violations = run_contracts.logs_what_it_promises(runs.straight)
    assert not violations, listed(violations)
    if own := run_contracts.not_described(runs.straight):
        record_property("note", f"{variant.name}: not described: {', '.join(own)}")


def test_experts_may_lie_over_devices(runs: Runs, template: Template):
    assert (runs.over_experts is not None) == template.uses_experts
    if runs.over_experts is not None:
        violations = run_contracts.trains_over_experts(runs.over_experts)
        assert not violations, listed(violations)
