"""Which condition each situation leads to, and what stands in its message."""

from dataclasses import replace

import pytest

from support import observations as o
from support.engine_logs import crash_of, engine_failure
from support.situations import CRASHES, X1, Situation, crashed_state
from support.taints import TAINTS
from support.verdicts import plan_verdict
from vllm_operator.api.conditions import (
    ALWAYS,
    AUTOSCALED,
    CACHE_PUBLISHED,
    EXPOSED,
    ORDER,
    WHILE_ASKED,
    WHILE_TRUE,
    Verdict,
    find_condition,
)
from vllm_operator.api.status import ConditionStatus
from vllm_operator.caches.context import CacheActivity
from vllm_operator.logs.state import CacheEvidence, Progress, Stage, StartupState
from vllm_operator.planning.outcome import FreeGPUs, Outcome
from vllm_operator.status.observation import Exposure, ObjectProblem
from vllm_operator.status.report import report

IMAGE = "registry.example.com/machine-learning/vllm-openai-with-plugins:v0.20.1-2026-11-21"
NOT_RESTRICTED = (
    'pods "a-1" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true '
    '(pod or container "vllm" must set securityContext.runAsNonRoot=true)'
)
COMPILING = StartupState(
    stage=Stage.KERNEL_WARMUP,
    progress=Progress(1436, 1735, "DeepGEMM warm-up", eta_seconds=52),
    stage_since=o.at(-140),
    started_at=o.at(-300),
    last_line_at=o.at(-2),
    cache=CacheEvidence(misses=3),
)
FLASHINFER = (("MoE", "FLASHINFER_CUTLASS"),)
SILENT = StartupState(stage=Stage.KERNEL_WARMUP, stage_since=o.at(-140), last_line_at=o.at(-130), observed_backends=FLASHINFER)
HUNG = StartupState(stage=Stage.DISTRIBUTED_INIT, stage_since=o.at(-900), started_at=o.at(-930), last_line_at=o.at(-900))
REFUSED = Verdict(ConditionStatus.FALSE, "NoMatchingGPU", "No node has an sm_100 GPU. The cluster has: 3 nodes with NVIDIA-H200 (sm_90).")
UNKNOWN_PLAN = Verdict(ConditionStatus.UNKNOWN, "NotAccepted", "Nothing was planned because the spec was not accepted.")
DISABLED = ObjectProblem("IntegrationDisabled", "HTTPRoute", "gateway")
NO_METRICS = ObjectProblem("MetricsAPIMissing", "HorizontalPodAutoscaler", "custom.metrics.k8s.io")
NO_BUDGET = ObjectProblem("ApplyFailed", "PodDisruptionBudget", "forbidden")
NO_POLICY = ObjectProblem("ApplyFailed", "NetworkPolicy", "forbidden")
INVALID = Verdict(ConditionStatus.FALSE, "InvalidSpec", "spec.parallelism.tensor is 3, and the model has 64 heads.")


FROBNICATOR = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, the frobnicator must be even [type=value_error, input_value=3]
"""
REFUSED_CONFIGURATION = crash_of(engine_failure(FROBNICATOR))
NO_SUCH_NODE = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."


def planned_for(product: str, *, today: str) -> Outcome:
    """The current plan for one GPU, which would be made for another one today."""
    anew = o.outcome(plan=o.plan().model_copy(update={"product": today}))
    return o.outcome(plan=o.plan().model_copy(update={"product": product}), fresh=anew)


SITUATIONS = {
    **CRASHES,
    **TAINTS,
    "compile progress": Situation(
        o.observe(o.starting_pod(), states={X1: COMPILING}),
        "Ready",
        "False",
        "Starting",
        ("Pod vllm-a-x1", "DeepGEMM warm-up 1436/1735", "about 50 s left"),
    ),
    "compile progress is the summary, too": Situation(
        o.observe(o.starting_pod(), states={X1: COMPILING}), "Ready", "False", "Starting", ("1436/1735",)
    ),
    "silent compilation is said to be inferred": Situation(
        o.observe(o.starting_pod(), states={X1: SILENT}), "Ready", "False", "Starting", ("has logged nothing since 14:07:50 UTC",)
    ),
    "no log yet": Situation(o.observe(o.starting_pod()), "Ready", "False", "Starting", ("starting the engine process",)),
    "a start without a sign of life": Situation(
        o.observe(o.starting_pod(since=-930), states={("vllm-a-x1", 0): HUNG}),
        "Ready",
        "False",
        "NoProgress",
        ("13:55:00 UTC", "connecting the GPUs", "10 min", "kubectl logs vllm-a-x1"),
    ),
    "a patient user": Situation(
        o.observe(o.starting_pod(since=-930), states={X1: HUNG}, spec={"startup": {"stallTimeoutSeconds": 1200}}),
        "Ready",
        "False",
        "Starting",
    ),
    "no node takes the Pod": Situation(
        o.observe(o.unschedulable_pod()),
        "Ready",
        "False",
        "Unschedulable",
        ("3 Insufficient nvidia.com/gpu", "Scale something down or add a node."),
    ),
    "no node has so much memory": Situation(
        o.observe(
            o.unschedulable_pod(message="0/3 nodes are available: 1 Insufficient memory, 2 node(s) didn't match Pod's node affinity.")
        ),
        "Ready",
        "False",
        "Unschedulable",
        ("1 Insufficient memory", "Lower the resources of container vllm"),
    ),
    "an evicted Pod whose place another one takes": Situation(
        o.observe(o.pod("vllm-a-x0", phase="Failed", reason="Evicted"), o.starting_pod(), states={X1: COMPILING}),
        "Crashed",
        "True",
        "Evicted",
        ("Pod vllm-a-x0 failed (Evicted)",),
    ),
    "an evicted Pod whose place nobody has taken yet": Situation(
        o.observe(o.pod("vllm-a-x0", phase="Failed", reason="Evicted"), o.starting_pod(), replicas=2, states={X1: COMPILING}),
        "Ready",
        "False",
        "Evicted",
        ("Pod vllm-a-x0 failed (Evicted). Node gpu-node-1 evicted it. See condition Crashed.",),
    ),
    "no node has room for the last replica": Situation(
        o.observe(o.unschedulable_pod(), *(o.ready_pod(f"vllm-a-x{n}") for n in (2, 3)), replicas=3),
        "Ready",
        "False",
        "Unschedulable",
        ("2 of 3 replicas are ready. Pod vllm-a-x1 waits for a node", "Scale something down, add a node, or lower spec.replicas to 2."),
    ),
    "no node has room for the Pod that replaces one": Situation(
        o.observe(o.unschedulable_pod(), o.ready_pod("vllm-a-x2")),
        "Ready",
        "False",
        "Unschedulable",
        ("Scale something down or add a node.",),
    ),
    "the nodes of the plan are gone, and others are there": Situation(
        o.observe(o.unschedulable_pod(message=NO_SUCH_NODE), outcome=planned_for("NVIDIA-H200", today="NVIDIA-B200")),
        "Ready",
        "False",
        "Unschedulable",
        ("The plan is for NVIDIA-H200. To use NVIDIA-B200, request a new plan, which restarts the Pods: `kubectl annotate vllm vllm-a -n",),
    ),
    "the nodes of the plan are taken, and others are free": Situation(
        o.observe(
            o.unschedulable_pod(),
            outcome=replace(planned_for("NVIDIA-H200", today="NVIDIA-B200"), free=FreeGPUs(0, (), is_open=False, is_better=True)),
        ),
        "Ready",
        "False",
        "Unschedulable",
        ("The plan is for NVIDIA-H200, and NVIDIA-B200 is free now. To use NVIDIA-B200, request a new plan",),
    ),
    "the nodes of the plan are taken, and the others too": Situation(
        o.observe(
            o.unschedulable_pod(),
            outcome=replace(planned_for("NVIDIA-H200", today="NVIDIA-B200"), free=FreeGPUs(0, (), is_open=True, is_better=False)),
        ),
        "Ready",
        "False",
        "Unschedulable",
        (
            "has 8 GPUs free (NVIDIA-H200); `kubectl vllm gpus` shows who uses them. As soon as another GPU that "
            "fits is free, the operator takes it. Scale something down or add a node.",
        ),
    ),
    "the nodes of the plan are taken, and the spec does not allow others": Situation(
        o.observe(
            o.unschedulable_pod(),
            spec={"accelerator": {"products": ["NVIDIA-H200"]}},
            outcome=replace(
                planned_for("NVIDIA-H200", today="NVIDIA-H200"), free=FreeGPUs(0, ("NVIDIA-B200",), is_open=True, is_better=False)
            ),
        ),
        "Ready",
        "False",
        "Unschedulable",
        ("shows who uses them. Free now, but not allowed by the spec: NVIDIA-B200. Scale something down, add a node, or allow",),
    ),
    "no node takes the Pod for its taint": Situation(
        o.observe(o.unschedulable_pod(message="0/1 nodes are available: 1 node(s) had untolerated taint(s).")),
        "Ready",
        "False",
        "Unschedulable",
        ("untolerated taint", "spec.podTemplate.spec.tolerations"),
    ),
    "the image is being pulled": Situation(
        o.observe(o.pending_pod("ContainerCreating"), pod_events=(o.event("Pulling"),)), "Ready", "False", "PullingImage", ("v0.20.1",)
    ),
    "the image cannot be pulled": Situation(
        o.observe(o.pending_pod("ErrImagePull", "manifest unknown")),
        "Ready",
        "False",
        "ImagePullFailed",
        ("v0.20.1", "manifest unknown", "spec.engine.image"),
    ),
    "a Secret is missing": Situation(
        o.observe(o.pending_pod("CreateContainerConfigError", 'secret "hf" not found')),
        "Ready",
        "False",
        "ContainerConfigFailed",
        ('secret "hf" not found',),
    ),
    "a volume cannot be mounted": Situation(
        o.observe(o.pending_pod("ContainerCreating"), pod_events=(o.event("FailedMount", "Multi-Attach error"),)),
        "Ready",
        "False",
        "WaitingForVolume",
        ("Multi-Attach error",),
    ),
    "two of four serve, the slower one is named": Situation(
        o.observe(
            *(o.ready_pod(f"vllm-a-x{n}") for n in (3, 4)),
            o.starting_pod(),
            o.starting_pod("vllm-a-x2"),
            replicas=4,
            states={X1: COMPILING, ("vllm-a-x2", 0): replace(COMPILING, stage=Stage.WEIGHT_LOAD, progress=None)},
        ),
        "Ready",
        "False",
        "ReplicasNotReady",
        ("2 of 4 replicas are ready.", "Pod vllm-a-x2: loading weights"),
    ),
    "serving": Situation(o.observe(o.ready_pod()), "Ready", "True", "Serving", ("Everything in the spec is in effect.",)),
    "serving, and where": Situation(
        o.observe(o.ready_pod()), "Available", "True", "Serving", ("The replica serves", "http://vllm-a.models.svc:8000/v1", "DeepSeek-V3")
    ),
    "some replicas serve": Situation(
        o.observe(o.ready_pod(), o.starting_pod("vllm-a-x2"), replicas=2), "Available", "True", "Serving", ("1 of 2 replicas serves model",)
    ),
    "no replica serves": Situation(
        o.observe(o.starting_pod()), "Available", "False", "NotServing", ("No replica is ready, so requests fail.",)
    ),
    "the former spec serves while the new one is refused": Situation(
        o.observe(o.ready_pod(), outcome=o.outcome(accepted=INVALID, planned=UNKNOWN_PLAN, plan=None)),
        "Available",
        "True",
        "Serving",
        ("The replica serves", "with the previous spec."),
    ),
    "a refused spec says that the former one serves": Situation(
        o.observe(o.ready_pod(), outcome=o.outcome(accepted=INVALID, planned=UNKNOWN_PLAN, plan=None)),
        "Ready",
        "False",
        "InvalidSpec",
        ("The previous spec is still served.",),
    ),
    **{
        f"{kind} is not in effect": Situation(
            replace(o.observe(o.ready_pod()), **more),
            "Ready",
            "False",
            reason,
            ("The replica serves, but not everything", f"See condition {see}."),
        )
        for kind, reason, see, more in (
            ("a route", "NotExposed", "Exposed", {"exposure": Exposure((DISABLED,))}),
            ("a NetworkPolicy", "NotIsolated", "Isolated", {"exposure": Exposure((NO_POLICY,))}),
            ("a route without a Gateway", "NotExposed", "Exposed", {"exposure": Exposure(awaits_gateway=True)}),
            ("an autoscaler", "NotAutoscaled", "Autoscaled", {"scaling": (NO_METRICS,)}),
            ("a budget", "NotProtected", "Protected", {"scaling": (NO_BUDGET,)}),
        )
    },
    "several parts are not in effect": Situation(
        replace(o.observe(o.ready_pod()), exposure=Exposure((DISABLED,)), scaling=(NO_METRICS,)),
        "Ready",
        "False",
        "NotExposed",
        ("See conditions Exposed and Autoscaled.",),
    ),
    "an engine without its gateway is available": Situation(
        replace(o.observe(o.ready_pod()), exposure=Exposure((DISABLED,))), "Available", "True", "Serving"
    ),
    "a new version compiles while the only replica serves": Situation(
        o.observe(o.ready_pod(), activity=CacheActivity(step="Primer", held=True)), "Ready", "False", "RollingOut", ("1 replica serves",)
    ),
    "the image of a new version cannot be pulled while the only replica serves": Situation(
        o.observe(
            o.ready_pod(),
            primers=[o.pending_pod("ErrImagePull", "manifest unknown", name="vllm-a-primer-x1")],
            activity=CacheActivity(step="Primer", held=True),
        ),
        "Ready",
        "False",
        "ImagePullFailed",
        ("1 replica serves the previous spec", "Pod vllm-a-primer-x1 cannot pull", "manifest unknown"),
    ),
    "a replica of a new version starts while the only replica serves": Situation(
        o.observe(o.ready_pod(), o.starting_pod("vllm-a-x2"), deployment=o.deployment(1)), "Ready", "False", "RollingOut"
    ),
    "serving the former spec": Situation(
        o.observe(o.ready_pod(), deployment=o.deployment(1, updated=0)),
        "Ready",
        "False",
        "RollingOut",
        ("The replica still runs the previous spec.",),
    ),
    "its node is lost": Situation(
        o.observe(
            o.pod(
                containers=[o.container(o.running(), started=True, ready=True)],
                conditions=[o.condition("ContainersReady", "True"), o.condition("Ready", "False", -20)],
            )
        ),
        "Ready",
        "False",
        "NodeLost",
        ("gpu-node-1",),
    ),
    "readiness fails after serving": Situation(
        o.observe(
            o.pod(
                containers=[o.container(o.running(), started=True)],
                conditions=[o.condition("ContainersReady", "False"), o.condition("Ready", "False", -20)],
            )
        ),
        "Ready",
        "False",
        "NotResponding",
        ("readiness probe",),
    ),
    "recovered": Situation(
        o.observe(o.ready_pod(restarts=1, last=o.terminated()), states={X1: crashed_state()}),
        "Crashed",
        "",
        "",
    ),
    "recovered before its log was read": Situation(
        o.observe(o.ready_pod(restarts=1, ready=-1, last=o.terminated(seconds=-3))),
        "Crashed",
        "",
        "",
    ),
    "a configuration that vLLM refuses in words that nobody knows": Situation(
        o.observe(o.crashed_pod(), states={X1: StartupState(crash=REFUSED_CONFIGURATION)}),
        "Crashed",
        "True",
        "UnknownCrash",
        ("the frobnicator must be even", "What to do: Correct the flag, environment variable or model file"),
    ),
    "an unknown crash is told as soon as its log was read to the end": Situation(
        o.observe(o.crashed_pod(seconds=-1), states={X1: StartupState(crash=REFUSED_CONFIGURATION, is_final=True)}),
        "Crashed",
        "True",
        "UnknownCrash",
        ("the frobnicator must be even",),
    ),
    "an end that an event may explain yet": Situation(
        o.observe(o.crashed_pod(code=137, seconds=-1), states={X1: StartupState(is_final=True)}), "Crashed", "True", "DiagnosingCrash"
    ),
    "nothing crashed": Situation(o.observe(o.ready_pod()), "Crashed", "", ""),
    "no Pod yet": Situation(o.observe(), "Ready", "False", "NotStarted", ("No Pod exists yet",)),
    "one serves, the next Pod is not there yet": Situation(
        o.observe(o.ready_pod(), replicas=2, deployment=o.deployment(1)),
        "Ready",
        "False",
        "ReplicasNotReady",
        ("1 of 2 replicas is ready. 1 more Pod is about to be created.",),
    ),
    "one serves, the next Pods are not there yet: the summary": Situation(
        o.observe(o.ready_pod(), replicas=3, deployment=o.deployment(1)),
        "Ready",
        "False",
        "ReplicasNotReady",
        ("1 of 3 replicas is ready. 2 more Pods are about to be created.",),
    ),
    **{
        f"no image, in the words of {reason}": Situation(
            o.observe(
                o.pending_pod(reason, f'{before}failed to pull and unpack image "{IMAGE}": failed to resolve reference "{IMAGE}": {cause}')
            ),
            "Ready",
            "False",
            "ImagePullFailed",
            (f": {cause}. {advice}",),
        )
        for reason, before, cause, advice in (
            (
                "ErrImagePull",
                "rpc error: code = NotFound desc = ",
                f"{IMAGE}: not found",
                "The registry has no such image or tag, or hides it from those without credentials.",
            ),
            (
                "ImagePullBackOff",
                f'Back-off pulling image "{IMAGE}": ErrImagePull: ',
                f"{IMAGE}: not found",
                "The registry has no such image",
            ),
            (
                "RegistryUnavailable",
                "",
                'failed to do request: Head "https://registry.example.com/v2/vllm": dial tcp: no such host',
                "Check spec.engine.image and spec.engine.version, and that node gpu-node-1 reaches the registry.",
            ),
        )
    },
    "the namespace demands a setting that the Pod lacks": Situation(
        o.observe(deployment=o.deployment(0, conditions=[o.condition("ReplicaFailure", "True", message=NOT_RESTRICTED)])),
        "Ready",
        "False",
        "PodRefused",
        ("must set securityContext.runAsNonRoot=true", "spec.podTemplate.spec.securityContext", "runAsUser"),
    ),
    "a quota forbids Pods": Situation(
        o.observe(
            deployment=o.deployment(0, conditions=[o.condition("ReplicaFailure", "True", message="exceeded quota: gpus, requested: 8")])
        ),
        "Ready",
        "False",
        "PodRefused",
        ("exceeded quota: gpus", "have the quota raised"),
    ),
    **{
        f"Pods are refused: {message[:40]}": Situation(
            o.observe(
                deployment=o.deployment(
                    0, conditions=[o.condition("ReplicaFailure", "True", message=f'pods "a-1" is forbidden: {message}')]
                )
            ),
            "Ready",
            "False",
            "PodRefused",
            (f"cannot create Pods: {message}", advice),
        )
        for message, advice in (
            ("failed quota: cpu: must specify limits.cpu for: vllm", "in the resources of container vllm"),
            ("no PriorityClass with name gold was found", "Create it, or name another one in spec.podTemplate.spec"),
            ('error looking up service account models/a: serviceaccount "a" not found', "Create it, or name another one"),
            ('pod rejected: RuntimeClass "nvidia" not found', "spec.accelerator.runtimeClassName"),
            ("ValidatingAdmissionPolicy 'images' with binding 'all' denied request: image", "ask the owner of this limit or policy"),
        )
    },
    "somebody has paused the rollout": Situation(
        o.observe(o.ready_pod(), deployment=o.deployment(updated=0, paused=True)),
        "Ready",
        "False",
        "RollingOut",
        ("The rollout is paused. To resume it: `kubectl rollout resume deployment vllm-a -n models`.",),
    ),
    "the former Pod still holds the GPU": Situation(
        o.observe({**o.ready_pod(), "metadata": {"name": "vllm-a-x0", "deletionTimestamp": o.stamp(0)}}),
        "Ready",
        "False",
        "NotStarted",
        ("is terminating",),
    ),
    "scaled to zero": Situation(o.observe(replicas=0, deployment=o.deployment(0)), "Ready", "True", "ScaledToZero"),
    "scaled to zero serves nothing": Situation(o.observe(replicas=0, deployment=o.deployment(0)), "Available", "False", "ScaledToZero"),
    "no GPU as asked for": Situation(
        o.observe(outcome=o.outcome(planned=REFUSED, plan=None), deployment=None), "Ready", "False", "NoMatchingGPU", ("NVIDIA-H200",)
    ),
    "a spec that contradicts itself": Situation(
        o.observe(outcome=o.outcome(accepted=INVALID, planned=UNKNOWN_PLAN, plan=None), deployment=None),
        "Ready",
        "False",
        "InvalidSpec",
        ("tensor is 3",),
    ),
    "a refused spec must change": Situation(
        o.observe(outcome=o.outcome(accepted=INVALID, planned=UNKNOWN_PLAN, plan=None), deployment=None),
        "Stalled",
        "True",
        "InvalidSpec",
        ("Waiting does not help: the spec must change. See condition Ready.",),
    ),
    "a new plan crashes at each start of the Pod that compiles it, while the old one serves": Situation(
        o.observe(
            o.ready_pod(),
            primers=[o.crashed_pod("vllm-a-primer-x1", restarts=4)],
            states={("vllm-a-primer-x1", 4): crashed_state()},
        ),
        "Stalled",
        "True",
        "MigUuidNotInteger",
        ("the spec must change",),
    ),
    "a child is refused": Situation(
        o.observe(apply_error="Deployment vllm-a: spec.template.spec.volumes[0]: Invalid value"),
        "Ready",
        "False",
        "ApplyFailed",
        ("Deployment vllm-a", "spec.podTemplate"),
    ),
    "a limit forbids a claim": Situation(
        o.observe(
            apply_error="PersistentVolumeClaim a-cache: maximum storage usage per PersistentVolumeClaim is 10Gi, but request is 20Gi"
        ),
        "Ready",
        "False",
        "ApplyFailed",
        ("request is 20Gi", "spec.cache.volume.size"),
    ),
}


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
def test_a_situation_leads_to_its_condition(situation: Situation) -> None:
    condition = find_condition(report(situation.observation).status.conditions, situation.condition)
    found = (condition.status, condition.reason, condition.message) if condition is not None else ("", "", "")
    assert found[:2] == (situation.status, situation.reason), found
    for words in situation.words:
        assert words in found[2]


def test_backends_that_the_engine_chose_otherwise_are_told_after_many_words_about_the_plan() -> None:
    outcome = o.outcome(planned=Verdict(ConditionStatus.TRUE, "Planned", "Planned for " + "8 GPUs, " * 60))
    told = plan_verdict(report(o.observe(o.starting_pod(), states={X1: SILENT}, outcome=outcome)).status)
    assert told.reason == "Planned"
    assert told.message.startswith("Planned for 8 GPUs")
    assert "instead of DEEPGEMM" in told.message
    assert len(told.message) <= 500


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
def test_each_condition_is_set_when_its_polarity_says_so(situation: Situation) -> None:
    """Normal-true conditions always, or while the spec asks for them; abnormal-true ones while they are True. Each has its generation."""
    status, spec = report(situation.observation).status, situation.observation.resource.spec
    by_type = {condition.type: condition for condition in status.conditions}
    assert set(ALWAYS) <= set(by_type)
    assert {by_type[type].status for type in WHILE_TRUE if type in by_type} <= {ConditionStatus.TRUE}
    asks = {
        EXPOSED: spec.gateway is not None or spec.network_policy is not None,
        AUTOSCALED: spec.autoscaling is not None,
        CACHE_PUBLISHED: spec.cache is not None and spec.cache.artifact is not None and spec.cache.artifact.publish == "WhenPrimed",
    }
    assert {type for type, is_asked in asks.items() if is_asked} <= set(by_type)
    assert set(by_type) <= {*ALWAYS, *WHILE_TRUE, *WHILE_ASKED}
    assert {condition.observed_generation for condition in status.conditions} == {situation.observation.resource.metadata.generation}


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
def test_conditions_are_in_order_and_short(situation: Situation) -> None:
    conditions = report(situation.observation).status.conditions
    types = [condition.type for condition in conditions]
    assert types == [type for type in ORDER if type in types]
    for condition in conditions:
        assert 0 < len(condition.message) <= 500
        assert condition.message == " ".join(condition.message.split())
        assert condition.message[-1] in ".)", condition.message
    assert len({condition.message for condition in conditions}) == len(conditions), "one fact is said once"


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
def test_a_written_report_is_not_written_again(situation: Situation) -> None:
    first = report(situation.observation)
    again = report(o.after(situation.observation, first, seconds=4))
    assert again.status.to_json() == first.status.to_json()
    assert again.events == ()
