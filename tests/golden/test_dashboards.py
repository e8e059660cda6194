"""The dashboards of the chart: every query, as Prometheus evaluates it, finds something with engines of the oldest and newest version."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import generate_dashboards
from support import engine_metrics
from testenv.binaries import find_binary
from vllm_operator.api.status import CacheStatus, Condition, ConditionStatus, StartupStatus, VLLMDeploymentStatus
from vllm_operator.controller.metrics import Metrics

DASHBOARDS = list(generate_dashboards.DASHBOARDS)
VALUES = {"$__rate_interval": "5m", "$__range": "1h", "$namespace": "models", "$name": "llama"}
MINUTES = 20
STATUS = {"Ready": "False", "Crashed": "True", "PlanDrifted": "True"}


def of_operator() -> list[str]:
    """The series of an operator with two VLLMDeployments: one is ready, the other starts after a crash."""
    metrics = Metrics()
    metrics.observe_queue(lambda: 0, lambda: 0.0)
    metrics.observe_leader(lambda: True, lambda: 1.0)
    for name, conditions in (("llama", STATUS), ("ready", {"Ready": "True"})):
        found = [
            Condition(type=type, status=ConditionStatus(status), reason="Other", message="", last_transition_time="2026-11-21T12:00:00Z")
            for type, status in conditions.items()
        ]
        status = VLLMDeploymentStatus(
            conditions=found,
            ready_replicas=1,
            startup=StartupStatus(stage="WeightLoad"),
            cache=CacheStatus(key="a", cold_start_seconds=600, warm_start_seconds=60),
        )
        metrics.reported("models", name, status)
    text = metrics.render().decode()
    shown = [f"{sample.name}{_labels(sample.labels)}" for family in text_string_to_metric_families(text) for sample in family.samples]
    # of a start in progress
    return [
        *shown,
        *(f'vllm_operator_{name}{{namespace="models",name="llama"}}' for name in ("start_timestamp_seconds", "start_late_after_seconds")),
    ]


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def run_promtool(folder: Path, inputs: list[dict[str, Any]], tests: list[dict[str, Any]]) -> str:
    """Evaluate expressions over series; empty if each has the samples that are expected, else what differs."""
    path = folder / "test.yaml"
    group = {"interval": "1m", "input_series": inputs, "promql_expr_test": tests}
    path.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [group]}))
    done = subprocess.run(
        [str(find_binary("promtool")), "test", "rules", str(path)], capture_output=True, text=True, check=False, timeout=60
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def queries(uid: str) -> list[tuple[str, str]]:
    """Title and query of each target of a dashboard, with values for its variables."""
    found = [(panel["title"], target["expr"]) for panel in generate_dashboards.dashboard(uid)["panels"] for target in panel["targets"]]
    return [(title, re.sub(r"\$\w+", lambda variable: VALUES[variable[0]], query)) for title, query in found]


@pytest.mark.skipif(find_binary("promtool") is None, reason="there is no promtool; `make testenv` builds it")
@pytest.mark.parametrize("version", engine_metrics.VERSIONS)
@pytest.mark.parametrize("uid", DASHBOARDS)
def test_every_query_finds_something(uid: str, version: str, tmp_path: Path) -> None:
    inputs = [{"series": name, "values": f"1+{growth}x{MINUTES}"} for name, growth in engine_metrics.series(version)]
    inputs += [{"series": name, "values": f"1+0x{MINUTES}"} for name in of_operator()]
    tests = [
        {"expr": f"count({query}) > bool 0", "eval_time": f"{MINUTES}m", "exp_samples": [{"labels": "{}", "value": 1}]}
        for _, query in queries(uid)
    ]
    # a query for a metric that no version has any more must fail, or this test would say nothing
    tests.append({"expr": "count(vllm:gpu_cache_usage_percent)", "eval_time": f"{MINUTES}m", "exp_samples": []})
    assert run_promtool(tmp_path, inputs, tests) == ""


@pytest.mark.skipif(find_binary("promtool") is None, reason="there is no promtool; `make testenv` builds it")
@pytest.mark.parametrize("pods", [["one"], ["one", "two"]], ids=["one", "two, around a takeover"])
def test_an_object_that_two_pods_of_the_operator_report_counts_once(pods: list[str], tmp_path: Path) -> None:
    series = [name.replace("{", f'{{pod="{pod}",', 1) for name in of_operator() for pod in pods]
    inputs = [{"series": name, "values": f"1+0x{MINUTES}"} for name in series]
    wanted = {"Ready": 1, "Not ready": 1, "Crashed": 1, "Ready replicas": 2}
    numbers = {title: query for title, query in queries("vllm-fleet") if title in wanted}
    tests = [
        {"expr": numbers[title], "eval_time": f"{MINUTES}m", "exp_samples": [{"labels": "{}", "value": value}]}
        for title, value in wanted.items()
    ]
    assert run_promtool(tmp_path, inputs, tests) == ""


@pytest.mark.skipif(find_binary("promtool") is None, reason="there is no promtool; `make testenv` builds it")
@pytest.mark.parametrize("type", ["Crashed", "Hung", "RolledBack"])
def test_the_fleet_shows_crashes_hangs_and_failed_revisions(type: str, tmp_path: Path) -> None:
    [query] = [query for title, query in queries("vllm-fleet") if title == "Crashes, hangs and failed revisions"]
    series = f'vllm_operator_condition{{namespace="models",name="llama",type="{type}",status="True",reason="Why"}}'
    shown = [{"labels": '{namespace="models",name="llama",reason="Why"}', "value": 1}]
    tests = [{"expr": query, "eval_time": f"{MINUTES}m", "exp_samples": shown}]
    assert run_promtool(tmp_path, [{"series": series, "values": f"1+0x{MINUTES}"}], tests) == ""


def test_a_query_for_a_name_that_only_one_version_has_would_be_found() -> None:
    only = [{name.partition("{")[0] for name, _ in engine_metrics.series(version)} for version in engine_metrics.VERSIONS]
    asked = {name for uid in DASHBOARDS for _, query in queries(uid) for name in re.findall(r"vllm:\w+", query)}
    assert asked <= only[0] & only[1]
    assert only[0] ^ only[1]
