"""What `make check-oracle` finds, and which of it has a reason in hack/oracle/allowed.yaml."""

from collections.abc import Mapping
from typing import Any

import pytest

from oracle.checking import compare, describe, load_allowed, parse_allowed, stale, unexplained
from oracle.finding import ARCHITECTURES, Difference, Kind, find_changed, find_missing
from oracle.tables import merge
from oracle.trees import merge_trees
from oracle.wheels import COMPONENTS, load_tables

LINE = {"difference": "Missing", "component": "moe", "versions": ">=0.11.1,<0.15", "cases": "BF16/*", "reason": "the layer chooses"}
HOLE = Difference(Kind.MISSING, "moe", "0.14.1", "sm_90", "BF16/Unset/Tensor/Llama4")


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({}, HOLE),
        ({"architectures": "sm_9*"}, HOLE),
        ({"cases": ["FP8/*", "BF16/Unset/*"]}, HOLE),
        ({"versions": ""}, HOLE),
        ({"versions": "==0.14.1"}, HOLE),
    ],
)
def test_a_line_covers_the_differences_that_it_names(change: dict[str, Any], difference: Difference) -> None:
    assert unexplained([difference], parse_allowed([LINE | change])) == []


@pytest.mark.parametrize(
    "change",
    [
        {"difference": "Rule"},
        {"component": "gemm"},
        {"versions": ">=0.15"},
        {"cases": "FP8/*"},
        {"architectures": "sm_12?"},
    ],
)
def test_a_line_about_something_else_explains_nothing_and_is_stale(change: dict[str, Any]) -> None:
    lines = parse_allowed([LINE | change])
    assert unexplained([HOLE], lines) == [HOLE]
    assert stale(lines, [HOLE], ["0.14.1"], []) == lines


def test_a_line_about_answers_is_stale_only_if_all_its_wheels_were_asked() -> None:
    lines = parse_allowed([LINE | {"difference": "Answer"}])
    versions = ["0.11.0", "0.11.1", "0.14.1", "0.15.0"]
    assert stale(lines, [], versions, ["0.14.1"]) == []
    assert stale(lines, [], versions, ["0.11.1", "0.14.1"]) == lines


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reason": " "}, "reason"),
        ({"versions": "0.14"}, "0.14"),
        ({"difference": "Unknown"}, "Unknown"),
        ({"case": "BF16/*"}, "case. is not a field"),
    ],
)
def test_a_line_that_cannot_be_read_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_allowed([LINE | change])


def test_each_committed_line_has_a_reason() -> None:
    assert all(len(line.reason) > 20 for line in load_allowed())


@pytest.mark.extended
@pytest.mark.timeout(600)  # one and a half minutes of CPU for experts: all versions, architectures and layers
@pytest.mark.parametrize("component", COMPONENTS)
def test_each_difference_between_tables_and_rules_has_a_reason_and_each_reason_a_difference(component: str) -> None:
    _, problems = compare({}, load_tables([component]))
    assert problems == []


def test_a_report_spells_out_a_few_differences_of_a_kind_and_counts_the_rest() -> None:
    holes = [Difference(Kind.MISSING, "moe", "0.14.1", architecture, "*", "no answer") for architecture in ARCHITECTURES]
    lines = describe(holes)
    assert lines[0] == "Missing moe 0.14.1 sm_75 *: no answer"
    assert lines[-1] == "  and 8 more of moe 0.14.1"


def dense(takes: str | None = "CUTLASS", **given: Any) -> dict[str, Any]:
    return {"takes": takes, "accepts": ["CUTLASS"], "refuses": {"MARLIN": "too new"}, "ignores": {}, "raises": None} | given


def everywhere(**cases: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {architecture: dict(cases) for architecture in ARCHITECTURES}


def test_a_wheel_that_answers_as_the_table_does_differs_in_nothing() -> None:
    asked = everywhere(FP8=dense(), INT8=dense(None, raises="too old"))
    assert find_changed("gemm", "0.20.1", asked, merge({"0.20.1": asked})) == []


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (dense("MARLIN"), "committed takes CUTLASS; the wheel takes MARLIN"),
        (dense(None, raises="too old"), "committed takes CUTLASS; the wheel raises too old"),
        (dense(refuses={}, accepts=["CUTLASS", "MARLIN"]), "committed takes CUTLASS; the wheel accepts MARLIN"),
        (dense(refuses={}), "committed takes CUTLASS; the wheel has no answer about MARLIN"),
        (dense(ignores={"TRITON": "CUTLASS"}), "committed takes CUTLASS; the wheel takes CUTLASS for TRITON"),
    ],
)
def test_each_other_answer_of_a_wheel_is_a_difference(now: dict[str, Any], said: str) -> None:
    asked = everywhere(FP8=dense()) | {"sm_90": {"FP8": now}}
    assert find_changed("gemm", "0.20.1", asked, merge({"0.20.1": everywhere(FP8=dense())})) == [
        Difference(Kind.ANSWER, "gemm", "0.20.1", "sm_90", "FP8", said)
    ]


def test_an_architecture_that_could_not_be_asked_is_a_difference() -> None:
    asked = everywhere(FP8=dense())
    table = merge({"0.20.1": asked})
    del asked["sm_90"]
    [found] = find_changed("gemm", "0.20.1", asked, table)
    assert (found.architecture, found.detail) == ("sm_90", "committed takes CUTLASS; the wheel has no answer")


def test_questions_that_a_table_answers_only_elsewhere_are_missing() -> None:
    table = merge({"0.20.1": everywhere(FP8=dense(), MXFP8=dense()), "0.11.0": everywhere(FP8=dense(None))})
    del table["versions"]["0.20.1"]["sm_90"]
    found = list(find_missing("gemm", table, ["0.11.0", "0.20.1", "0.21.0"]))
    assert {(each.version, each.case) for each in found} == {("0.11.0", "FP8"), ("0.11.0", "MXFP8"), ("0.20.1", "*"), ("0.21.0", "*")}
    assert {each.detail for each in found if each.case == "FP8"} == {"the backend that is taken is unknown"}


def experts(takes: str | None = "TRITON", **given: Any) -> dict[str, Any]:
    return {"takes": takes, "accepts": [], "refuses": {}, "ignores": {}, "raises": None} | given


def layers(*schemes: str, **special: dict[str, Any]) -> dict[str, Any]:
    return {f"{scheme}/Unset/Tensor/{model}": special.get(model, experts()) for scheme in schemes for model in ("Llama4", "GptOss")}


def test_a_tree_is_compared_case_by_case() -> None:
    before = {architecture: layers("FP8") for architecture in ARCHITECTURES}
    after = before | {"sm_90": layers("FP8", GptOss=experts("MARLIN"))}
    table = merge_trees({"0.20.1": before})
    assert find_changed("moe", "0.20.1", before, table) == []
    [found] = find_changed("moe", "0.20.1", after, table)
    assert (found.architecture, found.case) == ("sm_90", "FP8/Unset/Tensor/GptOss")


def test_a_number_format_without_a_branch_is_missing_and_so_is_an_unknown_backend() -> None:
    versions = {
        "0.14.0": {architecture: layers("FP8") for architecture in ARCHITECTURES},
        "0.15.0": {architecture: layers("FP8", "BF16", GptOss=experts(None, raises="KeyError: x")) for architecture in ARCHITECTURES},
    }
    found = list(find_missing("moe", merge_trees(versions), versions))
    assert {(each.version, each.case.partition("/")[0]) for each in found} == {("0.14.0", "BF16"), ("0.15.0", "FP8"), ("0.15.0", "BF16")}
