"""Two operators of the same objects: the API server's audit log is the witness that at most one of them writes."""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from support.account import ACCOUNT, add_account, make_account, remove_account
from support.audit import AuditTrail, Request
from support.cluster import Cluster, Manifest
from support.operator_process import OperatorProcess, has, llama
from testenv import Environment

pytestmark = pytest.mark.cluster

LEASE = "vllm-operator"
MODELS = tuple(f"model-{number}" for number in range(8))


@pytest.fixture
async def accounts(served: Cluster, tmp_path: Path) -> AsyncIterator[tuple[Path, Path]]:
    """Two accounts with the rights of the chart, so that the audit log tells who has written."""
    first = await make_account(served, tmp_path / "first.kubeconfig")
    second = await add_account(served, "second", tmp_path / "second.kubeconfig")
    yield first, second
    await remove_account(served)


async def lease(cluster: Cluster) -> Manifest:
    found: Manifest = await cluster.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/{cluster.namespace}/leases/{LEASE}")
    return found


def last_logged(operator: OperatorProcess, words: str) -> datetime:
    return datetime.fromisoformat(re.findall(rf"(?m)^(\S+) INFO +{words}", operator.log)[-1])


@asynccontextmanager
async def both(served: Cluster, accounts: tuple[Path, Path]) -> AsyncIterator[tuple[OperatorProcess, OperatorProcess]]:
    """One that leads, and one that stands by."""
    async with OperatorProcess(accounts[0], served.namespace) as first:
        await first.until_ready()
        async with OperatorProcess(accounts[1], served.namespace) as second:
            await second.until_says("standing by")
            yield first, second


def writes_of(audit: AuditTrail, served: Cluster, account: str) -> list[Request]:
    """All that an account has changed; the Lease is among it."""
    found = audit.writes(user=f"system:serviceaccount:{served.namespace}:{account}")
    return [request for request in found if request.resource != "selfsubjectaccessreviews"]


async def leads(operator: OperatorProcess) -> bool:
    return "vllm_operator_leader 1.0" in (await operator.fetch("/metrics"))[1]


async def test_one_stands_by_ready_and_costs_little_and_takes_over_as_soon_as_the_other_stops(
    served: Cluster, accounts: tuple[Path, Path], audit: AuditTrail
) -> None:
    async with both(served, accounts) as (first, second):
        assert await leads(first)
        assert not await leads(second)
        status, words = await second.fetch("/readyz")
        assert (status, words.partition(":")[0]) == (200, "standing by")
        audit.mark()
        await served.create(llama(served.namespace))
        await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
        metrics = (await second.fetch("/metrics"))[1]
        assert "vllm_operator_leader_since_timestamp_seconds 0.0" in metrics
        assert 'name="llama"' not in metrics  # what an object's state is, only the leader says
        asked = audit.requests(user=f"system:serviceaccount:{served.namespace}:second")
        assert {request.resource for request in asked} <= {"leases"}
        assert {request.verb for request in asked} <= {"get"}
        assert await first.stop() == 0
        await second.until_says("which released it")  # it does not wait for the Lease to expire
        await second.until_ready()
        assert (await lease(served))["spec"]["leaseTransitions"] == 1
        await served.create(llama(served.namespace, "after"))
        await served.wait_for("VLLMDeployment", "after", has("Ready", "True"))


@pytest.mark.extended
@pytest.mark.timeout(240)
async def test_one_that_stood_still_for_a_minute_writes_nothing_more(
    served: Cluster, accounts: tuple[Path, Path], audit: AuditTrail
) -> None:
    async with both(served, accounts) as (first, second):
        for name in MODELS:
            await served.create(llama(served.namespace, name))
        first.process.send_signal(signal.SIGSTOP)  # in the middle of its work
        frozen = time.monotonic()
        await second.until_says("which did not renew it for 15 s")
        audit.mark()
        for name in MODELS:
            await served.wait_for("VLLMDeployment", name, has("Ready", "True"), within=60)
        await asyncio.sleep(max(0.0, 60 - (time.monotonic() - frozen)))
        assert writes_of(audit, served, "second")
        first.process.send_signal(signal.SIGCONT)
        assert await first.ended() == 1
        await asyncio.sleep(1)
        assert re.search(r"operator_\S+ has taken the Lease \S+\. The operator exits, to be started again as a standby", first.log)
        assert "Traceback" not in first.log
        assert writes_of(audit, served, ACCOUNT) == []


@pytest.mark.extended
@pytest.mark.timeout(240)
async def test_one_that_is_killed_in_the_middle_of_its_work_is_followed_when_its_lease_expires_and_nothing_is_lost(
    served: Cluster, accounts: tuple[Path, Path]
) -> None:
    async with both(served, accounts) as (first, second):
        await served.create(llama(served.namespace, MODELS[0]))
        await served.wait_for("VLLMDeployment", MODELS[0], has("Ready", "True"))
        engine = {pod["metadata"]["uid"] for pod in await served.list_all("Pod")}
        for name in MODELS[1:]:
            await served.create(llama(served.namespace, name))
        await first.kill()
        killed = time.monotonic()
        holder = (await lease(served))["spec"]["holderIdentity"]
        await second.until_says(f"after {holder}, which did not renew it for 15 s")
        assert time.monotonic() - killed > 5  # not before it must have stopped
        for name in MODELS:
            await served.wait_for("VLLMDeployment", name, has("Ready", "True"), within=60)
        await second.until_quiet()
        revisions = [it["metadata"]["ownerReferences"][0]["name"] for it in await served.list_all("ControllerRevision")]
        assert sorted(revisions) == sorted(MODELS)
        pods = {pod["metadata"]["uid"] for pod in await served.list_all("Pod")}
        assert engine <= pods
        assert len(pods) == len(MODELS)
        metrics = (await second.fetch("/metrics"))[1]
        assert {name for name in MODELS if f'vllm_operator_ready_replicas{{name="{name}"' in metrics} == set(MODELS)
        assert float(re.findall(r"(?m)^vllm_operator_leader_since_timestamp_seconds (\S+)", metrics)[0]) > 0


async def test_a_container_that_is_started_again_in_its_pod_leads_again_at_once(served: Cluster, accounts: tuple[Path, Path]) -> None:
    async with OperatorProcess(accounts[0], served.namespace) as operator:
        await operator.until_ready()
        await operator.kill()
        await operator.start()
        await operator.until_says("serving", times=2, within=60)
        assert last_logged(operator, "leading") - last_logged(operator, "vllm-operator") < timedelta(seconds=10)  # the Lease lasts for 15
        assert (await lease(served))["spec"]["leaseTransitions"] == 0


@pytest.mark.extended
async def test_an_outage_closes_the_fence_and_ends_nothing(environment: Environment, served: Cluster, operator: OperatorProcess) -> None:
    assert await leads(operator)
    environment.control_plane.stop_component("kube-apiserver")
    try:
        async with asyncio.timeout(60):
            while await leads(operator):  # noqa: ASYNC110 - a metric is asked for
                await asyncio.sleep(0.2)
        await operator.until_says("the operator writes nothing")
    finally:
        environment.control_plane.start_component("kube-apiserver")
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)
    assert await leads(operator)
    assert operator.process.returncode is None


async def test_without_the_right_to_hold_the_lease_it_says_so_and_writes_nothing(
    served: Cluster, accounts: tuple[Path, Path], audit: AuditTrail
) -> None:
    await served.delete("Role", f"{ACCOUNT}-lease")
    async with OperatorProcess(accounts[0], served.namespace) as operator:
        await operator.until_says(f"may not get the Lease {served.namespace}/{LEASE}", within=20)
        status, words = await operator.fetch("/readyz")
        assert (status, "so it writes nothing" in words) == (503, True)
        assert writes_of(audit, served, ACCOUNT) == []


async def test_a_lease_that_is_handed_to_another_ends_its_holder(served: Cluster, accounts: tuple[Path, Path]) -> None:
    async with OperatorProcess(accounts[0], served.namespace) as operator:
        await operator.until_ready()
        path = f"/apis/coordination.k8s.io/v1/namespaces/{served.namespace}/leases/{LEASE}"
        patch = {"spec": {"holderIdentity": "somebody else"}}
        await served.request("PATCH", path, body=patch, content_type="application/merge-patch+json")
        assert await operator.ended() == 1
        assert "somebody else has taken the Lease" in operator.log


async def test_without_leader_election_there_is_no_lease(served: Cluster, accounts: tuple[Path, Path], audit: AuditTrail) -> None:
    async with OperatorProcess(accounts[0], served.namespace, lease="") as operator:
        await operator.until_ready()
        await served.create(llama(served.namespace))
        await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
        assert [request for request in audit.requests(namespace=served.namespace) if request.resource == "leases"] == []
