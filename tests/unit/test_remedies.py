"""Every remedy that may be applied without asking has a gate, and sets nothing that a version does not know."""

import re

import pytest

from support import observations as o
from support.engine_logs import crash_of, engine_failure
from vllm_operator.api.crd import owned_flags
from vllm_operator.catalog.startup import Change, Remedy, Severity, Signature, load_remedies, load_startup
from vllm_operator.catalog.versions import load_versions
from vllm_operator.planning.engine.overrides import ENGINE_VARIABLE_PREFIX
from vllm_operator.planning.engine.serving import READY_TIMEOUT
from vllm_operator.status.remedies import Engine, exact_changes

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
    assert not {change.name for change in chosen} & owned_flags().keys()
    assert not any("<" in (change.value or "") for change in chosen)


def test_some_version_within_its_gate_knows_what_it_sets(remedy: Remedy) -> None:
    inside = [
        table for table in VERSIONS.tables if remedy.fits(table.version, None if "any" in remedy.architectures else remedy.architectures[0])
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
    assert "any" in remedy.architectures or not remedy.fits(VERSIONS.newest.version, None)


LIMITS = [
    (signature.id, change)
    for signature in SIGNATURES.values()
    for change in (*signature.arguments, *signature.environment)
    if change.value is not None and change.bound is not None
]


@pytest.mark.parametrize(("name", "change"), LIMITS, ids=[f"{name} {change.name}" for name, change in LIMITS])
@pytest.mark.parametrize(("given", "is_suggested"), [("beyond", True), ("within", False), ("equal", False), ("unset", True)])
def test_a_number_is_suggested_only_if_the_one_that_is_set_is_beyond_it(name: str, change: Change, given: str, is_suggested: bool) -> None:
    value = "16" if change.value is None or change.value.startswith("{{") else change.value
    larger, smaller = str(float(value) * 2), str(float(value) / 2)
    beyond, within = (larger, smaller) if change.bound == "AtMost" else (smaller, larger)
    present = {"beyond": beyond, "within": within, "equal": value, "unset": None}[given]
    is_argument, exact = change in SIGNATURES[name].arguments, change.model_copy(update={"value": value})
    signature = SIGNATURES[name].model_copy(update={"arguments": (exact,) if is_argument else (), "environment": ()})
    given_engine = {"args" if is_argument else "env": [{"name": change.name, "value": present}]} if present is not None else {}
    engine = Engine.of(o.resource(engine={"version": "0.33.0", **given_engine}).spec, o.plan(engine_version="0.33.0"), VERSIONS)
    found = exact_changes(engine, signature, {}, only=[exact])
    assert bool(found) == (is_suggested and change.name != READY_TIMEOUT), "spec.startup sets that one"


def test_each_number_of_a_remedy_is_a_limit_or_a_switch() -> None:
    changes = [(name, change) for name, it in SIGNATURES.items() for change in (*it.arguments, *it.environment)]
    exact = [(name, change.name, change.value or "") for name, change in changes if change.bound is None]
    numbers = [found for found in exact if re.fullmatch(r"[0-9.]{2,}|[2-9]", found[2])]
    assert numbers == []


@pytest.mark.parametrize("signature", [s for s in SIGNATURES.values() if s.environment or s.arguments], ids=lambda s: s.id)
def test_a_remedy_names_no_flag_or_variable_that_no_version_knows(signature: Signature) -> None:
    for change in signature.arguments:
        assert "<" in change.name or any(table.knows_flag(change.name) for table in VERSIONS.tables), change.name
    for change in signature.environment:
        own = change.name.startswith(ENGINE_VARIABLE_PREFIX) and change.name not in ("VLLM_PORT", "VLLM_HOST_IP")
        assert not own or any(table.knows_variable(change.name) for table in VERSIONS.tables), change.name


@pytest.mark.parametrize(("share", "suggested"), [("0.012", []), ("0.9", ["0.95"])], ids=["of several engines", "of one engine"])
def test_a_change_follows_from_what_the_remedy_in_words_follows_from(share: str, suggested: list[str]) -> None:
    begun = f"INFO 05-01 09:20:13 [api_server.py:1034] args: Namespace(host=None, gpu_memory_utilization={share}, seed=0)\n"
    crash = crash_of(begun + engine_failure("ValueError: No available memory for the cache blocks."))
    engine = Engine.of(o.resource().spec, o.plan(), VERSIONS)
    changes = exact_changes(engine, SIGNATURES[crash.signature], dict(crash.captures))
    assert [change.value for change in changes] == suggested
    assert "--gpu-memory-utilization" in (crash.remedy or "")
    assert share in (crash.remedy or "")
