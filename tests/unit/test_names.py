"""Text of users as the name of an object: no request leaves the namespace and the kind, and what cannot be a name is refused."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.aio.client.configuration import Configuration

from support.fleet import Fleet
from support.operators import Bench, llama
from vllm_operator.api.labels import API_VERSION, PRIMING_ANNOTATION_PREFIX, is_name, is_namespace
from vllm_operator.caches.directories import read_lease
from vllm_operator.kube.api_client import KubeClient
from vllm_operator.kube.client import (
    CLAIM,
    DEPLOYMENT,
    NODE,
    POD,
    VLLM_DEPLOYMENT,
    InvalidName,
    Kind,
    LogRequest,
    Manifest,
    NotFound,
    Unavailable,
)

VICTIM = "../../victim/persistentvolumeclaims/llama-cache"
SLOW = "../persistentvolumeclaims?watch=true"
HOSTILE = [
    VICTIM,
    SLOW,
    "../../../pods",
    "",
    ".",
    "..",
    "%2e%2e",
    "a/b",
    "a?b",
    "a#b",
    "a\\b",
    "a;b",
    "//host/x",
    "a,b=c",
    "x\n",
    " x",
    "A",
    "é",
]
TEXT = st.sampled_from(HOSTILE) | st.text(max_size=40) | st.from_regex(r"[a-z0-9.?/%&#=-]{1,40}", fullmatch=True)

Request = Callable[[KubeClient, Kind, str, str], Coroutine[Any, Any, None]]


async def read(client: KubeClient, kind: Kind, namespace: str, name: str) -> None:
    await client.get(kind, name, namespace)


async def apply(client: KubeClient, kind: Kind, namespace: str, name: str) -> None:
    await client.apply(manifest(kind, namespace, name), manager="test")


async def apply_status(client: KubeClient, kind: Kind, namespace: str, name: str) -> None:
    await client.apply_status(manifest(kind, namespace, name), manager="test")


async def patch(client: KubeClient, kind: Kind, namespace: str, name: str) -> None:
    await client.patch(kind, name, namespace, [], manager="test")


async def delete(client: KubeClient, kind: Kind, namespace: str, name: str) -> None:
    await client.delete(kind, name, namespace)


async def read_log(client: KubeClient, kind: Kind, namespace: str, name: str) -> None:
    async with client.stream_log(LogRequest(namespace, name, name)) as chunks:
        async for _ in chunks:
            pass


async def list_by_label(client: KubeClient, kind: Kind, namespace: str, name: str) -> None:
    await client.find(kind, namespace, labels={"app.kubernetes.io/instance": name})


async def list_by_field(client: KubeClient, kind: Kind, namespace: str, name: str) -> None:
    await client.find(kind, namespace, fields={"involvedObject.name": name})


OF_AN_OBJECT: tuple[Request, ...] = (read, apply, apply_status, patch, delete, read_log)
OF_A_LIST: tuple[Request, ...] = (list_by_label, list_by_field)
QUERIES = {"fieldManager", "force", "fieldValidation", "container", "timestamps", "follow"}
LIST_QUERIES = {"limit", "labelSelector", "fieldSelector"}


def manifest(kind: Kind, namespace: str | None, name: str) -> Manifest:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, "namespace": namespace}}


class Wire:
    """The real client on a real socket: which requests does the API server see?"""

    def __init__(self) -> None:
        self.seen: list[web.Request] = []
        self.answer: Manifest = {}
        self._runner = asyncio.Runner()
        self._runner.run(self._open())

    def send(self, request: Request, kind: Kind, namespace: str, name: str) -> web.Request | None:
        """Send a request; return what the API server sees, None for nothing."""
        self.seen.clear()
        self.answer = manifest(kind, namespace, name) | {"items": []}
        self._runner.run(request(self.client, kind, namespace, name))
        return self.seen[-1] if self.seen else None

    def close(self) -> None:
        self._runner.run(self._close())
        self._runner.close()

    async def _open(self) -> None:
        async def answer(request: web.Request) -> web.Response:
            self.seen.append(request)
            return web.json_response(self.answer)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        self._app = web.AppRunner(app)
        await self._app.setup()
        await web.TCPSite(self._app, "127.0.0.1", 0).start()
        configuration = Configuration()
        configuration.host = f"http://127.0.0.1:{self._app.addresses[0][1]}"
        self.client = KubeClient(configuration, timeout_seconds=5)

    async def _close(self) -> None:
        await self.client.close()
        await self._app.cleanup()


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


@pytest.mark.parametrize("request_", [*OF_AN_OBJECT, *OF_A_LIST], ids=lambda it: it.__name__)
@given(namespace=st.just("team") | TEXT, name=st.just("llama") | TEXT)
def test_no_text_as_a_name_makes_a_request_outside_of_the_namespace_and_the_kind(
    wire: Wire, request_: Request, namespace: str, name: str
) -> None:
    kind = POD if request_ is read_log else CLAIM
    wire.seen.clear()
    with suppress(NotFound):
        wire.send(request_, kind, namespace, name)
    for request in wire.seen:
        assert is_namespace(namespace)
        path, collection = request.raw_path.partition("?")[0], f"/api/v1/namespaces/{namespace}/{kind.plural}"
        if request_ in OF_A_LIST:
            assert (path, request.query.keys() <= LIST_QUERIES) == (collection, True)
            assert all(selector.count("=") == 1 and "," not in selector for key, selector in request.query.items() if "Selector" in key)
        else:
            assert is_name(name)
            assert path.removesuffix("/log").removesuffix("/status") == f"{collection}/{name}"
            assert request.query.keys() <= QUERIES


@pytest.mark.parametrize("request_", OF_AN_OBJECT, ids=lambda it: it.__name__)
@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_name_is_refused_before_anything_is_sent(wire: Wire, request_: Request, name: str) -> None:
    wire.seen.clear()
    for namespace, of in (("team", name), (name, "llama")):
        with pytest.raises(InvalidName) if request_ is not delete else suppress(NotFound):
            wire.send(request_, POD, namespace, of)
    assert wire.seen == []


@pytest.mark.parametrize("name", ["llama", "llama-cache", "0", "a.b-c.9", "x" * 253])
def test_every_name_of_kubernetes_is_asked_for_as_it_is(wire: Wire, name: str) -> None:
    request = wire.send(read, CLAIM, "team", name)
    assert request is not None
    assert request.raw_path == f"/api/v1/namespaces/team/persistentvolumeclaims/{name}"


@pytest.mark.parametrize("request_", [read, apply, apply_status, patch], ids=lambda it: it.__name__)
@pytest.mark.parametrize("answer", [manifest(CLAIM, "victim", "llama"), manifest(CLAIM, "team", "other"), {"metadata": []}, {}])
def test_another_object_than_the_one_that_was_asked_for_is_not_used(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, request_: Request, answer: Manifest
) -> None:
    async def answered(client: KubeClient, kind: Kind, namespace: str, name: str) -> None:
        wire.answer = answer
        await request_(client, kind, namespace, name)

    with pytest.raises(Unavailable, match="is another object"):
        wire.send(answered, CLAIM, "team", "llama")


def test_a_list_with_an_object_of_another_namespace_is_not_used(wire: Wire) -> None:
    async def listed(client: KubeClient, kind: Kind, namespace: str, name: str) -> None:
        wire.answer = {"items": [manifest(CLAIM, namespace, "a"), manifest(CLAIM, "victim", "b")]}
        await client.find(kind, namespace)

    with pytest.raises(Unavailable, match="is another object"):
        wire.send(listed, CLAIM, "team", "")


def test_an_object_of_the_cluster_has_no_namespace(wire: Wire) -> None:
    async def read_node(client: KubeClient, kind: Kind, namespace: str, name: str) -> None:
        wire.answer = {"metadata": {"name": name}}
        await client.get(kind, name)

    request = wire.send(read_node, NODE, "", "node-1.example")
    assert request is not None
    assert request.raw_path == "/api/v1/nodes/node-1.example"


# ---- what becomes of such a name in a spec, a preset, an annotation and an owner reference


def mounting(claim: object, volume: str = "cache") -> Manifest:
    return {"spec": {"volumes": [{"name": volume, "persistentVolumeClaim": {"claimName": claim}}]}}


@pytest.mark.parametrize("claim", [VICTIM, SLOW, "..", "", "Llama", 5, "x" * 254])
@pytest.mark.parametrize("volume", ["cache", "weights", "data"])
async def test_a_template_with_a_claim_that_cannot_exist_is_refused_and_says_what_to_write(
    bench: Bench, claim: object, volume: str
) -> None:
    bench.cluster.put(llama(podTemplate=mounting(claim, volume)))
    await bench.settle()
    accepted = bench.plan_verdict()
    assert (accepted.status, accepted.reason) == ("False", "InvalidSpec")
    assert "podTemplate.spec.volumes[0].persistentVolumeClaim.claimName: no PersistentVolumeClaim can have the name" in accepted.message
    assert "write the name of one in the same namespace" in accepted.message
    assert bench.cluster.all(DEPLOYMENT) == []


async def test_what_serves_stays_when_a_template_names_such_a_claim(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve()
    fleet.ready(fleet.start())
    await fleet.settle()
    before = bench.deployment()["spec"]
    await fleet.change(podTemplate=mounting(VICTIM))
    assert bench.plan_verdict().status == "False"
    assert bench.status().ready_replicas == 1
    assert bench.deployment()["spec"] == before
    await fleet.change(podTemplate=None)
    assert bench.plan_verdict().status == "True"


async def test_a_preset_with_such_a_claim_is_refused_and_named(bench: Bench) -> None:
    preset = {"metadata": {"name": "defaults", "namespace": "default"}, "spec": {"podTemplate": mounting(VICTIM)}}
    bench.cluster.put({"apiVersion": API_VERSION, "kind": "VLLMPreset", **preset})
    bench.cluster.put(llama(presetRef={"name": "defaults"}))
    await bench.settle()
    assert bench.plan_verdict().reason == "PresetInvalid"
    assert "VLLMPreset defaults cannot be used for this object: podTemplate.spec.volumes[0]" in bench.plan_verdict().message


async def test_a_deployment_that_mounts_such_a_claim_harms_nothing(bench: Bench, fleet: Fleet) -> None:
    """A user has edited the Deployment, while the spec cannot be planned and so nothing puts it right."""
    await fleet.serve()
    await fleet.change(podTemplate=mounting(VICTIM))
    volumes = [
        {**volume, "persistentVolumeClaim": {"claimName": SLOW}} for volume in bench.deployment()["spec"]["template"]["spec"]["volumes"]
    ]
    bench.cluster.edit(DEPLOYMENT, "default", "llama", {"spec": {"template": {"spec": {"volumes": volumes}}}})
    await bench.settle()
    assert bench.plan_verdict().status == "False"


@pytest.mark.parametrize("holder", [SLOW.replace("/", ""), "..", "?watch=true", "Llama", "a,b"])
async def test_a_lease_of_what_cannot_be_an_object_is_taken_over(bench: Bench, fleet: Fleet, holder: str) -> None:
    await fleet.serve(cache={"priming": "Always"})
    annotation = PRIMING_ANNOTATION_PREFIX + fleet.key()
    fleet.annotate({annotation: f"{holder}/some-uid/{fleet.time()}"})
    assert read_lease(fleet.claim(), fleet.key()) is None
    await fleet.settle()
    assert fleet.annotations()[annotation].startswith("llama/")
    assert fleet.replicas() == 1


@pytest.mark.parametrize("job", ["llama-clean-/../../../../victim/jobs/x", "llama-clean-?watch=true"])
async def test_a_pod_whose_job_cannot_exist_deletes_nothing(bench: Bench, fleet: Fleet, job: str) -> None:
    await fleet.serve()
    labels = {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": "llama", "app.kubernetes.io/component": "cleaning"}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": "u", "controller": True}
    volumes = [
        {"name": "claim", "persistentVolumeClaim": {"claimName": "llama-cache"}},
        {"name": "x", "persistentVolumeClaim": {"claimName": SLOW}},
    ]
    bench.cluster.put(
        manifest(POD, "default", "theirs")
        | {"metadata": {"name": "theirs", "namespace": "default", "labels": labels, "ownerReferences": [owner]}}
        | {"spec": {"nodeName": "node-1", "volumes": volumes}, "status": {"phase": "Succeeded"}}
    )
    bench.cluster.edit(CLAIM, "default", "llama-cache", {"metadata": {"deletionTimestamp": fleet.time()}})
    await fleet.settle()
    assert "theirs" in fleet.pods()
    assert bench.cache_verdict().reason == "ClaimTerminating"


async def test_a_name_on_the_command_line_or_in_the_settings_that_cannot_be_one_is_not_found(bench: Bench) -> None:
    with pytest.raises(NotFound, match=r"'\.\./x' cannot be the name of a VLLMDeployment"):
        await bench.cluster.get(VLLM_DEPLOYMENT, "../x", "default")
