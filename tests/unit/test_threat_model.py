"""What docs/security.md promises, where no test of a single part shows it: who can gain what, and who cannot."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import vllm_operator
from support.gpus import real_node
from support.observations import NOW, plan
from support.operators import Bench, llama
from vllm_operator.api.crd import custom_resource_definition
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.caches.cleaning import CleaningNeed, render_cleaning
from vllm_operator.caches.context import CacheContext
from vllm_operator.kube.client import CLAIM, CLAIM_TEMPLATE, DEPLOYMENT, SECRET, SERVICE, Invalid, Kind, Manifest
from vllm_operator.planning.pod_template import check_pod_template

SOURCES = Path(str(vllm_operator.__file__)).parent
GOLDEN = Path(__file__).parent.parent / "golden"
SLICES = GOLDEN / "cases" / "mig-uuid-claim" / "slices.yaml"
SPEC = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
UUID = "MIG-8949ea7d-9166-53ce-9bac-6c58262addf9"
FOREIGN: dict[str, tuple[Kind, Manifest]] = {
    "a Deployment": (DEPLOYMENT, {"replicas": 9, "template": {"spec": {"containers": []}}}),
    "a Service": (SERVICE, {"selector": {"app": "theirs"}}),
}


def fields(schema: dict[str, Any], path: str = "spec") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field that the schema names, with its path."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from fields(field.get("items", field), f"{path}.{name}")


def test_no_field_names_another_namespace_but_that_of_a_gateway_which_decides_for_itself() -> None:
    named = [path for path, _ in fields(SPEC) if "namespace" in path.lower()]
    # a selector of who may connect, and the Gateway, whose listeners say which namespaces they admit
    assert named == ["spec.networkPolicy.ingressFrom.namespaceSelector", "spec.gateway.parentRefs.namespace"]


def test_what_a_field_refers_to_is_a_name_and_no_path() -> None:
    references = {path: field["pattern"] for path, field in fields(SPEC) if path.endswith(("Name", "Ref.name")) and "pattern" in field}
    assert {"spec.cache.claimName", "spec.model.tokenSecretRef.name"} <= set(references)
    open_fields = {path for path, field in fields(SPEC) if field.get("x-kubernetes-preserve-unknown-fields")}
    # what Kubernetes itself judges when the Pod, the claim or the Service is made
    assert all(
        path.startswith(("spec.podTemplate.", "spec.engine.env.valueFrom", "spec.networkPolicy.ingressFrom.")) for path in open_fields
    ), open_fields


@pytest.mark.parametrize("field", ["namespace", "name", "ownerReferences", "finalizers"])
async def test_a_template_says_nothing_about_where_a_pod_lies_or_whose_it_is(bench: Bench, field: str) -> None:
    bench.cluster.put(llama(podTemplate={"metadata": {field: "kube-system", "labels": {"a": "b"}}}))
    await bench.settle()
    assert f"podTemplate.metadata has {field}; only labels and annotations" in bench.plan_verdict().message
    assert not bench.cluster.all(DEPLOYMENT)


async def test_everything_lies_in_the_namespace_of_the_object(bench: Bench) -> None:
    bench.cluster.put(llama(podTemplate={"spec": {"serviceAccountName": "theirs"}}, cache={"onDelete": "Delete"}))
    await bench.settle()
    assert {child["metadata"]["namespace"] for kind in (DEPLOYMENT, SERVICE, CLAIM) for child in bench.cluster.all(kind)} == {"default"}


def test_nothing_is_mounted_and_no_rights_are_asked_for_unless_the_user_says_so() -> None:
    check_pod_template({})
    manifests = yaml.safe_load_all((GOLDEN / "manifests" / "tensor-parallel" / "manifests.yaml").read_text("utf-8"))
    [deployment] = [it for it in manifests if it["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert {"serviceAccountName", "hostNetwork", "hostPID", "hostIPC"}.isdisjoint(pod)
    assert {kind for volume in pod["volumes"] for kind in volume if kind != "name"} <= {"persistentVolumeClaim", "emptyDir", "secret"}
    for container in pod["containers"]:
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def cleaning_job(resource: VLLMDeployment, engine: dict[str, Any]) -> Manifest:
    """The Job that cleans PersistentVolumeClaim `mine`, on which this Pod has its caches."""
    engine = copy.deepcopy(engine)
    engine.setdefault("volumes", []).append({"name": "cache", "persistentVolumeClaim": {"claimName": "mine"}})
    engine["containers"][0] |= {"name": "vllm", "volumeMounts": [{"name": "cache", "mountPath": "/cache", "subPath": "key"}]}
    desired = {"spec": {"template": {"spec": engine}}}
    context = CacheContext(resource=resource, plan=plan(), desired=desired, now=NOW)
    return render_cleaning(context, CleaningNeed("x", is_full=True, node=None, doomed=()), frozenset())


def test_the_job_that_cleans_a_volume_gets_neither_a_token_nor_what_the_engine_was_given() -> None:
    resource = VLLMDeployment.parse(llama(podTemplate={"spec": {"serviceAccountName": "powerful"}}))
    engine = {
        "serviceAccountName": "powerful",
        "volumes": [{"name": "secrets", "secret": {"secretName": "theirs"}}],
        "containers": [{"image": "engine:1", "env": [{"name": "PASSWORD", "value": "secret"}], "securityContext": {"runAsUser": 7}}],
    }
    job = cleaning_job(resource, engine)
    pod = job["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    claim, tools = pod["volumes"]
    assert claim == {"name": "claim", "persistentVolumeClaim": {"claimName": "mine"}}
    assert tools == {"name": "operator-tools", "emptyDir": {}}
    assert "powerful" not in json.dumps(job)
    assert "PASSWORD" not in json.dumps(job)


@pytest.mark.parametrize("what", FOREIGN)
async def test_what_is_not_ours_is_left_as_it_is(bench: Bench, what: str) -> None:
    kind, spec = FOREIGN[what]
    there = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "llama", "namespace": "default"}, "spec": spec}
    bench.cluster.put(there)
    bench.cluster.put(llama())
    await bench.settle()
    [now] = bench.cluster.all(kind)
    assert (now["spec"], now["metadata"].get("ownerReferences")) == (spec, None)
    assert "was not created by the operator" in bench.condition("Ready").message


@pytest.mark.parametrize("field", ["cache", "weights"])
async def test_a_claim_that_somebody_filled_does_not_go_with_an_object_that_finds_it_under_its_name(bench: Bench, field: str) -> None:
    policy: dict[str, Any] = {field: {"onDelete": "Delete"}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "20Gi"}}}
    metadata = {"name": f"llama-{field}", "namespace": "default"}
    bench.cluster.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
    bench.cluster.put(llama(**policy))
    await bench.settle()
    [claim] = [claim for claim in bench.cluster.all(CLAIM) if claim["metadata"]["name"] == metadata["name"]]
    assert (claim["spec"], claim["metadata"].get("labels"), claim["metadata"].get("ownerReferences")) == (spec, None, None)
    assert "but the operator did not create it" in bench.cache_verdict().message


async def test_what_another_controller_owns_is_not_pruned_although_it_bears_our_labels(bench: Bench) -> None:
    bench.cluster.put(llama())
    await bench.settle()
    ours = bench.deployment()["metadata"]["labels"]
    owner = {"apiVersion": "example.com/v1", "kind": "Other", "name": "x", "uid": "77", "controller": True}
    metadata = {"name": "beside", "namespace": "default", "labels": ours, "ownerReferences": [owner]}
    bench.cluster.put({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {}})
    bench.cluster.put({**bench.resource(), "spec": llama(replicas=2)["spec"]})
    await bench.settle()
    assert "beside" in {service["metadata"]["name"] for service in bench.cluster.all(SERVICE)}


async def test_a_device_claim_goes_when_the_device_plugin_takes_over() -> None:
    bench = Bench(real_node("h100-mig-mixed"))
    for slices in yaml.safe_load_all(SLICES.read_text("utf-8")):
        bench.cluster.put(slices)
    resource = llama(accelerator={"allocation": "DRA", "mig": {"uuids": [UUID]}})
    resource["spec"]["model"]["uri"] = "hf://TinyLlama/TinyLlama-1.1B-Chat-v1.0"
    bench.cluster.put(resource)
    await bench.settle()
    assert bench.cluster.all(CLAIM_TEMPLATE), bench.plan_verdict().message
    changed = bench.resource()
    changed["spec"]["accelerator"] = {"allocation": "DevicePlugin", "mig": {"profile": "1g.10gb"}}
    changed["metadata"]["generation"] += 1
    bench.cluster.put(changed)
    await bench.settle()
    counts = dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), 1)
    seen = {"observedGeneration": bench.deployment()["metadata"]["generation"]}
    bench.cluster.set_status(DEPLOYMENT, "default", "llama", {**seen, **counts})
    await bench.settle()
    assert bench.cluster.all(CLAIM_TEMPLATE) == []
    assert not bench.deployment()["spec"]["template"]["spec"].get("resourceClaims")


async def test_no_secret_is_read_without_a_hub(bench: Bench) -> None:
    bench.cluster.fail("get", SECRET, Invalid("a Secret was read"), times=100)  # it must not come
    bench.cluster.put(llama(model={"uri": "hf://org/gated", "tokenSecretRef": {"name": "hub"}}))
    assert (await bench.settle()).name == "success"


def test_a_template_of_a_message_can_do_no_more_than_put_words_together() -> None:
    unsafe = [
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if "jinja2" in (text := path.read_text("utf-8")) and "from_string" in text and "ImmutableSandboxedEnvironment" not in text
    ]
    assert unsafe == []


def test_nothing_is_executed_loaded_or_unpickled() -> None:
    names = (
        "eval(",
        "exec(",
        "pickle",
        "subprocess",
        "os.system",
        "yaml.Loader",
        "FullLoader",
        "UnsafeLoader",
        "unsafe_load",
        "__import__(",
    )
    found = {
        f"{path.relative_to(SOURCES).as_posix()}: {name}"
        for path in SOURCES.rglob("*.py")
        for name in names
        for line in path.read_text("utf-8").splitlines()
        if name in line and not line.strip().startswith(("#", '"'))
    }
    # in the engine's container, with its rights: `nvidia-smi` of the driver, with constant arguments; only digits of its output are read
    # and `catalog ingest` starts the program that parses a wheel, with limits, in a process of its own
    assert found == {"tools/hang.py: subprocess", "cli/catalog.py: subprocess"}


DOCS = Path(__file__).parent.parent.parent / "docs"


def table(path: Path, heading: str) -> dict[str, str]:
    """The first table below a heading: the rest of each line by its first cell."""
    section = path.read_text("utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return {line.split("|")[1].strip(): line for line in lines}


def test_each_line_about_who_can_delete_what_is_held_by_a_test() -> None:
    said = table(DOCS / "security.md", "Who can delete what")
    shown = table(DOCS / "design" / "0002-threat-model.md", "Who can delete what")
    assert list(said) == list(shown)
    tests = "\n".join(path.read_text("utf-8") for path in GOLDEN.parent.rglob("test_*.py"))
    named = {line: re.findall(r"`(test_\w+)`", text) for line, text in shown.items()}
    assert all(named.values())
    assert [test for found in named.values() for test in found if f"def {test}(" not in tests] == []


def test_each_threat_names_tests_that_exist() -> None:
    files = {path.name for path in GOLDEN.parent.rglob("test_*.py")}
    threats = table(DOCS / "design" / "0002-threat-model.md", "Threats")
    named = {line: re.findall(r"`(test_\w+\.py)`", text) for line, text in threats.items()}
    assert all(named.values())
    assert [test for found in named.values() for test in found if test not in files] == []


@pytest.mark.parametrize("name", ["default", "own-rules-and-signatures", "own-rules-for-two-namespaces"])
def test_the_operator_has_no_right_to_delete_anything_else(name: str) -> None:
    text = (GOLDEN / "chart" / f"{name}.yaml").read_text("utf-8")
    roles = [it for it in yaml.safe_load_all(text) if it and it["kind"] in ("Role", "ClusterRole")]
    ours = [role for role in roles if "rbac.authorization.k8s.io/aggregate-to-edit" not in role["metadata"].get("labels", {})]
    rules = [rule for role in ours for rule in role["rules"]]
    may_delete = {resource for rule in rules for resource in rule["resources"] if {"delete", "*"} & set(rule["verbs"])}
    ours_to_delete = {"deployments", "services", "pods", "jobs", "resourceclaimtemplates", "controllerrevisions", "networkpolicies"}
    ours_to_delete |= {"poddisruptionbudgets", "horizontalpodautoscalers", "leaderworkersets"}
    assert may_delete == ours_to_delete
    assert not any({"deletecollection", "escalate", "bind", "impersonate", "*"} & set(rule["verbs"]) for rule in rules)


async def test_a_job_for_cleaning_goes_by_itself_and_with_its_object() -> None:
    resource = VLLMDeployment.parse({**llama(), "metadata": {**llama()["metadata"], "uid": "1"}})
    engine = {"containers": [{"image": "engine:1"}]}
    job = cleaning_job(resource, engine)
    assert job["spec"]["ttlSecondsAfterFinished"] == 15 * 60
    assert [owner["uid"] for owner in job["metadata"]["ownerReferences"]] == ["1"]
