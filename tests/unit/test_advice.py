"""What to do about a refusal of the scheduler or of admission, chosen by its text."""

import pytest

from vllm_operator.inventory.pools import Taint
from vllm_operator.status.progressing import UntoleratedTaints, refusal_advice, unschedulable_advice

TAINTED = "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint(s)."
ELSEWHERE = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."


def tainted(key: str) -> UntoleratedTaints:
    return UntoleratedTaints("gpu-1", 1, (Taint(key, "", "NoSchedule"),))


@pytest.mark.parametrize(
    ("message", "untolerated", "has_other_plan", "advice"),
    [
        pytest.param(TAINTED, tainted("node.kubernetes.io/disk-pressure"), False, "taint_passing", id="an unhealthy node"),
        pytest.param(TAINTED, tainted("nvidia.com/gpu"), False, "taint_usually_tolerated", id="the taint of GPU nodes"),
        pytest.param(TAINTED, tainted("team"), False, "taint", id="a taint of the cluster"),
        pytest.param(TAINTED, None, False, "unknown_taint", id="taints of unknown nodes"),
        pytest.param("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", None, False, "gpus", id="too few GPUs"),
        pytest.param("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", None, True, "other_plan", id="other GPUs are free"),
        pytest.param(
            "0/3 nodes are available: 3 Insufficient cpu.", None, True, "cpu_or_memory", id="too few CPUs, and other GPUs are free"
        ),
        pytest.param("3 Insufficient memory, 3 Insufficient nvidia.com/gpu", None, False, "gpus", id="GPUs and memory"),
        pytest.param("0/3 nodes are available: 3 Insufficient cpu.", None, False, "cpu_or_memory", id="too few CPUs"),
        pytest.param("0/3 nodes are available: 3 Insufficient cpu.", tainted("team"), False, "cpu_or_memory", id="a taint is not named"),
        pytest.param(ELSEWHERE, None, True, "other_plan", id="another GPU would be planned"),
        pytest.param(ELSEWHERE, None, False, "anything", id="something else"),
    ],
)
def test_a_pod_that_no_node_fits(message: str, untolerated: UntoleratedTaints | None, has_other_plan: bool, advice: str) -> None:
    assert unschedulable_advice(message, untolerated, has_other_plan=has_other_plan) == f"unschedulable.{advice}"


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ('violates PodSecurity "restricted:latest": runAsNonRoot != true', "pod_security"),
        ("exceeded quota: gpus, requested: 8", "quota"),
        ("failed quota: cpu: must specify limits.cpu for: vllm", "must_specify"),
        ('pod rejected: RuntimeClass "nvidia" not found', "runtime_class"),
        ('serviceaccount "a" not found', "not_found"),
        ("no PriorityClass with name gold was found", "not_found"),
        ("ValidatingAdmissionPolicy 'images' denied request: image", "policy"),
    ],
)
def test_a_pod_that_admission_refuses(message: str, advice: str) -> None:
    assert refusal_advice(message) == f"refused.{advice}"
