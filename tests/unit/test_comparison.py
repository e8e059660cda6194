"""The pure part of the comparison of operators (`hack/bench/compare.py`): writes and delays from an audit log, ratios and table."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from bench.compare import PHASES, THRESHOLDS, parse_options
from bench.figures import (
    READS,
    WRITES,
    Figure,
    Request,
    crossed,
    delays,
    for_each,
    of,
    parse_requests,
    quantile,
    summarize,
    table,
)

OPERATOR = "vllm-operator/"
LOAD = "bench-load"


def asked(verb: str, target: str, name: str, at: float, *, agent: str = OPERATOR, code: int = 200, took: float = 0.0) -> Request:
    return Request(verb, target, name, agent, code, at, at + took)


def audit_line(reference: Mapping[str, Any], **fields: Any) -> bytes:
    event = {
        "verb": "patch",
        "userAgent": "vllm-operator/1.0",
        "objectRef": reference,
        "responseStatus": {"code": 200},
        "requestReceivedTimestamp": "2026-11-23T05:00:00.250000Z",
        "stageTimestamp": "2026-11-23T05:00:00.750000Z",
        **fields,
    }
    return json.dumps(event).encode()


def test_a_line_of_the_audit_log_says_who_wrote_what_and_how_long_it_took() -> None:
    [request] = parse_requests([audit_line({"resource": "vllmdeployments", "subresource": "status", "name": "llama"})], set())
    assert (request.verb, request.target, request.name, request.code) == ("patch", "vllmdeployments/status", "llama", 200)
    assert request.agent.startswith(OPERATOR)
    assert request.answered - request.received == 0.5


@pytest.mark.parametrize("fields", [{"responseStatus": None}, {"objectRef": None}, {"userAgent": None}])
def test_a_request_that_is_about_no_object_can_be_read_too(fields: Mapping[str, Any]) -> None:
    [request] = parse_requests([audit_line({"resource": "pods"}, **fields)], set())
    assert request.verb == "patch"


def test_a_request_for_a_log_counts_once_though_its_begin_and_its_end_are_logged() -> None:
    def log(name: str, stage: str) -> bytes:
        reference = {"resource": "pods", "subresource": "log", "name": name}
        return audit_line(reference, verb="get", auditID=f"{name}-1", stage=stage, responseStatus={"code": 400})

    started: set[str] = set()
    first = parse_requests([log("a", "ResponseStarted"), log("b", "ResponseStarted"), log("a", "ResponseComplete")], started)
    second = parse_requests([log("b", "ResponseComplete"), log("a", "ResponseStarted")], started)
    assert for_each([*first, *second], OPERATOR, READS, 1) == {"pods/log": 3.0}


def test_writes_are_counted_for_each_object_and_not_what_the_operator_writes_for_itself() -> None:
    requests = [
        asked("patch", "deployments", "a", 1),
        asked("patch", "deployments", "b", 1),
        asked("patch", "deployments", "b", 2, code=409),  # costs as much
        asked("patch", "vllmdeployments/status", "a", 2),
        asked("update", "leases", "vllm-operator", 1),
        asked("create", "selfsubjectaccessreviews", "", 1),
        asked("list", "deployments", "", 1),
        asked("patch", "deployments", "a", 1, agent=LOAD),
    ]
    assert for_each(requests, OPERATOR, WRITES, 2) == {"deployments": 1.5, "vllmdeployments/status": 0.5}


def test_a_delay_ends_with_the_first_effect_after_its_cause() -> None:
    causes = [asked("create", "vllmdeployments", name, 10, agent=LOAD, took=1) for name in ("a", "b", "late")]
    effects = [
        asked("patch", "deployments", "a", 5),  # an earlier one
        asked("patch", "deployments", "a", 12),
        asked("patch", "deployments", "a", 20),
        asked("patch", "deployments", "b", 10.5),  # before the answer to its cause
    ]
    assert delays(causes, effects) == {"a": 1, "b": 0}
    assert delays(causes, effects, last=True) == {"a": 9, "b": 0}


def test_refused_writes_are_no_effects() -> None:
    requests = [asked("patch", "deployments", "a", 1, code=500), asked("patch", "deployments", "b", 1), asked("get", "deployments", "b", 1)]
    assert [request.name for request in of(requests, OPERATOR, "deployments")] == ["b"]


def test_quantiles() -> None:
    assert quantile([], 0.99) is None
    assert quantile([1.0], 0.99) == 1
    assert quantile(range(100), 0.5) == 50
    assert quantile(range(100), 0.99) == 99


def test_a_row_has_the_medians_of_the_rounds_and_the_ratios_of_the_first_contender() -> None:
    def figures(writes: float, told: float | None) -> list[Figure]:
        return [Figure("burst", "writes", "", writes), Figure("burst", "told", "s", told)]

    turns = [
        ("here", figures(4, 1)),
        ("floor", figures(2, None)),
        ("here", figures(3, 3)),
        ("here", figures(9, 2)),
        ("floor", figures(2, None)),
    ]
    writes, told = summarize(turns)
    assert (writes.values, told.values) == ({"here": 4, "floor": 2}, {"here": 2, "floor": None})
    assert writes.ratio("here", "floor") == 2
    assert told.ratio("here", "floor") is None
    lines = table([writes, told], ["here", "floor"]).splitlines()
    assert [line.split() for line in lines] == [
        ["phase", "measurement", "unit", "here", "floor", "here", "/", "floor"],
        ["burst", "writes", "4.00", "2.00", "2.00"],
        ["burst", "told", "s", "2.00", "-", "-"],
    ]


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        ({"most": 4}, []),
        ({"most": 3.5}, ["burst: writes is 4.00, at most 3.5"]),
        ({"mostOfFloor": 2}, []),
        ({"mostOfFloor": 1.9}, ["burst: writes is 2.00 times the floor, at most 1.9"]),
        ({"measurement": "reads", "most": 0}, []),
    ],
)
def test_a_change_that_crosses_a_threshold_is_told(bound: Mapping[str, Any], said: list[str]) -> None:
    rows = summarize([("here", [Figure("burst", "writes", "", 4)]), ("floor", [Figure("burst", "writes", "", 2)])])
    assert crossed(rows, [{"phase": "burst", "measurement": "writes", **bound}], "here", "floor") == said


def test_each_threshold_is_of_a_phase_and_has_a_bound() -> None:
    for bound in yaml.safe_load(THRESHOLDS.read_text("utf-8")):
        assert bound["phase"] in {*PHASES, "starting"}
        assert bound.keys() & {"most", "mostOfFloor"}


def test_nothing_is_compared_with_nothing() -> None:
    [row] = summarize([("here", [Figure("steady", "writes", "", 0)]), ("floor", [Figure("steady", "writes", "", 0)])])
    assert row.ratio("here", "floor") is None


def test_phases_are_in_their_order_and_begin_with_the_burst() -> None:
    assert parse_options([]).phases == list(PHASES)
    assert parse_options(["--phases", "update,steady"]).phases == ["burst", "steady", "update"]
    with pytest.raises(SystemExit):
        parse_options(["--phases", "sleep"])
