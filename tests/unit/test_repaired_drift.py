"""Somebody edits what the operator created: it is restored, and an event says who changed which field, and what to change instead."""

from typing import Any

import pytest

from support.operators import Bench, llama
from vllm_operator.kube.client import DEPLOYMENT, EVENT, SERVICE, Kind


def restored(bench: Bench) -> list[str]:
    return [event["message"] for event in bench.cluster.all(EVENT) if event["reason"] == "Restored"]


@pytest.fixture
async def settled(bench: Bench) -> Bench:
    bench.cluster.put(llama())
    await bench.settle()
    return bench


@pytest.mark.parametrize(
    ("kind", "change", "field", "instead"),
    [
        (DEPLOYMENT, {"spec": {"replicas": 3}}, "spec.replicas of Deployment llama", "Change spec.replicas of the VLLMDeployment instead"),
        (
            DEPLOYMENT,
            {"spec": {"strategy": {"type": "RollingUpdate"}}, "status": {"observedGeneration": 2**31}},  # a strategy stays until it is seen
            "spec.strategy",
            "Change spec.rollout of the VLLMDeployment instead",
        ),
        (SERVICE, {"spec": {"selector": {"evil": "1"}}}, "spec.selector", "Change the VLLMDeployment instead"),
    ],
)
async def test_an_edit_is_told_with_its_author(settled: Bench, kind: Kind, change: dict[str, Any], field: str, instead: str) -> None:
    settled.cluster.edit(kind, "default", "llama", change)
    await settled.settle()
    [message] = restored(settled)
    assert message.startswith(f"Restored {field}")
    assert "which kubectl-edit changed" in message
    assert instead in message


async def test_a_field_that_is_changed_again_and_again_is_told_once_an_hour(settled: Bench) -> None:
    for minutes, times in ((0, 1), (5, 1), (10, 1), (60, 2)):
        settled.pass_time(60 * minutes)
        settled.cluster.edit(DEPLOYMENT, "default", "llama", {"spec": {"replicas": 3}})
        await settled.settle()
        assert settled.deployment()["spec"]["replicas"] == 1
        assert len(restored(settled)) == times


async def test_a_change_of_the_spec_is_no_drift(settled: Bench) -> None:
    settled.cluster.put({**settled.resource(), "spec": {**settled.resource()["spec"], "replicas": 2}})
    await settled.settle()
    assert restored(settled) == []
