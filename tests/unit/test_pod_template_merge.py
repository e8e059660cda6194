"""What the user writes in podTemplate is merged over the rendered Pod, and wins."""

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.plans import deployment, refusal
from vllm_operator.planning.pod_template import SpecError, check_containers, check_pod_template, find_kept_labels, run_as_user
from vllm_operator.rendering.pod import merge_pod_template

RENDERED: dict[str, Any] = {
    "metadata": {"labels": {"app": "vllm"}},
    "spec": {
        "containers": [
            {
                "name": "vllm",
                "image": "vllm:1",
                "args": ["--a"],
                "env": [{"name": "HOME", "value": "/cache"}, {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                "volumeMounts": [{"name": "cache", "mountPath": "/cache", "subPath": "key"}],
                "startupProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5},
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }
        ],
        "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "c"}}],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "securityContext": {"fsGroup": 2000},
    },
}


def merged_spec(spec: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = merge_pod_template(RENDERED, {"spec": spec})["spec"]
    return result


def merged_engine(container: dict[str, Any]) -> dict[str, Any]:
    engine: dict[str, Any] = merged_spec({"containers": [{"name": "vllm", **container}]})["containers"][0]
    return engine


@pytest.mark.parametrize("template", [None, {}, {"spec": {}}, {"metadata": {}, "spec": {"containers": []}}])
def test_nothing_given_changes_nothing(template: dict[str, Any] | None) -> None:
    assert merge_pod_template(RENDERED, template) == RENDERED


def test_labels_and_annotations_are_added() -> None:
    merged = merge_pod_template(RENDERED, {"metadata": {"labels": {"team": "a"}, "annotations": {"b": "c"}}})
    assert merged["metadata"] == {"labels": {"app": "vllm", "team": "a"}, "annotations": {"b": "c"}}


SELECTING = {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": "llama", "app.kubernetes.io/component": "engine"}


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"app.kubernetes.io/instance": "other", "app.kubernetes.io/component": None}},
        {"labels": {"app.kubernetes.io/name": "mine"}, "annotations": {"a": "b"}},
        {"labels": None},
        None,
    ],
)
def test_the_labels_that_select_pods_keep_their_values(metadata: dict[str, Any] | None) -> None:
    rendered = {**RENDERED, "metadata": {"labels": {"app.kubernetes.io/managed-by": "vllm-operator", **SELECTING}}}
    labels = merge_pod_template(rendered, {"metadata": metadata})["metadata"]["labels"]
    assert labels == {"app.kubernetes.io/managed-by": "vllm-operator", **SELECTING}


def test_the_label_that_names_the_tool_is_the_users() -> None:
    rendered = {**RENDERED, "metadata": {"labels": {"app.kubernetes.io/managed-by": "vllm-operator", **SELECTING}}}
    labels = merge_pod_template(rendered, {"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}})["metadata"]["labels"]
    assert labels == {"app.kubernetes.io/managed-by": "Helm", **SELECTING}


@pytest.mark.parametrize("template", [{"spec": None}, {"spec": {"containers": None}}, {"metadata": None, "spec": None}])
def test_a_part_with_nothing_below_it_removes_nothing(template: dict[str, Any]) -> None:
    assert merge_pod_template(RENDERED, template) == RENDERED


@pytest.mark.parametrize(
    ("spec", "want_message"),
    [
        (
            {"containers": [{"name": "engine", "resources": {}}]},
            r"containers\[0\]: the Pod has no container engine.*of the engine is vllm",
        ),
        ({"containers": [{"name": "vllm"}, {"name": "a", "image": ""}]}, r"containers\[1\]: the Pod has no container a, and a new one"),
        ({"initContainers": [{"name": "vllm"}]}, r"initContainers\[0\]: the Pod has no container vllm, and a new one needs an image$"),
    ],
)
def test_a_container_that_is_none_of_the_pods_needs_an_image(spec: dict[str, Any], want_message: str) -> None:
    with pytest.raises(SpecError, match=want_message):
        check_containers({"spec": spec})


@pytest.mark.parametrize(
    "spec", [{}, {"containers": [{"name": "vllm"}, {"name": "a", "image": "a:1"}], "initContainers": [{"name": "b", "image": "b:1"}]}]
)
def test_containers_that_can_run_are_accepted(spec: dict[str, Any]) -> None:
    check_containers({"spec": spec})
    check_containers(None)


def test_the_engine_container_is_merged_and_others_are_added() -> None:
    containers = merged_spec({"containers": [{"name": "sidecar", "image": "s:1"}, {"name": "vllm", "image": "mine:2"}]})["containers"]
    assert [container["name"] for container in containers] == ["vllm", "sidecar"]
    assert containers[0]["image"] == "mine:2"
    assert containers[0]["args"] == ["--a"]


def test_plain_lists_are_replaced() -> None:
    assert merged_engine({"args": ["--mine"]})["args"] == ["--mine"]


def test_variables_are_merged_by_name_and_replaced_as_a_whole() -> None:
    env = merged_engine({"env": [{"name": "TOKEN", "value": "t"}, {"name": "NEW", "value": "n"}]})["env"]
    assert env == [{"name": "HOME", "value": "/cache"}, {"name": "TOKEN", "value": "t"}, {"name": "NEW", "value": "n"}]


def test_a_volume_of_another_kind_replaces_ours_instead_of_being_both() -> None:
    volumes = merged_spec({"volumes": [{"name": "cache", "hostPath": {"path": "/fast"}}]})["volumes"]
    assert volumes == [{"name": "cache", "hostPath": {"path": "/fast"}}]


def test_mounts_are_distinguished_by_their_path() -> None:
    mounts = merged_engine({"volumeMounts": [{"name": "mine", "mountPath": "/cache"}, {"name": "mine", "mountPath": "/data"}]})[
        "volumeMounts"
    ]
    assert mounts == [{"name": "mine", "mountPath": "/cache"}, {"name": "mine", "mountPath": "/data"}]


def test_a_probe_has_one_handler() -> None:
    probe = merged_engine({"startupProbe": {"exec": {"command": ["true"]}}})["startupProbe"]
    assert probe == {"periodSeconds": 5, "exec": {"command": ["true"]}}


def test_a_changed_field_of_a_handler_keeps_the_others() -> None:
    probe = merged_engine({"startupProbe": {"httpGet": {"path": "/ready"}}})["startupProbe"]
    assert probe["httpGet"] == {"path": "/ready", "port": "http"}


def test_limits_are_merged_by_resource() -> None:
    assert merged_engine({"resources": {"limits": {"memory": "64Gi"}}})["resources"]["limits"] == {"nvidia.com/gpu": "1", "memory": "64Gi"}


def test_tolerations_are_added_once() -> None:
    extra = {"key": "dedicated", "operator": "Exists"}
    ours = {"key": "nvidia.com/gpu", "operator": "Exists"}
    assert merged_spec({"tolerations": [ours, extra]})["tolerations"] == [ours, extra]


def test_ports_are_distinguished_by_number_and_protocol() -> None:
    ports = [{"containerPort": 9000}, {"containerPort": 9000, "protocol": "UDP"}]
    assert merged_engine({"ports": ports})["ports"] == ports


@pytest.mark.parametrize("field", ["nodeSelector", "overhead"])
def test_a_field_named_like_a_merged_list_elsewhere_is_left_alone(field: str) -> None:
    assert merged_spec({field: {"env": "production", "volumes": "fast"}})[field] == {"env": "production", "volumes": "fast"}


def test_nulls_that_remove_nothing_disappear() -> None:
    sidecar = merged_spec({"containers": [{"name": "sidecar", "image": "s:1", "args": None, "env": [{"name": "A", "value": None}]}]})
    assert sidecar["containers"][1] == {"name": "sidecar", "image": "s:1", "env": [{"name": "A"}]}


def test_null_removes_what_is_rendered() -> None:
    assert "securityContext" not in merged_spec({"securityContext": None})
    assert "fsGroup" not in merged_spec({"securityContext": {"fsGroup": None}})["securityContext"]
    assert "startupProbe" not in merged_engine({"startupProbe": None})


def test_neither_side_is_changed() -> None:
    ours, theirs = copy.deepcopy(RENDERED), {"spec": {"containers": [{"name": "vllm", "env": [{"name": "A", "value": "b"}]}]}}
    before = copy.deepcopy(theirs)
    merge_pod_template(ours, theirs)
    assert (ours, theirs) == (RENDERED, before)


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        ({}, None),
        ({"securityContext": None}, None),
        ({"securityContext": {"fsGroup": 1}}, None),
        ({"securityContext": {"runAsUser": 0}}, 0),
        ({"securityContext": {"runAsUser": 7}, "containers": [{"name": "vllm", "securityContext": {"runAsUser": 8}}]}, 8),
        ({"securityContext": {"runAsUser": 7}, "containers": [{"name": "sidecar", "securityContext": {"runAsUser": 8}}]}, 7),
        ({"securityContext": {"runAsUser": "seven"}}, None),
        ({"securityContext": [], "containers": [None, "vllm"]}, None),
        (None, None),
    ],
)
def test_the_user_of_the_engine_is_read_where_kubernetes_reads_it(spec: dict[str, Any] | None, want: int | None) -> None:
    assert run_as_user({"spec": spec}) == want


@pytest.mark.parametrize(
    ("template", "want_message"),
    [
        ({"containers": []}, "podTemplate has containers; only metadata and spec"),
        ({"spec": []}, "podTemplate.spec must be an object with fields, not list"),
        ({"metadata": {"name": "x"}}, "podTemplate.metadata has name"),
        ({"metadata": {"labels": {"a": 1}}}, 'put it in quotes: "1"'),
        ({"spec": {"containers": {"name": "vllm"}}}, "podTemplate.spec.containers must be a list"),
        ({"spec": {"containers": ["vllm"]}}, r"podTemplate.spec.containers\[0\] needs a name"),
        ({"spec": {"containers": [{"image": "x"}]}}, r"containers\[0\] needs a name"),
        ({"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}, "has name a twice"),
        ({"spec": {"containers": [{"name": "vllm", "env": [{"value": "x"}]}]}}, r"containers\[0\].env\[0\] needs a name"),
        ({"spec": {"containers": [{"name": "vllm", "volumeMounts": [{"name": "a"}]}]}}, r"volumeMounts\[0\] needs a mountPath"),
        ({"spec": {"volumes": [None]}}, r"volumes\[0\] needs a name"),
        ({"spec": {"containers": [{"name": "vllm", "resources": []}]}}, r"containers\[0\].resources must be an object"),
        ({"spec": {"initContainers": [{"name": "a", "env": {}}]}}, r"initContainers\[0\].env must be a list"),
    ],
)
def test_what_cannot_be_merged_is_refused_with_the_field(template: dict[str, Any], want_message: str) -> None:
    with pytest.raises(SpecError, match=want_message):
        check_pod_template(template)
    with pytest.raises(SpecError, match=want_message):
        merge_pod_template(RENDERED, template)


NAMES = st.sampled_from(
    ["metadata", "spec", "labels", "containers", "env", "name", "value", "vllm", "ports", "resources", "limits", "volumes", "tolerations"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from(["vllm", "cache", "HOME"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(NAMES, VALUES, max_size=3) | st.fixed_dictionaries({"spec": st.dictionaries(NAMES, VALUES, max_size=4)}))
def test_any_template_is_merged_or_refused_and_merging_twice_is_merging_once(template: dict[str, Any]) -> None:
    with contextlib.suppress(SpecError):
        once = merge_pod_template(RENDERED, template)
        assert merge_pod_template(once, template) == once


def test_a_template_that_is_too_deep_or_too_large_is_refused_before_anything_walks_through_it() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"a": [deep]}
    with pytest.raises(SpecError, match="more than 50 levels of nesting"):
        check_pod_template({"spec": {"affinity": deep}})
    for _ in range(300):
        deep = {"a": [deep]}
    _, message = refusal(deployment(podTemplate={"spec": {"affinity": deep}}))
    assert "podTemplate has more than 50 levels of nesting" in message
    variables = [{"name": f"A{number}", "value": "x"} for number in range(4000)]
    with pytest.raises(SpecError, match="more than 10000 values"):
        check_pod_template({"spec": {"containers": [{"name": "vllm", "env": variables}]}})
    check_pod_template({"spec": {"containers": [{"name": "vllm", "env": variables[:3000]}]}})


def test_labels_that_are_kept_are_those_that_the_user_sets_otherwise() -> None:
    rendered = {f"app.kubernetes.io/{key}": value for key, value in (("name", "vllm"), ("instance", "llama"), ("component", "engine"))}
    given = {"app.kubernetes.io/instance": "other", "app.kubernetes.io/name": "vllm", "app.kubernetes.io/managed-by": "Helm"}
    assert find_kept_labels({"metadata": {"labels": given}}, rendered) == {"app.kubernetes.io/instance": "llama"}
    assert find_kept_labels({"metadata": None}, rendered) == {}
