"""What `metadata.managedFields` says about a child: is it up to date, what have others added, what was not kept?"""

import copy
import time
from typing import Any

import pytest

from vllm_operator.api.conditions import Change
from vllm_operator.kube.managed_fields import find_additions, find_difference, find_drift, find_unkept, needs_apply, with_digest

Manifest = dict[str, Any]

DESIRED: Manifest = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "llama", "namespace": "default", "labels": {"app": "llama"}},
    "spec": {
        "replicas": 1,
        "template": {"spec": {"containers": [{"name": "vllm", "args": ["x"], "env": [{"name": "A", "value": "1"}]}]}},
    },
}
VARIABLE: Manifest = {".": {}, "f:name": {}, "f:value": {}}


def in_container(fields: Manifest) -> Manifest:
    return {"f:template": {"f:spec": {"f:containers": {'k:{"name":"vllm"}': fields}}}}


def applied(**container: Any) -> Manifest:
    """The entry of the operator after it has applied `DESIRED`."""
    fields = {".": {}, "f:name": {}, "f:args": {}, "f:env": {'k:{"name":"A"}': VARIABLE}, **container}
    metadata: Manifest = {"f:labels": {"f:app": {}}, "f:annotations": {"f:vllm-operator.dev/applied-digest": {}}}
    spec = {"f:replicas": {}, **in_container({name: value for name, value in fields.items() if value is not None})}
    return {"manager": "vllm-operator", "operation": "Apply", "fieldsV1": {"f:metadata": metadata, "f:spec": spec}}


def child(*entries: Manifest, container: Manifest | None = None, pod: Manifest | None = None, **spec: Any) -> Manifest:
    """The Deployment as the API server has it, with these entries and changes."""
    live = copy.deepcopy(with_digest(DESIRED))
    live["spec"]["template"]["spec"]["containers"][0] |= container or {}
    live["spec"]["template"]["spec"] |= pod or {}
    live["spec"] |= spec
    live["metadata"]["managedFields"] = [*(entries or (applied(),))]
    return live


def theirs(fields: Manifest, *, manager: str = "kubectl-set", subresource: str = "") -> Manifest:
    return {"manager": manager, "operation": "Update", "subresource": subresource, "fieldsV1": {"f:spec": fields}}


def changed(**spec: Any) -> Manifest:
    return {**DESIRED, "spec": {**DESIRED["spec"], **spec}}


WITHOUT_VARIABLE = {"spec": {"containers": [{"name": "vllm", "args": ["x"], "env": []}]}}


@pytest.mark.parametrize(
    ("desired", "live", "want"),
    [
        pytest.param(DESIRED, child(), False, id="as it was applied"),
        pytest.param(DESIRED, child(container={"imagePullPolicy": "Always"}, paused=True), False, id="defaults, and fields of others"),
        pytest.param(DESIRED, child(container={"args": ["changed by a webhook"]}), False, id="a value that a webhook changed"),
        pytest.param(
            DESIRED, child(applied(**{"f:args": None}), theirs(in_container({"f:args": {}}))), True, id="another manager took a list"
        ),
        pytest.param(DESIRED, child(applied(**{"f:env": None})), True, id="a field was removed"),
        pytest.param(DESIRED, child(applied(**{"f:env": {'k:{"name":"A"}': {".": {}, "f:name": {}}}})), True, id="a value was taken"),
        pytest.param(DESIRED, child(theirs({"f:replicas": {}})), True, id="never applied"),
        pytest.param(DESIRED, child({**applied(), "fieldsV1": {}}), True, id="an empty entry"),
        pytest.param(changed(replicas=2), child(), True, id="another value is desired"),
        pytest.param(changed(paused=True), child(), True, id="another field is desired"),
        pytest.param(changed(template=WITHOUT_VARIABLE), child(), True, id="a field is no longer desired"),
    ],
)
def test_a_child_is_applied_if_it_or_the_desired_manifest_has_changed(desired: Manifest, live: Manifest, want: bool) -> None:
    assert needs_apply(with_digest(desired), live) is want


SCALED = {**theirs({"f:replicas": {}}, manager="kubectl", subresource="scale"), "time": "2026-11-21T14:02:11Z"}
WITHOUT_REPLICAS = {
    **applied(),
    "fieldsV1": {
        **applied()["fieldsV1"],
        "f:spec": in_container(applied()["fieldsV1"]["f:spec"]["f:template"]["f:spec"]["f:containers"]['k:{"name":"vllm"}']),
    },
}


@pytest.mark.parametrize(
    ("desired", "live", "want"),
    [
        pytest.param(DESIRED, child(), None, id="nothing"),
        pytest.param(changed(replicas=2), child(), None, id="the desired manifest has changed"),
        pytest.param(DESIRED, child(WITHOUT_REPLICAS, SCALED), Change("spec.replicas", "kubectl", "2026-11-21T14:02:11Z"), id="scaled"),
        pytest.param(
            DESIRED,
            child(applied(**{"f:args": None}), theirs(in_container({"f:args": {}}), manager="kubectl-edit")),
            Change("spec.template.spec.containers.vllm.args", "kubectl-edit"),
            id="without a time",
        ),
        pytest.param(
            DESIRED,
            child(
                applied(**{"f:env": {'k:{"name":"A"}': {".": {}, "f:name": {}}}}),
                theirs(in_container({"f:env": {'k:{"name":"A"}': {"f:value": {}}}})),
            ),
            Change("spec.template.spec.containers.vllm.env.A.value", "kubectl-set"),
            id="the value of a variable",
        ),
        pytest.param(DESIRED, child(applied(**{"f:env": None})), Change("spec.template.spec.containers.vllm.env"), id="removed by a patch"),
    ],
)
def test_a_change_by_somebody_else_is_named_with_its_author(desired: Manifest, live: Manifest, want: Change | None) -> None:
    assert find_drift(with_digest(desired), live) == want


def test_the_digest_depends_on_content_and_not_on_order() -> None:
    reordered = {**DESIRED, "spec": dict(reversed(DESIRED["spec"].items()))}
    assert with_digest(reordered)["metadata"] == with_digest(DESIRED)["metadata"]
    assert with_digest(changed(replicas=2))["metadata"] != with_digest(DESIRED)["metadata"]


@pytest.mark.parametrize(
    ("fields", "desired", "want"),
    [
        ({"f:a": {}}, {"a": {"owned": "as a whole"}}, None),
        ({"f:a": {"f:b": {}}}, {"a": {"b": 1, "c": 2}}, ("a", "c")),
        ({"f:a": {"f:b": {}, "f:c": {}}}, {"a": {"b": 1}}, ("a", "f:c")),
        ({"f:a": {".": {}}}, {"a": {}}, None),
        ({"f:a": {}}, {"a": 1, "b": None}, None),
        ({"f:finalizers": {'v:"x"': {}}}, {"finalizers": ["x"]}, None),
        ({"f:finalizers": {'v:"x"': {}}}, {"finalizers": ["x", "y"]}, ("finalizers", "1")),
        (
            {"f:ports": {'k:{"containerPort":8000,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}}},
            {"ports": [{"containerPort": 8000}]},
            None,
        ),
        (
            {"f:ports": {'k:{"containerPort":8000,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}}},
            {"ports": [{"containerPort": 8001}]},
            ("ports", 'k:{"containerPort":8000,"protocol":"TCP"}'),
        ),
        (
            {"f:ports": {'k:{"port":53,"protocol":"UDP"}': {}, 'k:{"port":53,"protocol":"TCP"}': {}}},
            {"ports": [{"port": 53}, {"port": 53, "protocol": "UDP"}]},
            None,
        ),
    ],
)
def test_owned_fields_and_desired_fields_are_compared(fields: Manifest, desired: Any, want: tuple[str, ...] | None) -> None:
    assert find_difference(fields, desired) == want


@pytest.mark.parametrize(
    ("fields", "desired", "live", "want"),
    [
        ({"f:a": {}}, {"a": 1}, {}, ("a",)),
        ({"f:a": {}}, {"a": 1}, {"a": 2}, ("a",)),
        ({"f:a": {}}, {"a": ["x"]}, {"a": ["x", "y"]}, ("a",)),
        ({"f:a": {}}, {"a": ""}, {}, None),
        ({"f:a": {}}, {"a": False}, {}, None),
        ({"f:hostUsers": {}}, {"hostUsers": False}, {}, ("hostUsers",)),
        ({"f:hostUsers": {}}, {"hostUsers": False}, {"hostUsers": False}, None),
        ({"f:a": {}}, {"a": {"b": 1}}, {"a": {"b": 1, "default": 2}}, None),
        ({"f:a": {}}, {"a": [{"b": 1}]}, {"a": [{"b": 1, "default": 2}]}, None),
        ({"f:memory": {}}, {"memory": "1024Mi"}, {"memory": "1Gi"}, None),
        ({"f:memory": {}}, {"memory": "1Gi"}, {"memory": "1G"}, ("memory",)),
        ({"f:env": {'k:{"name":"A"}': VARIABLE}}, {"env": [{"name": "A", "value": "1"}]}, {"env": []}, ("env", "A")),
        ({"f:env": {'k:{"name":"A"}': VARIABLE}}, {"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "A"}]}, ("env", "A", "value")),
    ],
)
def test_an_applied_field_that_was_not_kept_is_found(fields: Manifest, desired: Any, live: Any, want: tuple[str, ...] | None) -> None:
    assert find_unkept(fields, desired, live) == want


def test_thousands_of_variables_are_compared_in_a_moment() -> None:
    env = [{"name": f"A{number}", "value": "x"} for number in range(4000)]
    desired = {"spec": {"containers": [{"name": "vllm", "env": env}]}}
    variables: Manifest = {f'k:{{"name":"A{number}"}}': VARIABLE for number in range(4001)}
    fields = {"f:spec": {"f:containers": {'k:{"name":"vllm"}': {"f:name": {}, "f:env": variables}}}}
    live = {
        "spec": {"containers": [{"name": "vllm", "env": [*env, {"name": "A4000", "value": "added"}]}]},
        "metadata": {"managedFields": [{"manager": "other", "operation": "Update", "fieldsV1": fields}]},
    }
    began = time.perf_counter()
    assert find_difference(fields, desired)
    assert find_additions(live, desired) == ("/spec/containers/0/env/4000",)
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize(
    ("fields", "live", "want"),
    [
        pytest.param(
            in_container({"f:env": {'k:{"name":"B"}': VARIABLE}}),
            {"container": {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}},
            ("/spec/template/spec/containers/0/env/1",),
            id="a variable",
        ),
        pytest.param(
            in_container({"f:env": {'k:{"name":"B"}': VARIABLE, 'k:{"name":"C"}': VARIABLE}}),
            {"container": {"env": [{"name": "B"}, {"name": "A", "value": "1"}, {"name": "C"}]}},
            ("/spec/template/spec/containers/0/env/2", "/spec/template/spec/containers/0/env/0"),
            id="two variables, the last one first",
        ),
        pytest.param(
            in_container({"f:command": {}}),
            {"container": {"command": ["sh"]}},
            ("/spec/template/spec/containers/0/command",),
            id="a command",
        ),
        pytest.param(
            {"f:template": {"f:spec": {"f:containers": {'k:{"name":"side"}': {".": {}, "f:name": {}}}}}},
            {"pod": {"containers": [{"name": "vllm", "args": ["x"], "env": []}, {"name": "side"}]}},
            ("/spec/template/spec/containers/1",),
            id="a container",
        ),
        pytest.param(
            {"f:template": {"f:metadata": {"f:annotations": {"f:kubectl.kubernetes.io/restartedAt": {}}}}},
            {},
            (),
            id="a rollout restart stays",
        ),
        pytest.param(in_container({"f:env": {'k:{"name":"A"}': {"f:value": {}}}}), {}, (), id="a value with two owners"),
        pytest.param(in_container({"f:env": {'k:{"name":"GONE"}': {".": {}}}}), {}, (), id="a field that does not exist any more"),
        pytest.param({"f:paused": {}}, {"paused": True}, ("/spec/paused",), id="outside of the template"),
    ],
)
def test_additions_of_others_are_found(fields: Manifest, live: Manifest, want: tuple[str, ...]) -> None:
    assert find_additions(child(applied(), theirs(fields), **live), DESIRED) == want


@pytest.mark.parametrize(
    "entry", [{"subresource": "scale"}, {"manager": "vllm-operator"}], ids=["through a subresource", "by the operator"]
)
def test_some_changes_are_no_additions_of_others(entry: Manifest) -> None:
    live = child(applied(), theirs(in_container({"f:command": {}}), **entry), container={"command": ["sh"]})
    assert find_additions(live, DESIRED) == ()
