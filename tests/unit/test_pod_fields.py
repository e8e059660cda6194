"""Fields of `podTemplate` that the API server does not know: found by its own schema, and told with the name that may be meant."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.operators import KEY, Bench, llama
from vllm_operator.controller.schema import AGE_SECONDS, REFUSAL_AGE_SECONDS, PodSchemas
from vllm_operator.kube.client import DEPLOYMENT, Forbidden, Unavailable
from vllm_operator.planning.pod_template import (
    MOST,
    SCHEMA_PATH,
    find_kept_labels,
    find_unknown_fields,
    read_pod_schema,
    refuse_unknown_fields,
)


def ref(name: str) -> dict[str, Any]:
    return {"allOf": [{"$ref": f"#/components/schemas/io.k8s.api.core.v1.{name}"}], "default": {}}


def fields(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


TEXT = {"type": "string"}
TYPES: dict[str, Any] = {
    "PodTemplateSpec": fields(metadata=ref("ObjectMeta"), spec=ref("PodSpec")),
    "ObjectMeta": fields(labels={"type": "object", "additionalProperties": TEXT}, annotations={"type": "object"}),
    "PodSpec": fields(
        containers={"type": "array", "items": ref("Container")},
        nodeSelector={"type": "object", "additionalProperties": TEXT},
        affinity={"$ref": "#/components/schemas/io.k8s.api.core.v1.Affinity"},
        hostname=TEXT,
    ),
    "Container": fields(
        name=TEXT,
        resources=ref("Resources"),
        env={"type": "array", "items": ref("EnvVar")},
        livenessProbe=ref("Probe"),
        nothing=ref("Missing"),
    ),
    "Resources": fields(limits={"type": "object", "additionalProperties": ref("Quantity")}),
    "Quantity": {"oneOf": [TEXT, {"type": "number"}]},
    "EnvVar": fields(name=TEXT, value=TEXT),
    "Probe": fields(httpGet=ref("Probe"), initialDelaySeconds=TEXT),
    "Affinity": fields(podAffinity={"type": "object"}),
}
"""As an API server writes them: a type is referred to by itself, in a list, or inside of `allOf`; one refers to itself."""
DOCUMENT = {"components": {"schemas": {f"io.k8s.api.core.v1.{name}": schema for name, schema in TYPES.items()}}}
SCHEMA = read_pod_schema(DOCUMENT)


@pytest.mark.parametrize(
    ("template", "want"),
    [
        (None, []),
        ({"metadata": {"labels": {"any": "label"}}, "spec": {"nodeSelector": {"any": "label"}, "hostname": "x"}}, []),
        ({"spec": {"containers": [{"name": "vllm", "resources": {"limits": {"any/resource": 1}}}]}}, []),
        ({"spec": {"nodeSelecter": {"deep": {"er": 1}}}}, [("podTemplate.spec.nodeSelecter", "nodeSelector")]),
        ({"spec": {"nodeselector": None}}, [("podTemplate.spec.nodeselector", "nodeSelector")]),
        ({"spec": {"zzz": 1}}, [("podTemplate.spec.zzz", "")]),
        (
            {"spec": {"containers": [{"name": "a"}, {"name": "b", "env": [{"valeu": "x"}], "livenessProbe": {"httpget": {}}}]}},
            [
                ("podTemplate.spec.containers[1].env[0].valeu", "value"),
                ("podTemplate.spec.containers[1].livenessProbe.httpget", "httpGet"),
            ],
        ),
        ({"spec": {"affinity": {"nodeAffinty": {}}}}, [("podTemplate.spec.affinity.nodeAffinty", "podAffinity")]),
        ({"spec": {"containers": {"name": "x"}, "affinity": ["x", 1, None]}}, [("podTemplate.spec.containers.name", "")][:0]),
    ],
)
def test_unknown_fields_are_found_where_they_are(template: Any, want: list[tuple[str, str]]) -> None:
    assert list(find_unknown_fields(template, SCHEMA)) == [f"{path} (did you mean {near}?)" if near else path for path, near in want]


def test_a_template_full_of_slips_is_bounded_and_so_is_what_is_said() -> None:
    template = {"spec": {f"{'x' * 5000}{number}": number for number in range(10_000)}}
    found = find_unknown_fields(template, SCHEMA)
    assert len(found) == MOST
    verdict = refuse_unknown_fields(found)
    assert verdict is not None
    assert verdict.message.endswith(f"and {MOST - 4} more. Correct or remove them.")
    assert len(verdict.message) < 1024


def test_without_a_schema_nothing_is_found() -> None:
    assert find_unknown_fields({"spec": {"zzz": 1}}, None) == ()
    assert refuse_unknown_fields(()) is None


@pytest.mark.parametrize("document", [{}, {"components": None}, {"components": {"schemas": []}}, {"paths": {}}])
def test_a_document_that_does_not_describe_pods_is_none(document: dict[str, Any]) -> None:
    assert read_pod_schema(document) is None


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*TYPES["PodSpec"]["properties"], "x", "$ref"]), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["spec", "metadata", "x"]), ANY))
def test_any_template_is_read(template: dict[str, Any]) -> None:
    for field in find_unknown_fields(template, SCHEMA):
        assert field.startswith("podTemplate.")


@given(ANY, st.sampled_from(["properties", "allOf", "$ref", "items"]))
def test_any_document_is_read(value: Any, part: str) -> None:
    types = {"io.k8s.api.core.v1.PodTemplateSpec": {"properties": {"spec": {part: value}}}}
    schema = read_pod_schema({"components": {"schemas": types}})
    find_unknown_fields({"spec": {"x": 1}}, schema)


def test_a_template_as_deep_as_can_be_is_read() -> None:
    template: dict[str, Any] = {}
    for _ in range(900):
        template = {"httpGet": template}
    assert find_unknown_fields({"spec": {"containers": [{"name": "a", "livenessProbe": template}]}}, SCHEMA) == ()


def test_labels_that_are_kept_are_those_that_the_user_sets_otherwise() -> None:
    rendered = {f"app.kubernetes.io/{key}": value for key, value in (("name", "vllm"), ("instance", "llama"), ("component", "engine"))}
    given = {"app.kubernetes.io/instance": "other", "app.kubernetes.io/name": "vllm", "app.kubernetes.io/managed-by": "Helm"}
    assert find_kept_labels({"metadata": {"labels": given}}, rendered) == {"app.kubernetes.io/instance": "llama"}
    assert find_kept_labels({"metadata": None}, rendered) == {}


# what the API server is asked


class World:
    def __init__(self, bench: Bench) -> None:
        self.cluster = bench.cluster
        self.now = 0.0
        self.schemas = PodSchemas(bench.cluster, clock=lambda: self.now)

    async def is_refused(self) -> bool:
        return await self.schemas.refusal({"spec": {"zzz": 1}}) is not None

    @property
    def asked(self) -> int:
        return self.cluster.calls["get_path"]


@pytest.fixture
def world(bench: Bench) -> World:
    return World(bench)


async def test_it_is_asked_once_an_hour_and_only_for_templates(world: World) -> None:
    world.cluster.documents[SCHEMA_PATH] = DOCUMENT
    assert await world.schemas.refusal(None) is None
    assert world.asked == 0
    for _ in range(3):
        assert await world.schemas.refusal({"spec": {"hostname": "x"}}) is None
    assert world.asked == 1
    world.now += AGE_SECONDS
    assert await world.schemas.refusal({"spec": {"hostname": "x"}}) is None
    assert world.asked == 2


async def test_a_field_that_an_upgrade_of_the_api_server_has_brought_is_accepted_a_minute_later(world: World) -> None:
    world.cluster.documents[SCHEMA_PATH] = DOCUMENT
    assert await world.is_refused()
    newer = {**TYPES, "PodSpec": fields(**TYPES["PodSpec"]["properties"], zzz=TEXT)}
    world.cluster.documents[SCHEMA_PATH] = {
        "components": {"schemas": {f"io.k8s.api.core.v1.{name}": schema for name, schema in newer.items()}}
    }
    assert await world.is_refused()
    world.now += REFUSAL_AGE_SECONDS
    assert not await world.is_refused()


@pytest.mark.parametrize("error", [Forbidden("no", verb="get", resource="/openapi"), Unavailable("away")])
async def test_where_it_does_not_tell_nothing_is_refused_and_it_is_asked_again(world: World, error: Exception) -> None:
    world.cluster.documents[SCHEMA_PATH] = DOCUMENT
    world.cluster.fail("get_path", None, error)  # type: ignore[arg-type]  # both are errors of a cluster
    assert not await world.is_refused()
    assert not await world.is_refused()
    assert world.asked == 1
    world.now += REFUSAL_AGE_SECONDS
    assert await world.is_refused()
    # what was read stays known through an outage
    world.cluster.fail("get_path", None, error)  # type: ignore[arg-type]  # both are errors of a cluster
    world.now += AGE_SECONDS
    assert await world.is_refused()


async def test_all_who_ask_at_once_wait_for_one_answer(world: World) -> None:
    """Whoever did not wait would apply a Deployment without the field that nobody knows."""
    world.cluster.documents[SCHEMA_PATH] = DOCUMENT
    assert await asyncio.gather(*(world.is_refused() for _ in range(3))) == [True, True, True]
    assert world.asked == 1


async def test_a_slip_is_reported_and_nothing_is_applied(bench: Bench) -> None:
    bench.cluster.documents[SCHEMA_PATH] = DOCUMENT
    bench.cluster.put(llama(podTemplate={"spec": {"nodeSelecter": {}}}))
    await bench.settle()
    accepted = bench.plan_verdict()
    assert (accepted.status, accepted.reason) == ("False", "InvalidSpec")
    assert "podTemplate.spec.nodeSelecter (did you mean nodeSelector?)" in accepted.message
    assert not bench.cluster.all(DEPLOYMENT)
    bench.restart()
    bench.cluster.writes.clear()
    await bench.reconciler.reconcile(KEY)
    assert bench.cluster.writes == []
