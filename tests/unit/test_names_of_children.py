"""Children of different VLLMDeployments never have the same kind and name, and each name is one that the API server accepts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fleet import Fleet
from support.operators import Bench
from vllm_operator.api.crd import find_rules
from vllm_operator.api.labels import is_name
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import Role, VLLMDeployment, labels_of
from vllm_operator.caches.jobs import render_job
from vllm_operator.caches.priming import render_primer
from vllm_operator.kube.client import DEPLOYMENT
from vllm_operator.pods.view import instance_of
from vllm_operator.rendering.manifests import render
from vllm_operator.rendering.revision import render_revision

PATTERN = find_rules("name")[0]["rule"].partition("'")[2].rpartition("'")[0]
NAMES = st.from_regex(PATTERN.replace("$", r"\Z")) | st.from_regex(r"\A[ab](-(cache|clean|primer|gpu|weights|fetch|[0-9a-f]{8})){0,4}\Z")
DIGEST = "0123456789ab"
PLAN: dict[str, Any] = {
    "catalogVersion": "1",
    "model": "org/name",
    "image": "vllm/vllm-openai:v0.20.1",
    "toolsImage": "registry.example/vllm-operator:1",
    "distribution": "vLLM",
    "count": 1,
    "cacheKey": "key",
    "deadlineSeconds": 901,
    "weights": {"place": "OwnVolume", "volumeSize": "10Gi"},
}


def job_names(name: str) -> list[str]:
    resource = VLLMDeployment.parse({"metadata": {"name": name}, "spec": {"model": {"uri": "hf://a/b"}}})
    digits = {Role.CLEANING: 8, Role.PUBLISHING: 12, Role.FETCHING: 10}
    jobs = [render_job(resource, DIGEST[:size], role, {}, attempts=0, deadline=1, kept=1) for role, size in digits.items()]
    return [str(job["metadata"]["name"]) for job in jobs]


def children(name: str) -> set[tuple[str, str]]:
    """Kind and name of all children that are not named as the VLLMDeployment itself, and of those that are."""
    metadata = {"name": name, "uid": "u"}
    found: set[tuple[str, str]] = set()
    for spec, resource in (({}, "nvidia.com/gpu"), ({"accelerator": {"allocation": "DRA"}}, "gpu.nvidia.com")):
        parsed = VLLMDeployment.parse({"metadata": metadata, "spec": {"model": {"uri": "hf://a/b"}, **spec}})
        plan = Plan.model_validate({**PLAN, "resource": resource})
        manifests = render(parsed, plan)
        [deployment] = [manifest for manifest in manifests if manifest["kind"] == "Deployment"]
        manifests += [render_primer(deployment, beside_replicas=False), render_revision(parsed, plan, number=1)]
        found |= {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}
    return found | {("Job", job) for job in job_names(name)}


@given(NAMES, st.data())
def test_children_of_two_objects_are_never_the_same_object(name: str, data: st.DataObject) -> None:
    own = children(name)
    like = [child for _, child in sorted(own) if len(child) <= 52 and "." not in child and child != name]
    other = data.draw(st.sampled_from(like) | NAMES if like else NAMES)
    if other != name:
        assert own.isdisjoint(children(other))


@given(NAMES)
def test_every_name_of_a_child_is_accepted(name: str) -> None:
    assert all(is_name(child) for _, child in children(name))
    assert all(len(job) <= 63 for job in job_names(name)), "the name of a Job is also the value of a label"


@pytest.mark.parametrize("name", ["llama", "x" * 42, "x" * 43, "x" * 52, f"{'x' * 30}-{'y' * 21}"])
@pytest.mark.parametrize("role", [Role.CLEANING, Role.PUBLISHING, Role.FETCHING])
def test_the_pods_of_a_job_are_recognized_however_long_the_name_is(name: str, role: Role) -> None:
    resource = VLLMDeployment.parse({"metadata": {"name": name}, "spec": {"model": {"uri": "hf://a/b"}}})
    job = dict(zip((Role.CLEANING, Role.PUBLISHING, Role.FETCHING), job_names(name), strict=True))[role]
    owner = {"kind": "Job", "name": job, "controller": True}
    assert instance_of({"metadata": {"labels": labels_of(resource, role), "ownerReferences": [owner]}}) == name


async def test_an_object_with_the_name_of_a_primer_holds_no_rollout(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve("llama-primer", cache={"priming": "Never"})
    await fleet.serve(cache={"priming": "Always"})
    fleet.ready(fleet.start())
    await fleet.settle()
    before = fleet.deployment("llama-primer")
    await fleet.change(engine={"version": "0.24.0"})
    owners = {item["metadata"]["name"]: item["metadata"]["ownerReferences"][0]["name"] for item in bench.cluster.all(DEPLOYMENT)}
    assert owners == {"llama-primer": "llama-primer", "llama": "llama", "llama.primer": "llama"}
    assert fleet.deployment("llama-primer") == before
    fleet.ready(fleet.start("llama.primer"))
    await fleet.settle()
    assert "v0.24.0" in (fleet.deployment() or {})["spec"]["template"]["spec"]["containers"][0]["image"]
