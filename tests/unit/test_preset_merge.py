"""The merge of a preset below the spec of an object: the object wins, and nothing contradicts itself."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_operator.api.spec import PresetSpec, VLLMDeploymentSpec
from vllm_operator.planning.presets import merge_preset

Spec = dict[str, Any]
GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists"}
TEAM_TAINT = {"key": "team", "value": "a"}


def template(**pod: Any) -> Spec:
    return {"podTemplate": {"spec": pod}}


CASES: dict[str, tuple[Spec, Spec, Spec, list[str]]] = {
    # object, preset, both, fields of the preset
    "a field of the object wins": (
        {"rollout": {"drainSeconds": 5}},
        {"rollout": {"drainSeconds": 90}},
        {"rollout": {"drainSeconds": 5}},
        [],
    ),
    "a field that only the preset has is added": (
        {"engine": {"version": "0.20.1"}},
        {"accelerator": {"policy": "MostFree"}},
        {"engine": {"version": "0.20.1"}, "accelerator": {"policy": "MostFree"}},
        ["accelerator.policy"],
    ),
    "flags by name": (
        {"engine": {"args": [{"name": "--seed", "value": "7"}]}},
        {"engine": {"args": [{"name": "seed", "value": "1"}, {"name": "--enable-chunked-prefill"}]}},
        {"engine": {"args": [{"name": "--enable-chunked-prefill"}, {"name": "--seed", "value": "7"}]}},
        ["engine.args.enable-chunked-prefill"],
    ),
    "a flag that the object negates, or spells with underscores": (
        {"engine": {"args": [{"name": "no-enable-prefix-caching"}, {"name": "max_model_len", "value": "8192"}]}},
        {"engine": {"args": [{"name": "--enable-prefix-caching"}, {"name": "max-model-len", "value": "4096"}]}},
        {"engine": {"args": [{"name": "no-enable-prefix-caching"}, {"name": "max_model_len", "value": "8192"}]}},
        [],
    ),
    "variables by name": (
        {"engine": {"env": [{"name": "A", "value": "own"}]}},
        {"engine": {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}, {"name": "B", "value": "2"}]}},
        {"engine": {"env": [{"name": "A", "value": "own"}, {"name": "B", "value": "2"}]}},
        ["engine.env.B"],
    ),
    "the image of a preset goes with its version": (
        {"engine": {"version": "0.33.0"}},
        {"engine": {"image": "mirror.example/vllm:v0.20.1", "version": "0.20.1"}},
        {"engine": {"version": "0.33.0"}},
        [],
    ),
    "the size of the object on the storage class of the preset": (
        {"cache": {"volume": {"size": "200Gi"}}},
        {"cache": {"volume": {"size": "50Gi", "storageClassName": "fast"}, "onDelete": "Delete"}},
        {"cache": {"volume": {"size": "200Gi", "storageClassName": "fast"}, "onDelete": "Delete"}},
        ["cache.volume.storageClassName", "cache.onDelete"],
    ),
    "an existing claim instead of the storage of the preset": (
        {"cache": {"claimName": "mine"}},
        {"cache": {"storage": "ClaimPerReplica", "volume": {"size": "50Gi"}, "priming": "Never"}},
        {"cache": {"claimName": "mine", "priming": "Never"}},
        ["cache.priming"],
    ),
    "a claim instead of the directory of the preset": (
        {"weights": {"storage": "SharedClaim"}},
        {"weights": {"hostPath": "/models", "storage": "HostPath"}},
        {"weights": {"storage": "SharedClaim"}},
        [],
    ),
    "a strategy goes with its numbers": (
        {"rollout": {"strategy": "Recreate"}},
        {"rollout": {"strategy": "RollingUpdate", "maxSurge": 1, "drainSeconds": 30}},
        {"rollout": {"strategy": "Recreate", "drainSeconds": 30}},
        ["rollout.drainSeconds"],
    ),
    "tolerations are appended, each once": (
        template(tolerations=[TEAM_TAINT, GPU_TAINT]),
        template(tolerations=[GPU_TAINT]),
        template(tolerations=[GPU_TAINT, TEAM_TAINT]),
        [],
    ),
    "a toleration that only the preset has": (
        template(tolerations=[TEAM_TAINT]),
        template(tolerations=[GPU_TAINT]),
        template(tolerations=[GPU_TAINT, TEAM_TAINT]),
        ["podTemplate.spec.tolerations"],
    ),
    "pull secrets and node selectors": (
        template(imagePullSecrets=[{"name": "mine"}], nodeSelector={"zone": "a"}),
        template(imagePullSecrets=[{"name": "registry"}], nodeSelector={"zone": "b", "pool": "gpu"}),
        template(imagePullSecrets=[{"name": "registry"}, {"name": "mine"}], nodeSelector={"zone": "a", "pool": "gpu"}),
        ["podTemplate.spec.imagePullSecrets.registry", "podTemplate.spec.nodeSelector.pool"],
    ),
    "resources of the engine": (
        template(containers=[{"name": "vllm", "resources": {"limits": {"memory": "64Gi"}}}]),
        template(containers=[{"name": "vllm", "resources": {"limits": {"memory": "32Gi", "cpu": "8"}}}]),
        template(containers=[{"name": "vllm", "resources": {"limits": {"memory": "64Gi", "cpu": "8"}}}]),
        ["podTemplate.spec.containers.vllm.resources.limits.cpu"],
    ),
    "a null of the object removes what the preset and the operator set": (
        template(tolerations=None, nodeSelector={"pool": None}),
        template(tolerations=[GPU_TAINT], nodeSelector={"pool": "gpu"}),
        template(tolerations=None, nodeSelector={"pool": None}),
        [],
    ),
    "a variable of the object wins over the Pod template of the preset": (
        {"engine": {"env": [{"name": "A", "value": "own"}], "image": "own:v0.20.1"}},
        template(containers=[{"name": "vllm", "image": "theirs", "env": [{"name": "A", "value": "theirs"}, {"name": "B", "value": "2"}]}]),
        {
            "engine": {"env": [{"name": "A", "value": "own"}], "image": "own:v0.20.1"},
            **template(containers=[{"name": "vllm", "env": [{"name": "B", "value": "2"}]}]),
        },
        ["podTemplate.spec.containers.vllm"],
    ),
    "a probe of another kind": (
        template(containers=[{"name": "vllm", "readinessProbe": {"exec": {"command": ["true"]}}}]),
        template(containers=[{"name": "vllm", "readinessProbe": {"httpGet": {"path": "/"}, "periodSeconds": 5}}]),
        template(containers=[{"name": "vllm", "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 5}}]),
        ["podTemplate.spec.containers.vllm.readinessProbe.periodSeconds"],
    ),
    "what is empty in the preset is no field that comes from it": (
        {},
        template(tolerations=[], nodeSelector={}),
        template(tolerations=[], nodeSelector={}),
        [],
    ),
    "the object's list of GPUs replaces the preset's": (
        {"accelerator": {"products": ["NVIDIA-H200"]}},
        {"accelerator": {"products": ["NVIDIA-L4"], "runtimeClassName": "nvidia"}},
        {"accelerator": {"products": ["NVIDIA-H200"], "runtimeClassName": "nvidia"}},
        ["accelerator.runtimeClassName"],
    ),
}


@pytest.mark.parametrize(("own", "preset", "both", "fields"), CASES.values(), ids=CASES)
def test_what_an_object_and_a_preset_make(own: Spec, preset: Spec, both: Spec, fields: list[str]) -> None:
    assert PresetSpec.model_validate(preset).to_json() == preset
    merged = merge_preset(own, preset)
    assert merged.spec == both
    assert list(merged.fields) == fields


NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from(["1", "2"])


def named(**fields: Any) -> st.SearchStrategy[list[Spec]]:
    return st.lists(st.fixed_dictionaries({"name": NAMES, **fields}), max_size=3, unique_by=lambda entry: entry["name"])


def optional(**fields: Any) -> st.SearchStrategy[Spec]:
    return st.fixed_dictionaries({}, optional=fields)


POD = optional(
    tolerations=st.lists(st.sampled_from([GPU_TAINT, TEAM_TAINT]), max_size=2, unique_by=lambda entry: entry["key"]),
    nodeSelector=st.dictionaries(NAMES, VALUES, max_size=2),
    imagePullSecrets=named(),
    containers=st.lists(
        optional(env=named(value=VALUES), resources=st.fixed_dictionaries({"limits": st.dictionaries(NAMES, VALUES)})).map(
            lambda it: {"name": "vllm", **it}
        ),
        max_size=1,
    ),
)
STORAGE = st.sampled_from(
    [
        {},
        {"claimName": "mine"},
        {"hostPath": "/a"},
        {"storage": "EmptyDir"},
        {"storage": "ClaimPerReplica", "volume": {"size": "1Gi"}},
        {"volume": {"storageClassName": "fast"}},
    ]
)
SPECS = optional(
    engine=optional(args=named(value=VALUES), env=named(value=VALUES), image=st.just("i:v0.20.1"), version=st.just("0.33.0")),
    cache=STORAGE,
    weights=STORAGE,
    rollout=st.sampled_from(
        [{}, {"strategy": "Recreate"}, {"maxSurge": 0, "maxUnavailable": 1}, {"maxSurge": 1, "maxUnavailable": 0}, {"drainSeconds": 1}]
    ),
    podTemplate=st.fixed_dictionaries({"spec": POD}),
)


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """The values of a spec by their path: entries of lists by name, and other lists in one order. What is empty is no value."""
    if isinstance(value, dict):
        return {place: leaf for name, inner in value.items() for place, leaf in leaves(inner, f"{path}.{name}").items()}
    if isinstance(value, list) and all(isinstance(entry, dict) and "name" in entry for entry in value):
        return {place: leaf for entry in value for place, leaf in leaves(entry, f"{path}[{entry['name']}]").items()}
    return {path: sorted(value, key=repr) if isinstance(value, list) else value}


@pytest.mark.hypothesis
@given(SPECS, SPECS)
def test_the_object_always_wins_and_a_second_merge_changes_nothing(own: Spec, preset: Spec) -> None:
    merged = merge_preset(own, preset)
    kept = leaves(merged.spec)
    for path, value in leaves(own).items():
        if isinstance(value, list):
            assert all(entry in kept[path] for entry in value)
        else:
            assert kept[path] == value, path
    assert kept.keys() <= leaves(own).keys() | leaves(preset).keys()
    # entries may change places: the second time, the object has them too
    assert leaves(merge_preset(merged.spec, preset).spec) == kept
    assert bool(merged.fields) == (leaves(merged.spec) != leaves(own) and _adds(merged.spec, own))


def _adds(merged: Spec, own: Spec) -> bool:
    return any(leaf not in ([], {}) and leaves(own).get(path) != leaf for path, leaf in leaves(merged).items())


@pytest.mark.hypothesis
@given(SPECS, SPECS)
def test_valid_parts_make_a_valid_whole(own: Spec, preset: Spec) -> None:
    from vllm_operator.planning.validation import violations

    def problems(spec: Spec) -> list[str]:
        whole = {"model": {"uri": "hf://a/b"}, **VLLMDeploymentSpec.model_validate({"model": {"uri": "hf://a/b"}, **spec}).to_json()}
        return violations({"apiVersion": "vllm-operator.dev/v1alpha1", "kind": "VLLMDeployment", "metadata": {"name": "a"}, "spec": whole})

    if not problems(own):
        assert problems(merge_preset(own, preset).spec) == []
