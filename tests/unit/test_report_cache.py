"""The caches in a report: the claim that holds them, what the last start did, what the next one finds."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from support import observations as o
from support.verdicts import cache_verdict
from vllm_operator.api.conditions import find_condition
from vllm_operator.api.labels import PRIMED_ANNOTATION_PREFIX
from vllm_operator.api.status import CacheState, CacheStatus, VLLMDeploymentStatus
from vllm_operator.caches.claims import ClaimHolder
from vllm_operator.logs.state import CacheEvidence, Progress, Stage, StartupState
from vllm_operator.status.observation import Observation
from vllm_operator.status.report import Report, report
from vllm_operator.status.starts import read_stages

X1 = ("vllm-a-x1", 0)
CLAIM = "PersistentVolumeClaim"


def served(cache: CacheEvidence, seconds: float = 120) -> StartupState:
    entered = ((Stage.PROCESS_START, o.at(-500)), (Stage.KERNEL_WARMUP, o.at(-480)), (Stage.READY, o.at(seconds - 500)))
    return StartupState(stage=Stage.READY, stage_since=o.at(seconds - 500), started_at=o.at(-500), cache=cache, entered=entered)


def unbound(*events: dict[str, Any], **claim: Any) -> Observation:
    return o.observe(o.unschedulable_pod(), claim=o.claim("Pending", **claim), pod_events=events)


def about_claim(reason: str, message: str) -> dict[str, Any]:
    return o.event(reason, message, name="vllm-a-cache", kind=CLAIM)


@dataclass(frozen=True)
class Case:
    """What is observed, and what is said about the caches: reason and words of the message, and the reason of Ready."""

    observation: Observation
    reason: str = ""
    words: tuple[str, ...] = ()
    ready: str | None = None


UNBOUND = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
NEW_CLAIM = {**o.claim("Pending"), "metadata": {"name": "vllm-a-cache", "uid": "uid-vllm-a-cache", "creationTimestamp": o.stamp(-3)}}
CASES = {
    "the named claim does not exist": Case(
        o.observe(claim=None, claim_name="shared", spec={"cache": {"claimName": "shared"}}),
        "ClaimMissing",
        ("shared", "namespace models", "remove claimName"),
        "ClaimMissing",
    ),
    "our own claim is not there yet": Case(o.observe(claim=None), "", (), "NotStarted"),
    "a new claim is being bound": Case(o.observe(claim=NEW_CLAIM), ""),
    "waiting for the first consumer is normal": Case(
        unbound(about_claim("WaitForFirstConsumer", "waiting for first consumer to be created before binding")), ""
    ),
    "the storage class does not exist": Case(
        unbound(about_claim("ProvisioningFailed", 'storageclass.storage.k8s.io "fsat" not found'), storage_class="fsat"),
        "StorageClassMissing",
        (
            "PersistentVolumeClaim vllm-a-cache gets no volume, because StorageClass fsat does not exist",
            "spec.cache.volume.storageClassName",
        ),
        "StorageClassMissing",
    ),
    "the provisioner fails": Case(
        unbound(about_claim("ProvisioningFailed", "quota of the storage system exceeded")),
        "ClaimNotBound",
        (
            "quota of the storage system exceeded",
            "Check that storage class fast can provision volumes: `kubectl describe pvc vllm-a-cache -n models`",
        ),
        "ClaimNotBound",
    ),
    "no storage class and no default one": Case(
        unbound(about_claim("FailedBinding", "no persistent volumes available and no storage class is set"), storage_class=""),
        "ClaimNotBound",
        ("no storage class is set", "spec.cache.volume.storageClassName"),
    ),
    "not bound and nobody says why": Case(
        o.observe(o.unschedulable_pod(message=UNBOUND), claim=o.claim("Pending")), "ClaimNotBound", ("no volume has been provisioned",)
    ),
    "not bound for lack of a node": Case(unbound(), ready="Unschedulable"),
    "the claim is being deleted": Case(
        o.observe(
            o.ready_pod(), claim=o.terminating(o.claim()), claim_holders={"vllm-a-cache": (ClaimHolder("vllm-a-x1", "vllm-a", False),)}
        ),
        "ClaimTerminating",
        ("vllm-a-cache is being deleted", "New Pods cannot start", "Pod vllm-a-x1 uses it: set spec.replicas to 0."),
    ),
    "a claim that the user named is being deleted": Case(
        o.observe(claim=o.terminating(o.claim()), spec={"cache": {"claimName": "vllm-a-cache"}}),
        "ClaimTerminating",
        (
            "No Pod uses it any more.",
            "create it again, or name another PVC in spec.cache.claimName",
        ),
    ),
    "the volume is lost": Case(o.observe(claim=o.claim("Lost")), "ClaimNotBound", ("lost its volume",)),
    "no claim at all": Case(o.observe(o.ready_pod(), claim=None, claim_name=None), "NoClaim", ("compiles again",), "Serving"),
    "no start yet": Case(o.observe(), ""),
    "a first start builds": Case(o.observe(o.starting_pod(), states={X1: StartupState(cache=CacheEvidence(misses=2))})),
    "a first start has built": Case(o.observe(o.ready_pod(), states={X1: served(CacheEvidence(misses=2))})),
    "a later start loads": Case(o.observe(o.ready_pod(), states={X1: served(CacheEvidence(hits=2), 35)}), ready="Serving"),
    "some artifacts were damaged": Case(
        o.observe(o.ready_pod(), states={X1: served(CacheEvidence(hits=2, misses=1, load_failures=1))}),
        "PartialHit",
        ("1 could not be read and was built again",),
    ),
    "a claim for one node and four replicas": Case(
        o.observe(claim=o.claim(modes=["ReadWriteOnce"]), replicas=4), "", ("ReadWriteOnce", "so all 4 replicas must run on the same one")
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_status_says_what_is_in_the_way_of_the_caches(case: Case) -> None:
    status = report(case.observation).status
    said, ready = cache_verdict(status), find_condition(status.conditions, "Ready")
    assert ready is not None
    assert said.reason == case.reason, said
    assert all(words in said.message for words in case.words), said
    assert case.words or not said.message, "the state and the durations say it"
    assert case.ready in (None, ready.reason)


PRIMED = {**o.claim(), "metadata": {"name": "vllm-a-cache", "annotations": {PRIMED_ANNOTATION_PREFIX + o.KEY: o.stamp(-9000)}}}
FORMER = VLLMDeploymentStatus(cache=CacheStatus(key="other-key", state="Warm", cold_start_seconds=400))
STATES = {
    "nothing has started": (o.observe(), None),
    "the first start is under way": (o.observe(o.starting_pod()), "Compiling"),
    "the first start serves, and its log says nothing about caches": (o.observe(o.ready_pod()), "Filled"),
    "the first start has built them": (o.observe(o.ready_pod(), states={X1: served(CacheEvidence(misses=2))}), "Warm"),
    "another deployment has filled the shared claim": (o.observe(claim=PRIMED), "Filled"),
    "a start has shown before that they are warm": (
        o.observe(resource=o.resource(status=VLLMDeploymentStatus(cache=CacheStatus(key=o.KEY, state="Warm")))),
        "Warm",
    ),
    "a warm cache of another key tells nothing": (o.observe(resource=o.resource(status=FORMER)), None),
    "the former spec serves, with another key": (o.observe(o.ready_pod(), deployment=o.deployment(1, updated=0)), None),
    "without a claim nothing is kept": (o.observe(o.ready_pod(), claim=None, claim_name=None), None),
}


@pytest.mark.parametrize(("observation", "want"), STATES.values(), ids=STATES)
def test_the_state_says_what_the_next_start_finds(observation: Observation, want: CacheState | None) -> None:
    cache = report(observation).status.cache
    assert cache is not None
    assert cache.state == want


def ready_message(written: Report) -> str:
    ready = find_condition(written.status.conditions, "Ready")
    return ready.message.partition(" (See ")[0] if ready is not None else ""


MEASURED = "in a test (4 layers of DeepSeek-V3, vLLM 0.20.1, one H200)"


def test_cold_and_warm_starts_are_measured_apart() -> None:
    cold = o.observe(o.ready_pod(), states={X1: served(CacheEvidence(misses=2), 459)})
    first = report(cold)
    warm = o.observe(o.ready_pod("vllm-a-x2"), states={("vllm-a-x2", 0): served(CacheEvidence(hits=2), 35)})
    second = report(replace(warm, resource=o.resource(status=first.status)))
    cache = second.status.cache
    assert cache is not None
    assert (cache.cold_start_seconds, cache.warm_start_seconds) == (459, 35)
    assert first.status.cache is not None
    assert first.status.cache.cold_stage_seconds is None, "the next start is warm"
    assert (cache.cold_stage_seconds, cache.warm_stage_seconds) == (None, None), "no stage of the last start was long"


def test_each_warm_start_is_reported_with_what_it_saved() -> None:
    first = report(o.observe(o.ready_pod(), states={X1: served(CacheEvidence(misses=2), 459)}))
    assert first.warm_starts == ()
    states = {("vllm-a-x2", 0): served(CacheEvidence(hits=2), 35), ("vllm-a-x3", 0): served(CacheEvidence(hits=2), 59)}
    pods = [o.ready_pod(name) for name, _ in states]
    both = o.observe(*pods, states=states)
    second = report(replace(both, resource=o.resource(status=first.status)))
    assert sorted(seconds for _, seconds in second.warm_starts) == [400, 424]


def test_without_a_measured_cold_start_nothing_is_saved() -> None:
    assert report(o.observe(o.ready_pod(), states={X1: served(CacheEvidence(hits=2), 35)})).warm_starts == ()


STAGES = {
    "both starts": (
        CacheStatus(cold_stage_seconds={"KernelWarmup": 292, "WeightLoad": 42}, warm_stage_seconds={"WeightLoad": 14}),
        ({"WeightLoad": 42, "KernelWarmup": 292}, {"WeightLoad": 14}),
    ),
    "nothing is known": (CacheStatus(), ({}, {})),
    "what somebody else wrote is left out": (
        CacheStatus(cold_stage_seconds={"": 1, "KernelWarmup": 7, "Nap": 9}),
        ({"KernelWarmup": 7}, {}),
    ),
}


@pytest.mark.parametrize(("cache", "want"), STAGES.values(), ids=STAGES)
def test_durations_are_read_from_the_status(cache: CacheStatus, want: tuple[dict[str, int], dict[str, int]]) -> None:
    assert read_stages(cache) == want


def test_notes_are_not_repeated_when_the_log_of_the_last_start_is_gone() -> None:
    state = served(CacheEvidence(hits=2), 35)
    pods = [o.ready_pod("vllm-a-x1"), o.ready_pod("vllm-a-x2")]
    observation = o.observe(*pods, states={X1: state}, claim=o.claim(modes=["ReadWriteOnce"]), replicas=2)
    first = report(observation).status
    said = cache_verdict(first)
    assert "so both replicas must run on the same one" in said.message
    again = report(replace(o.following(observation, first), startups={})).status
    assert cache_verdict(again) == said


def test_measures_of_another_key_are_dropped() -> None:
    cache = report(o.observe(resource=o.resource(status=FORMER))).status.cache
    assert cache is not None
    assert cache.cold_start_seconds is None


def test_what_a_stage_took_before_says_what_to_expect() -> None:
    cold, warm = {"TorchCompile": 152}, {"TorchCompile": 4}
    cache = CacheStatus(key=o.KEY, state="Compiling", cold_stage_seconds=cold, warm_stage_seconds=warm)
    status = VLLMDeploymentStatus(cache=cache)
    state = StartupState(stage=Stage.TORCH_COMPILE, stage_since=o.at(-5), cache=CacheEvidence(misses=1))
    seen = o.observe(o.starting_pod(), states={X1: state}, resource=o.resource(status=status))
    written = report(seen)
    startup = written.status.startup
    assert startup is not None
    said = "compiling with torch.compile since 14:09:55 UTC, expected to finish around 14:12 UTC (about 2 min 30 s in the last start)."
    assert ready_message(written) == f"Pod vllm-a-x1: {said}"
    assert startup.eta_seconds == 140
    later = report(o.after(seen, written, seconds=100)).status.startup
    assert later == startup, "what is left is as of the time of writing, and nothing new is there to write"


def test_a_stage_that_lasts_longer_than_it_should_has_no_time_left_to_tell() -> None:
    cache = CacheStatus(key=o.KEY, state="Compiling", cold_stage_seconds={"TorchCompile": 152})
    status = VLLMDeploymentStatus(cache=cache)
    state = StartupState(stage=Stage.TORCH_COMPILE, stage_since=o.at(-200), last_line_at=o.at(-1), cache=CacheEvidence(misses=1))
    written = report(o.observe(o.starting_pod(), states={X1: state}, resource=o.resource(status=status)))
    assert written.status.startup is not None
    assert written.status.startup.eta_seconds is None
    assert ready_message(written).endswith("expected to finish around 14:09 UTC (about 2 min 30 s in the last start).")


def test_a_count_that_has_fallen_silent_leaves_the_time_left_to_what_is_known_of_the_stage() -> None:
    silent = StartupState(
        stage=Stage.KERNEL_WARMUP,
        progress=Progress(45, 51, "JIT kernels", eta_seconds=2),
        stage_since=o.at(-60),
        last_line_at=o.at(-50),
        observed_backends=(("MoE", "FLASHINFER_CUTLASS"),),
    )
    written = report(o.observe(o.starting_pod(), states={X1: silent}))
    startup = written.status.startup
    assert startup is not None
    assert (startup.completed, startup.total, startup.eta_seconds) == (45, 51, 230)
    assert f"I{MEASURED[1:]}, this stage took 4 min 50 s." in ready_message(written)


@pytest.mark.parametrize(
    ("stage", "cache", "seconds", "said"),
    [
        (Stage.TORCH_COMPILE, None, 30, f"; this stage took 35 s {MEASURED}"),
        (Stage.TORCH_COMPILE, "Warm", None, ""),
        (Stage.CONFIGURATION, "Warm", 5, f"; this stage took 10 s {MEASURED}"),
        (Stage.SERVER_START, None, None, ""),
    ],
)
def test_a_stage_that_was_never_seen_with_this_key_is_reported_from_what_was_measured(
    stage: Stage, cache: CacheState | None, seconds: int | None, said: str
) -> None:
    status = VLLMDeploymentStatus(cache=CacheStatus(key=o.KEY, state=cache)) if cache else None
    states = {X1: StartupState(stage=stage, stage_since=o.at(-5))}
    written = report(o.observe(o.starting_pod(), states=states, resource=o.resource(status=status)))
    assert written.status.startup is not None
    assert ready_message(written).endswith(f"since 14:09:55 UTC{said}.")
    assert written.status.startup.eta_seconds == seconds
