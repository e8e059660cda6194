"""One spec on four versions of vLLM: the plans differ exactly where the versions do, and say why.

Each recording is a page: a row for everything that is chosen or set, a column for each version, `.` where it is as in
the version before; below it each reason with the versions that it holds for.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.gpus import inventory_of, real_node
from support.plans import known
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.cli.terminal import table, wrap
from vllm_operator.planning.planner import plan

VERSIONS = ("0.16.0", "0.20.1", "0.24.0", "0.33.0")
SPECS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "deepseek-v3-fp8-h200": ("h200", {"model": {"uri": "hf://deepseek-ai/DeepSeek-V3"}, "parallelism": {"tensor": 8}}),
    "deepseek-r1-fp4-b200-expert-parallel": (
        "b200",
        {"model": {"uri": "hf://nvidia/DeepSeek-R1-0528-NVFP4"}, "parallelism": {"data": 8, "expert": "Enabled"}},
    ),
    "deepseek-v3.2-b200": ("b200", {"model": {"uri": "hf://deepseek-ai/DeepSeek-V3.2"}, "parallelism": {"tensor": 8}}),
    "nvfp4-moe-rtx-pro-6000-latency": (
        "rtx-pro-6000",
        {"model": {"uri": "hf://nvidia/Qwen3-30B-A3B-NVFP4"}, "backends": {"optimizeFor": "Latency"}},
    ),
    "experts-by-triton-forced-h200": (
        "h200",
        {
            "model": {"uri": "hf://Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"},
            "parallelism": {"tensor": 4},
            "backends": {"moe": "TRITON", "attention": "FLASHINFER"},
        },
    ),
}


@cache
def plans(name: str) -> tuple[Plan, ...]:
    node, spec = SPECS[name]
    found = []
    for version in VERSIONS:
        manifest = {"metadata": {"name": "demo"}, "spec": {**spec, "engine": {"version": version}}}
        outcome = plan(VLLMDeployment.parse(manifest), inventory_of(real_node(node)), known())
        assert outcome.plan is not None, outcome
        found.append(outcome.plan)
    return tuple(found)


def kept() -> set[str]:
    caches = known().caches
    return {variable.name for entry in (*caches.compiled, caches.weights) for variable in entry.variables}


def rows(made: Plan) -> dict[str, tuple[str, str]]:
    """What a plan chooses and sets, each with its reason."""
    found = {
        choice.component: (f"{choice.backend} ({choice.chosen_by})", choice.reason + (f" [{choice.source}]" if choice.source else ""))
        for choice in made.backends
    }
    found |= {argument.name: (argument.value or "set", argument.reason or "") for argument in made.args}
    return found | {variable.name: (variable.value, variable.reason or "") for variable in made.env if variable.name not in kept()}


def merged(keys: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(key for each in keys for key in each))


def page(name: str) -> str:
    made = plans(name)
    spec = SPECS[name][1]
    columns = [rows(each) for each in made]
    lines = []
    for key in merged(columns):
        cells = [column.get(key, ("-", ""))[0] for column in columns]
        lines.append((key, *(cell if number == 0 or cells[number - 1] != cell else "." for number, cell in enumerate(cells))))
    text = [f"{spec['model']['uri']} on {known().gpus.title(made[0].product, made[0].architecture)}", ""]
    text += table(("", *VERSIONS), lines)
    for key in merged(columns):
        reasons: dict[str, list[str]] = {}
        for version, column in zip(VERSIONS, columns, strict=True):
            if key in column and column[key][1]:
                reasons.setdefault(column[key][1], []).append(version)
        text += ["", key] if reasons else []
        text += [line for reason, where in reasons.items() for line in wrap(f"{', '.join(where)}: {reason}", "  ")]
    for version, each in zip(VERSIONS, made, strict=True):
        text += ["", f"Notes for {version}", *(line for note in each.notes for line in wrap(note, "  "))] if each.notes else []
    return "\n".join(text) + "\n"


@pytest.mark.parametrize("name", SPECS)
def test_the_four_versions_side_by_side_are_as_recorded(name: str, golden: Callable[[Path, str], None]) -> None:
    golden(Path(__file__).parent / "versions" / f"{name}.txt", page(name))


@pytest.mark.parametrize("name", SPECS)
def test_a_backend_differs_only_by_rules_that_ask_for_the_version(name: str) -> None:
    """Not by chance: another backend comes from another rule, and one of the two is for certain versions only."""
    by_id = {rule.id: rule for rule in known().rules.rules}
    for before, after in zip(plans(name), plans(name)[1:], strict=False):
        old = {choice.component: choice for choice in before.backends}
        for choice in after.backends:
            earlier = old.get(choice.component)
            if earlier is None or (earlier.backend, earlier.chosen_by) == (choice.backend, choice.chosen_by):
                continue
            rules = [by_id[str(each.source).partition(":")[0]] for each in (earlier, choice)]
            bounded = any(rule.when.versions.low or rule.when.versions.high or rule.when.chosen for rule in rules)
            ways = [way for way in known().rules.invocations if way.component == choice.component]
            assert bounded or len(ways) > 1, (choice, earlier)
            assert choice.reason


@pytest.mark.parametrize("name", SPECS)
def test_every_setting_that_differs_has_a_reason_in_the_plan_that_has_it(name: str) -> None:
    for before, after in zip(plans(name), plans(name)[1:], strict=False):
        old, new = rows(before), rows(after)
        for key in old.keys() ^ new.keys():
            assert (old | new)[key][1], key


@pytest.mark.parametrize("name", SPECS)
def test_what_the_versions_do_not_decide_is_the_same_in_all(name: str) -> None:
    first, *others = plans(name)
    for other in others:
        assert (other.architecture, other.product, other.resource, other.count) == (
            first.architecture,
            first.product,
            first.resource,
            first.count,
        )
        assert other.engine_version != first.engine_version
        assert other.cache_key != first.cache_key
