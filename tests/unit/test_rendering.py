"""Rules of rendering that a table says better than a whole manifest."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from support.gpus import real_node
from support.operators import llama
from support.plans import deployment, made
from vllm_operator.api.plan import Plan, PlannedArgument
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import EngineArgument, VLLMDeploymentSpec
from vllm_operator.catalog.versions import VersionTable, load_versions
from vllm_operator.planning.engine.serving import plan_deadline, plan_patience
from vllm_operator.planning.pod_template import SpecError
from vllm_operator.planning.presets import merge_preset
from vllm_operator.planning.validation import violations
from vllm_operator.rendering.container import render_arguments
from vllm_operator.rendering.manifests import render

PLAN = Plan.model_validate(
    {
        "catalogVersion": "1",
        "model": "org/name",
        "image": "vllm/vllm-openai:v0.20.1",
        "toolsImage": "registry.example/vllm-operator:1",
        "distribution": "vLLM",
        "resource": "nvidia.com/gpu",
        "count": 1,
        "cacheKey": "key",
        "deadlineSeconds": 901,
    }
)
OF_CLAIMS = PLAN.model_copy(update={"resource": "gpu.nvidia.com"})


def resource(spec: dict[str, Any] | None = None, **metadata: Any) -> VLLMDeployment:
    return VLLMDeployment.parse(
        {"metadata": {"name": "llama", "uid": "u", **metadata}, "spec": {"model": {"uri": "hf://org/name"}, **(spec or {})}}
    )


def rendered(kind: str, spec: dict[str, Any] | None = None, plan: Plan = PLAN, **metadata: Any) -> dict[str, Any]:
    manifests = {manifest["kind"]: manifest for manifest in render(resource(spec, **metadata), plan)}
    return manifests[kind]


def engine(spec: dict[str, Any] | None = None, plan: Plan = PLAN) -> dict[str, Any]:
    container: dict[str, Any] = rendered("Deployment", spec, plan)["spec"]["template"]["spec"]["containers"][0]
    return container


@pytest.mark.parametrize(
    ("planned", "given", "want"),
    [
        ([("--a", "1")], [], ["--a", "1"]),
        ([("--a", None)], [("b", "2")], ["--a", "--b", "2"]),
        ([("--moe-backend", "x")], [("moe-backend", "y")], ["--moe-backend", "y"]),
        ([("--moe-backend", "x")], [("--moe_backend", "y")], ["--moe_backend", "y"]),
        ([("--enable-prefix-caching", None)], [("--no-enable-prefix-caching", None)], ["--no-enable-prefix-caching"]),
        ([("--kernel-config.moe-backend", "x")], [("kernel-config", "{}")], ["--kernel-config", "{}"]),
        ([("--kernel-config", "x")], [("kernel-config-file", "y")], ["--kernel-config", "x", "--kernel-config-file", "y"]),
        ([], [("-O", "3")], ["-O", "3"]),
        ([], [("seed", "-1")], ["--seed=-1"]),
        ([], [("chat-template", "")], ["--chat-template", ""]),
        ([("--b", "1"), ("--a", "2")], [("z", None), ("y", None)], ["--b", "1", "--a", "2", "--z", "--y"]),
    ],
)
def test_flags_of_the_user_replace_planned_ones(
    planned: list[tuple[str, str | None]], given: list[tuple[str, str | None]], want: list[str]
) -> None:
    ours = [PlannedArgument(name=name, value=value) for name, value in planned]
    theirs = [EngineArgument(name=name, value=value) for name, value in given]
    assert render_arguments(ours, theirs) == want


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        ({}, {"type": "Recreate"}),
        ({"replicas": 0}, {"type": "Recreate"}),
        ({"replicas": 3}, {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}),
        ({"replicas": 3, "rollout": {"strategy": "Recreate"}}, {"type": "Recreate"}),
        ({"rollout": {"strategy": "RollingUpdate"}}, {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}),
        ({"rollout": {"maxSurge": 1}}, {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}),
        (
            {"replicas": 8, "rollout": {"maxUnavailable": 4}},
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 4}},
        ),
        (
            {"replicas": 3, "rollout": {"maxUnavailable": 0}},
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        ),
        ({"rollout": {"maxSurge": 0}}, {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}),
    ],
)
def test_pods_are_replaced_without_a_spare_gpu_unless_asked(spec: dict[str, Any], want: dict[str, Any]) -> None:
    assert rendered("Deployment", spec)["spec"]["strategy"] == want


NUMBERS = st.integers(0, 1000) | st.integers(0, 1)
ROLLOUTS = st.fixed_dictionaries(
    {}, optional={"strategy": st.sampled_from(["Auto", "Recreate", "RollingUpdate"]), "maxSurge": NUMBERS, "maxUnavailable": NUMBERS}
)


@given(replicas=st.integers(0, 3), own=ROLLOUTS, preset=ROLLOUTS)
def test_whatever_rollouts_the_crds_accept_a_pod_can_be_replaced(replicas: int, own: dict[str, Any], preset: dict[str, Any]) -> None:
    """Kubernetes refuses a Deployment with 0 for both."""
    assume(all(not list(violations(llama(rollout=each))) for each in (own, preset)))  # presets have the same rules
    spec = merge_preset({"replicas": replicas, "rollout": own}, {"rollout": preset}).spec
    strategy = rendered("Deployment", spec)["spec"]["strategy"]
    assert strategy == {"type": "Recreate"} or sum(strategy["rollingUpdate"].values()) > 0


@pytest.mark.parametrize(
    ("uri", "spec", "size", "want"),
    [
        ("hf://a/b", {}, None, 10800),
        ("hf://a/b", {}, 16 * 2**30, 3600 + 2 * 164),
        ("pvc://a/b", {}, 16 * 2**30, 3600 + 164),
        ("hf://a/b", {}, 640 * 2**30, 3600 + 13108),
        ("hf://a/b", {"startup": {"deadlineSeconds": 900}}, 640 * 2**30, 900),
        ("hf://a/b", {}, 2**50, 86400),
    ],
)
def test_the_deadline_follows_from_the_size_of_the_weights_and_where_they_are(uri: str, spec: dict[str, Any], size: int, want: int) -> None:
    parsed = VLLMDeploymentSpec.model_validate({"model": {"uri": uri}, **spec})
    assert plan_deadline(parsed, size, None) == pytest.approx(want, abs=1)


def test_a_plan_in_force_keeps_its_deadline() -> None:
    spec = VLLMDeploymentSpec.model_validate({"model": {"uri": "hf://a/b"}})
    old = made(deployment(), real_node("h100-sxm"))
    assert plan_deadline(spec, 2**30, old.model_copy(update={"deadline_seconds": 5000})) == 5000


@pytest.mark.parametrize("table", load_versions().tables, ids=lambda table: table.version)
def test_an_engine_that_has_a_patience_of_its_own_gets_that_of_the_probe(table: VersionTable) -> None:
    told = {variable.name: variable.value for variable in plan_patience(5000, table)}
    assert told == ({"VLLM_ENGINE_READY_TIMEOUT_S": "5000"} if table.release >= (0, 14, 0) else {})


def test_the_startup_probe_lasts_as_long_as_a_start_may_take_and_the_rollout_longer() -> None:
    deployment = rendered("Deployment")["spec"]
    probe = deployment["template"]["spec"]["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 905
    assert deployment["progressDeadlineSeconds"] > 905


@pytest.mark.parametrize(
    "change",
    [
        {"remediation": {"mode": "Auto"}},
        {"cache": {"priming": "Always"}},
        {"cache": {"onDelete": "Delete"}},
        {"cache": {"volume": {"size": "50Gi"}}},
        {"replicas": 5},
        {"service": {"port": 80}},
        {"rollout": {"strategy": "RollingUpdate"}},
        {"startup": {"stallTimeoutSeconds": 60}},
    ],
    ids=str,
)
def test_a_change_that_is_not_about_the_pods_leaves_them_alone(change: dict[str, Any]) -> None:
    assert rendered("Deployment", change)["spec"]["template"] == rendered("Deployment")["spec"]["template"]


def test_a_new_generation_alone_changes_nothing() -> None:
    assert render(resource(generation=2), PLAN) == render(resource(generation=1), PLAN)


def test_a_retained_claim_has_no_owner_and_so_outlives_the_object() -> None:
    assert "ownerReferences" not in rendered("PersistentVolumeClaim")["metadata"]
    assert rendered("PersistentVolumeClaim", {"cache": {"onDelete": "Delete"}})["metadata"]["ownerReferences"][0]["controller"] is True


def test_an_object_from_a_file_owns_nothing() -> None:
    for manifest in render(resource({"cache": {"onDelete": "Delete"}}, uid=""), PLAN):
        assert "ownerReferences" not in manifest["metadata"]


def test_a_named_claim_is_used_and_not_rendered() -> None:
    kinds = [manifest["kind"] for manifest in render(resource({"cache": {"claimName": "mine"}}), PLAN)]
    assert kinds == ["Service", "Deployment"]


def test_the_order_is_the_order_of_need() -> None:
    assert [manifest["kind"] for manifest in render(resource(), OF_CLAIMS)] == [
        "PersistentVolumeClaim",
        "Service",
        "ResourceClaimTemplate",
        "Deployment",
    ]


def test_a_changed_device_request_gets_a_template_of_its_own_because_templates_cannot_be_changed() -> None:
    plans = (OF_CLAIMS.model_copy(update={"count": count}) for count in (1, 2))
    names = {rendered("ResourceClaimTemplate", None, plan)["metadata"]["name"] for plan in plans}
    assert len(names) == 2


def test_gpus_come_from_a_claim_or_from_the_device_plugin_never_both() -> None:
    assert engine()["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    assert engine(plan=OF_CLAIMS)["resources"] == {"claims": [{"name": "gpu"}]}


def test_a_token_is_a_file_of_the_users_secret_and_neither_in_the_manifest_nor_in_the_environment() -> None:
    spec = {"model": {"uri": "hf://a/b", "tokenSecretRef": {"name": "hub", "key": "hf"}}}
    assert engine(spec)["env"][-1] == {"name": "HF_TOKEN_PATH", "value": "/etc/vllm-operator/hub/token"}
    assert {"name": "hub-token", "mountPath": "/etc/vllm-operator/hub", "readOnly": True} in engine(spec)["volumeMounts"]
    volumes = rendered("Deployment", spec)["spec"]["template"]["spec"]["volumes"]
    assert {"name": "hub-token", "secret": {"secretName": "hub", "items": [{"key": "hf", "path": "token"}]}} in volumes


@pytest.mark.parametrize(("count", "want"), [(1, "4Gi"), (2, "6Gi"), (8, "18Gi")])
def test_shared_memory_grows_with_the_gpus(count: int, want: str) -> None:
    volumes = rendered("Deployment", plan=PLAN.model_copy(update={"count": count}))["spec"]["template"]["spec"]["volumes"]
    assert next(volume for volume in volumes if volume["name"] == "shared-memory")["emptyDir"]["sizeLimit"] == want


def test_everything_that_the_engine_writes_is_on_a_volume() -> None:
    writable = {mount["mountPath"] for mount in engine()["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/cache", "/weights", "/dev/shm", "/tmp"}


def test_no_variable_of_vllm_differs_from_pod_to_pod() -> None:
    assert not [variable for variable in engine()["env"] if variable["name"].startswith("VLLM_") and "valueFrom" in variable]


def test_a_template_that_cannot_be_merged_is_refused() -> None:
    with pytest.raises(SpecError, match="podTemplate has"):
        render(resource({"podTemplate": {"containers": []}}), PLAN)
