"""Every remedy that may be applied without asking has a gate, and sets nothing that a version does not know."""

import pytest

from vllm_operator.catalog.startup import ANY, Remedy, Severity, Signature, load_remedies, load_startup
from vllm_operator.catalog.versions import load_versions
from vllm_operator.planning.engine.overrides import ENGINE_VARIABLE_PREFIX
from vllm_operator.status.remedies import FIELD_FLAGS

SIGNATURES = {signature.id: signature for signature in load_startup().signatures}
REMEDIES = load_remedies()
VERSIONS = load_versions()


@pytest.fixture(params=sorted(REMEDIES), ids=str)
def remedy(request: pytest.FixtureRequest) -> Remedy:
    return REMEDIES[request.param]


def test_it_is_for_a_known_crash_that_is_marked_safe(remedy: Remedy) -> None:
    signature = SIGNATURES[remedy.signature]
    assert signature.severity is Severity.FATAL
    assert signature.auto_safe
    assert not signature.is_echo


def test_it_applies_changes_of_that_crash(remedy: Remedy) -> None:
    chosen = remedy.select(SIGNATURES[remedy.signature])
    assert [change.name for change in chosen] == list(remedy.changes)
    assert not {change.name for change in chosen} & FIELD_FLAGS
    assert not any("<" in (change.value or "") for change in chosen)


def test_some_version_within_its_gate_knows_what_it_sets(remedy: Remedy) -> None:
    inside = [
        table for table in VERSIONS.tables if remedy.fits(table.version, None if ANY in remedy.architectures else remedy.architectures[0])
    ]
    assert inside, remedy.versions
    for change in remedy.select(SIGNATURES[remedy.signature]):
        if change.name.startswith("--"):
            unknown = [table.version for table in inside if not table.knows_flag(change.name)]
        elif change.name.startswith(ENGINE_VARIABLE_PREFIX):
            unknown = [table.version for table in inside if not table.knows_variable(change.name)]
        else:
            unknown = []
        assert unknown == [], f"{change.name} is not known to {unknown}; narrow the gate"


def test_it_says_what_it_costs_and_does_not_fit_what_is_unknown(remedy: Remedy) -> None:
    assert remedy.costs
    assert not remedy.fits(None, "sm_90")
    assert not remedy.fits("0.10.2", remedy.architectures[0])
    assert ANY in remedy.architectures or not remedy.fits(VERSIONS.newest.version, None)


@pytest.mark.parametrize("signature", [s for s in SIGNATURES.values() if s.environment or s.arguments], ids=lambda s: s.id)
def test_a_remedy_names_no_flag_or_variable_that_no_version_knows(signature: Signature) -> None:
    for change in signature.arguments:
        assert "<" in change.name or any(table.knows_flag(change.name) for table in VERSIONS.tables), change.name
    for change in signature.environment:
        own = change.name.startswith(ENGINE_VARIABLE_PREFIX) and change.name not in ("VLLM_PORT", "VLLM_HOST_IP")
        assert not own or any(table.knows_variable(change.name) for table in VERSIONS.tables), change.name
