"""How long requests in progress may take when a Pod stops, by version and by what users set."""

from typing import Any

import pytest

from support.gpus import real_node
from support.plans import deployment, made
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.rendering.pod import render_pod_template

FLAG = "--shutdown-timeout"


def plan_of(resource: VLLMDeployment) -> Plan:
    return made(resource, real_node("h200"))


def pod_of(resource: VLLMDeployment, plan: Plan | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = render_pod_template(resource, plan or plan_of(resource))["spec"]
    return spec


def flag_of(plan: Plan) -> str | None:
    return next((argument.value for argument in plan.args if argument.name == FLAG), None)


@pytest.mark.parametrize(
    ("version", "seconds", "sleep"),
    [
        ("0.11.0", None, 10),
        ("0.17.1", None, 10),
        ("0.18.0", "60", 10),
        ("0.26.0", "60", 10),
        ("0.27.0", "60", 20),  # aborts what comes too late, instead of refusing it
        ("0.33.0", "60", 20),
    ],
)
def test_versions_that_abort_requests_on_sigterm_are_told_to_wait(version: str, seconds: str | None, sleep: int) -> None:
    resource = deployment(engine={"version": version})
    plan = plan_of(resource)
    assert flag_of(plan) == seconds
    pod = pod_of(resource, plan)
    assert pod["terminationGracePeriodSeconds"] == sleep + 70
    assert pod["containers"][0]["lifecycle"] == {"preStop": {"exec": {"command": ["sleep", str(sleep)]}}}


@pytest.mark.parametrize(
    ("spec", "flag", "grace"),
    [
        ({"rollout": {"drainSeconds": 600}}, "600", 620),
        ({"engine": {"version": "0.20.1", "args": [{"name": FLAG, "value": "300"}]}}, None, 320),
        ({"engine": {"version": "0.20.1", "args": [{"name": "shutdown_timeout", "value": "300"}]}}, None, 320),
        ({"engine": {"version": "0.20.1", "args": [{"name": FLAG, "value": "long"}]}}, None, 80),
        ({"podTemplate": {"spec": {"terminationGracePeriodSeconds": 900}}}, "60", 900),
    ],
)
def test_users_decide_how_long(spec: dict[str, Any], flag: str | None, grace: int) -> None:
    resource = deployment(**spec)
    assert flag_of(plan_of(resource)) == flag
    assert pod_of(resource)["terminationGracePeriodSeconds"] == grace


@pytest.mark.parametrize(
    "spec", [{"rollout": {"drainSeconds": 0}}, {"engine": {"version": "0.20.1", "args": [{"name": FLAG, "value": "0"}]}}]
)
def test_nothing_waits_if_draining_is_off(spec: dict[str, Any]) -> None:
    pod = pod_of(deployment(**spec))
    assert pod["terminationGracePeriodSeconds"] == 60
    assert "lifecycle" not in pod["containers"][0]
    assert flag_of(plan_of(deployment(**spec))) is None


def test_a_grace_period_that_is_too_short_is_noted() -> None:
    notes = plan_of(deployment(podTemplate={"spec": {"terminationGracePeriodSeconds": 30}})).notes
    assert any("terminationGracePeriodSeconds to 30, but draining may take 80 s" in note for note in notes)
    enough = plan_of(deployment(podTemplate={"spec": {"terminationGracePeriodSeconds": 80}})).notes
    assert not any("draining" in note for note in enough)


@pytest.mark.parametrize("grace", ["30", None, True, [], {"a": 1}])
def test_a_grace_period_of_another_type_is_left_to_the_api_server(grace: Any) -> None:
    assert not any("draining" in note for note in plan_of(deployment(podTemplate={"spec": {"terminationGracePeriodSeconds": grace}})).notes)


def test_a_hook_of_the_user_replaces_the_sleep() -> None:
    hook = {"httpGet": {"path": "/drain", "port": 8000}}
    template = {"spec": {"containers": [{"name": "vllm", "lifecycle": {"preStop": hook}}]}}
    assert pod_of(deployment(podTemplate=template))["containers"][0]["lifecycle"] == {"preStop": hook}


def test_pods_of_an_earlier_plan_stay_as_they_are() -> None:
    resource = deployment()
    plan = plan_of(resource)
    earlier = plan.model_copy(update={"drain_seconds": None, "args": [each for each in plan.args if each.name != FLAG]})
    pod = pod_of(resource, earlier)
    assert pod["terminationGracePeriodSeconds"] == 60
    assert "lifecycle" not in pod["containers"][0]
    assert FLAG not in pod["containers"][0]["args"]


def test_pods_of_an_earlier_plan_for_a_version_that_goes_on_listening_sleep_as_before() -> None:
    resource = deployment(engine={"version": "0.33.0"})
    pod = pod_of(resource, plan_of(resource).model_copy(update={"endpoint_seconds": None}))
    assert pod["terminationGracePeriodSeconds"] == 80
    assert pod["containers"][0]["lifecycle"] == {"preStop": {"exec": {"command": ["sleep", "10"]}}}
