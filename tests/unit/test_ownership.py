"""What counts as a difference between a wish and the object as the API server has it."""

import copy
import time
from typing import Any

import pytest

from vllm_operator.cluster.ownership import differs, fields_of_others, lost_field, owned_fields, owns_more

Manifest = dict[str, Any]


def container(**changes: Any) -> Manifest:
    base: Manifest = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.20.1",
        "args": ["--model", "m"],
        "env": [{"name": "A", "value": "1"}, {"name": "EMPTY", "value": ""}],
        "ports": [{"name": "http", "containerPort": 8000}],
        "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "1024Mi"}},
        "startupProbe": {"httpGet": {"path": "/health", "port": 8000}, "failureThreshold": 60},
    }
    return base | changes


def as_served(desired: Manifest) -> Manifest:
    """As the API server gives it back: defaults filled in, quantities in its own way, empty values left out."""
    live = copy.deepcopy(desired)
    live["env"] = [{key: value for key, value in item.items() if value != ""} for item in live["env"]]
    live["ports"][0]["protocol"] = "TCP"
    live["resources"]["limits"]["memory"] = "1Gi"
    live["startupProbe"] |= {"periodSeconds": 10, "successThreshold": 1}
    live |= {"imagePullPolicy": "IfNotPresent", "terminationMessagePath": "/dev/termination-log"}
    return live


def test_what_the_api_server_fills_in_is_no_difference() -> None:
    desired = container()
    assert differs(desired, as_served(desired)) is None


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"image": "other"}, ("image",)),
        ({"args": ["--model", "m", "--evil"]}, ("args",)),
        ({"args": ["--evil", "m"]}, ("args", "0")),
        ({"env": [{"name": "A", "value": "2"}, {"name": "EMPTY"}]}, ("env", "A", "value")),
        ({"env": [{"name": "EMPTY"}]}, ("env", "A")),
        ({"env": [{"name": "A", "value": "1"}, {"name": "EMPTY", "value": "full"}]}, ("env", "EMPTY", "value")),
        ({"ports": [{"name": "http", "containerPort": 9000}]}, ("ports", "http", "containerPort")),
        ({"resources": {"limits": {"nvidia.com/gpu": "2", "memory": "1Gi"}}}, ("resources", "limits", "nvidia.com/gpu")),
        ({"resources": {"limits": {"nvidia.com/gpu": "1", "memory": "2Gi"}}}, ("resources", "limits", "memory")),
        ({"resources": {}}, ("resources", "limits")),
        ({"startupProbe": {"httpGet": {"path": "/live", "port": 8000}, "failureThreshold": 60}}, ("startupProbe", "httpGet", "path")),
        ({"startupProbe": None}, ("startupProbe",)),
    ],
)
def test_what_is_changed_in_ours_is_a_difference(change: Manifest, want: tuple[str, ...]) -> None:
    assert differs(container(), as_served(container()) | change) == want


def test_thousands_of_variables_are_compared_in_a_moment() -> None:
    env = [{"name": f"A{number}", "value": "x"} for number in range(4000)]
    desired = {"spec": {"containers": [{"name": "vllm", "env": env}]}}
    variables: Manifest = {f'k:{{"name":"A{number}"}}': {".": {}, "f:name": {}, "f:value": {}} for number in range(4001)}
    fields = {"f:spec": {"f:containers": {'k:{"name":"vllm"}': {"f:name": {}, "f:env": variables}}}}
    more = [*env, {"name": "A4000", "value": "theirs"}]
    live = {
        "spec": {"containers": [{"name": "vllm", "env": more}]},
        "metadata": {"managedFields": [{"manager": "other", "operation": "Update", "fieldsV1": fields}]},
    }
    began = time.perf_counter()
    assert owns_more(fields, desired)
    assert fields_of_others(live, desired, "us") == ("/spec/containers/0/env/4000",)
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize(
    ("desired", "live", "want"),
    [
        ({"limits": {"cpu": "1"}}, {"limits": {"cpu": 1}}, None),
        ({"limits": {"cpu": "0.5"}}, {"limits": {"cpu": "500m"}}, None),
        ({"limits": {"cpu": 2}}, {"limits": {"cpu": "2"}}, None),
        ({"limits": {"cpu": 0.5}}, {"limits": {"cpu": "500m"}}, None),
        ({"limits": {"cpu": "100000u"}}, {"limits": {"cpu": "100m"}}, None),
        ({"limits": {"nvidia.com/gpu": "1e3"}}, {"limits": {"nvidia.com/gpu": "1k"}}, None),
        ({"sizeLimit": "1Ei"}, {"sizeLimit": "1024Pi"}, None),
        ({"limits": {"cpu": "-1"}}, {"limits": {"cpu": "-1000m"}}, ("limits", "cpu")),
        ({"limits": {"memory": "1Gi"}}, {"limits": {"memory": "1G"}}, ("limits", "memory")),
        ({"value": "1Gi"}, {"value": "1024Mi"}, ("value",)),
        ({"flag": True}, {"flag": 1}, ("flag",)),
        ({"flag": False}, {}, None),
        ({"replicas": 0}, {"replicas": 3}, ("replicas",)),
        ({"list": []}, {}, None),
        ({"list": [1]}, {"list": "1"}, ("list",)),
        ({"map": {"a": 1}}, {"map": [1]}, ("map",)),
        ({"selector": {"app": "a"}}, {"selector": {"app": "a", "more": "b"}}, ("selector",)),
        ({"nodeSelector": {"app": "a"}}, {"nodeSelector": {"app": "a", "more": "b"}}, ("nodeSelector",)),
        ({"labels": {"app": "a"}}, {"labels": {"app": "a", "more": "b"}}, None),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, ("tolerations", "a")),
    ],
)
def test_values(desired: Any, live: Any, want: tuple[str, ...] | None) -> None:
    assert differs(desired, live) == want


OURS: dict[str, Any] = {
    "f:spec": {
        "f:replicas": {},
        "f:template": {
            "f:spec": {
                "f:containers": {
                    'k:{"name":"vllm"}': {
                        ".": {},
                        "f:name": {},
                        "f:args": {},
                        "f:env": {'k:{"name":"A"}': {".": {}, "f:name": {}, "f:value": {}}},
                    }
                }
            }
        },
    }
}
WISH: dict[str, Any] = {
    "spec": {"replicas": 1, "template": {"spec": {"containers": [{"name": "vllm", "args": ["x"], "env": [{"name": "A", "value": "1"}]}]}}}
}


def live_with(
    theirs: Manifest, change: Manifest, *, manager: str = "kubectl-set", subresource: str = "", operation: str = "Update"
) -> Manifest:
    entries = [
        {"manager": "vllm-operator", "operation": "Apply", "fieldsV1": OURS},
        {"manager": manager, "operation": operation, "subresource": subresource, "fieldsV1": {"f:spec": theirs}},
    ]
    spec = copy.deepcopy(WISH["spec"])
    spec["template"]["spec"]["containers"][0] |= change.pop("container", {})
    spec["template"]["spec"] |= change.pop("pod", {})
    return {"metadata": {"managedFields": entries}, "spec": spec | change}


def in_container(fields: Manifest) -> Manifest:
    return {"f:template": {"f:spec": {"f:containers": {'k:{"name":"vllm"}': fields}}}}


@pytest.mark.parametrize(
    ("theirs", "change", "want"),
    [
        pytest.param(
            in_container({"f:env": {'k:{"name":"B"}': {".": {}, "f:name": {}, "f:value": {}}}}),
            {"container": {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}},
            ("/spec/template/spec/containers/0/env/1",),
            id="an added variable",
        ),
        pytest.param(
            in_container({"f:env": {'k:{"name":"B"}': {".": {}, "f:name": {}}, 'k:{"name":"C"}': {".": {}, "f:name": {}}}}),
            {"container": {"env": [{"name": "B"}, {"name": "A", "value": "1"}, {"name": "C"}]}},
            ("/spec/template/spec/containers/0/env/2", "/spec/template/spec/containers/0/env/0"),
            id="two added variables, the last one first",
        ),
        pytest.param(
            in_container({"f:command": {}}),
            {"container": {"command": ["sh"]}},
            ("/spec/template/spec/containers/0/command",),
            id="an added command",
        ),
        pytest.param(
            {"f:template": {"f:spec": {"f:containers": {'k:{"name":"side"}': {".": {}, "f:name": {}}}}}},
            {"pod": {"containers": [{"name": "vllm", "args": ["x"], "env": []}, {"name": "side"}]}},
            ("/spec/template/spec/containers/1",),
            id="an added container",
        ),
        pytest.param(
            {"f:template": {"f:metadata": {"f:annotations": {"f:kubectl.kubernetes.io/restartedAt": {}}}}},
            {},
            (),
            id="a rollout restart stays",
        ),
        pytest.param(in_container({"f:env": {'k:{"name":"A"}': {"f:value": {}}}}), {}, (), id="a shared value is ours too"),
        pytest.param(in_container({"f:env": {'k:{"name":"GONE"}': {".": {}}}}), {}, (), id="a field that is not there any more"),
        pytest.param({"f:paused": {}}, {"paused": True}, ("/spec/paused",), id="outside of the template it is found too"),
    ],
)
def test_what_others_have_added(theirs: Manifest, change: Manifest, want: tuple[str, ...]) -> None:
    assert fields_of_others(live_with(theirs, change), WISH, "vllm-operator") == want


def test_what_came_through_a_subresource_or_from_ourselves_is_not_foreign() -> None:
    theirs = in_container({"f:command": {}})
    assert fields_of_others(live_with(theirs, {"container": {"command": ["sh"]}}, subresource="scale"), WISH, "vllm-operator") == ()
    assert fields_of_others(live_with(theirs, {"container": {"command": ["sh"]}}, manager="vllm-operator"), WISH, "vllm-operator") == ()


def test_a_list_that_somebody_replaced_as_a_whole_is_lost() -> None:
    theirs = in_container({"f:args": {}})
    ours = copy.deepcopy(OURS)
    del ours["f:spec"]["f:template"]["f:spec"]["f:containers"]['k:{"name":"vllm"}']["f:args"]
    live = live_with(theirs, {"container": {"args": ["x", "more"]}})
    assert not lost_field(live, WISH, "vllm-operator")
    live["metadata"]["managedFields"][0]["fieldsV1"] = ours
    assert lost_field(live, WISH, "vllm-operator")


@pytest.mark.parametrize(
    ("desired", "want"),
    [
        (WISH, False),
        ({"spec": {"replicas": 1}}, True),
        ({"spec": {**WISH["spec"], "more": 1}}, False),
        ({"spec": {"replicas": 1, "template": {"spec": {"containers": [{"name": "vllm", "args": ["x"], "env": []}]}}}}, True),
    ],
)
def test_a_field_of_ours_that_is_not_wished_any_more(desired: Manifest, want: bool) -> None:
    fields = owned_fields(live_with({}, {}), "vllm-operator")
    assert fields is not None
    assert owns_more(fields, desired) is want


def test_a_port_is_found_although_the_wish_leaves_out_its_protocol() -> None:
    fields: dict[str, Any] = {"f:ports": {'k:{"containerPort":8000,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}}}
    assert not owns_more(fields, {"ports": [{"containerPort": 8000}]})
    assert owns_more(fields, {"ports": [{"containerPort": 8001}]})
