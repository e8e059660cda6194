"""What is done about a crash: suggested, applied, given up, stopped; and how that is carried out."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import observations as o
from vllm_operator.api.plan import Plan, PlannedArgument
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import ChangeKind, CrashStatus, RemediationStatus, RemedyChange
from vllm_operator.catalog.startup import load_remedies, load_startup
from vllm_operator.catalog.versions import load_versions
from vllm_operator.logs.state import Stage
from vllm_operator.planning.pinning import digest_of_spec
from vllm_operator.pods.view import Phase
from vllm_operator.status.crashes import Finding
from vllm_operator.status.observation import PodFacts
from vllm_operator.status.reaction import decide_about_crash
from vllm_operator.status.remedies import (
    Engine,
    carried_out,
    exact_changes,
    patch_command,
    patch_operations,
    remediation_in_force,
    remedied,
    without_suggestion,
)

SIGNATURES = {signature.id: signature for signature in load_startup().signatures}
A_MINUTE_AGO = o.at(-60)
TOO_LONG = {"requested": "131072", "needed": "16.00", "available": "0.68", "estimated": "5568"}


def resource(status: RemediationStatus | None = None, *, generation: int = 3, **spec: Any) -> VLLMDeployment:
    made = o.resource(**spec)
    metadata = made.metadata.model_copy(update={"generation": generation})
    return made.model_copy(update={"metadata": metadata, "status": made.status.model_copy(update={"remediation": status})})


def auto(**more: Any) -> dict[str, Any]:
    return {"remediation": {"mode": "Auto", **more}}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A crash of a Pod after some restarts, with what its log told, while some replicas serve."""

    signature: str
    pod: str = "vllm-a-x1"
    restarts: int = 0
    now: datetime = o.NOW
    captures: Mapping[str, str] = field(default_factory=lambda: TOO_LONG)
    during_start: bool = True
    created_at: datetime | None = A_MINUTE_AGO
    serving: int = 0

    @property
    def finding(self) -> Finding:
        view = PodFacts(
            name=self.pod,
            uid=self.pod,
            phase=Phase.CRASHED,
            created_at=self.created_at,
            state=None,
            stage=Stage.PROCESS_START,
            stall_check=None,
            cache_key="",
            is_current=True,
        )
        return Finding(
            view=view,
            restarts=self.restarts,
            time=None,
            in_force=True,
            reportable_at=None,
            status=CrashStatus(signature=self.signature, pod=self.pod, restarts=self.restarts or None),
            captures=tuple(self.captures.items()),
            during_start=self.during_start,
        )


def case(signature: str = "MaxModelLenExceedsKvCache", **changes: Any) -> Case:
    return Case(signature=signature, **changes)


def decide_for(what: Case, made: VLLMDeployment, plan: Plan) -> RemediationStatus:
    serving = [o.ready_pod(f"vllm-a-r{number}") for number in range(what.serving)]
    return decide_about_crash(o.observe(*serving, resource=made, now=what.now), plan, what.finding)


def decide(what: Case, status: RemediationStatus | None = None, plan: Plan | None = None, **spec: Any) -> RemediationStatus:
    return decide_for(what, resource(status, **spec), plan or o.plan())


def scaled(decided: RemediationStatus) -> VLLMDeployment:
    """The object with what was decided, one generation later, with the plan of before: somebody has scaled it."""
    before = resource(decided)
    plan = o.plan().model_copy(update={"observed_generation": 3, "spec_digest": digest_of_spec(before.spec)})
    after = resource(decided, generation=4, replicas=7)
    return after.with_pinned(plan)


def test_scaling_undoes_no_remedy_and_starts_what_was_stopped() -> None:
    applied = decide(case(), **auto())
    assert applied.state == "Applied"
    assert remediation_in_force(scaled(applied)) == applied
    assert remediation_in_force(scaled(applied.model_copy(update={"state": "Stopped"}))) is None
    assert remediation_in_force(resource(applied, generation=4)) is None


def test_a_time_that_somebody_has_edited_by_hand_into_one_that_does_not_exist_stops_nothing() -> None:
    applied = decide(case(), **auto())
    [remedy] = applied.applied
    edited = applied.model_copy(update={"applied": [remedy.model_copy(update={"since": "2026-99-99T99:99:99Z"})]})
    assert decide(later(case()), edited, **auto()) == edited


def changed(decided: RemediationStatus) -> list[tuple[str, str | None]]:
    return [(change.name, change.value) for remedy in decided.applied for change in remedy.changes]


def later(what: Case, pod: str = "vllm-a-x2", **changes: Any) -> Case:
    """The crash of a Pod that was created after the remedy."""
    return replace(what, pod=pod, created_at=o.at(30), now=o.at(60), **changes)


# suggest


def test_a_suggestion_is_a_command_with_the_numbers_of_the_log() -> None:
    decided = decide(case())
    assert decided.state == "Suggested"
    assert decided.applied == []
    assert decided.command is not None
    assert decided.command.startswith("kubectl patch vllm vllm-a -n models --type=json -p ")
    assert '"value":"5568"' in decided.command


def test_nothing_is_suggested_where_the_mode_is_off() -> None:
    decided = decide(case(), remediation={"mode": "Off"})
    assert (decided.state, decided.command) == (None, None)


@pytest.mark.parametrize(
    ("signature", "why"),
    [
        ("NotEnoughGpus", "the flag stands for a field of the spec"),
        ("HfGatedRepo", "a person must fill in the value"),
        ("GpuUuidNotInteger", "the value is a range"),
        ("NetworkInterfaceMisdetected", "one of its values is no plain text"),
    ],
)
def test_what_cannot_be_written_down_exactly_is_no_command(signature: str, why: str) -> None:
    decided = decide(case(signature, captures={}))
    assert decided.command is None or "fieldRef" not in decided.command, why
    assert decided.applied == []


def test_a_value_that_was_not_captured_is_not_made_up() -> None:
    assert decide(case(captures={}), **auto()).state is None


@pytest.mark.parametrize("value", ["5568; rm -rf /", "$(reboot)", "5568\n--port 1", "<5568>", "", "{{ 7*7 }}"])
def test_what_a_log_says_is_not_passed_on_unless_it_is_plain(value: str) -> None:
    assert decide(case(captures=TOO_LONG | {"estimated": value}), **auto()).applied == []


def test_what_this_version_does_not_know_is_not_suggested() -> None:
    old = o.plan(engine_version="0.11.0")
    assert decide(case("AttentionSinksUnsupported", captures={}), plan=old).command is None
    assert decide(case("AttentionSinksUnsupported", captures={}), plan=o.plan(engine_version=None)).command is None


# apply


def test_a_safe_remedy_is_applied_and_recorded() -> None:
    decided = decide(case(), **auto())
    [remedy] = decided.applied
    assert (decided.state, changed(decided)) == ("Applied", [("--max-model-len", "5568")])
    assert (remedy.attempt, remedy.signature, remedy.since) == (1, "MaxModelLenExceedsKvCache", o.stamp(0))
    assert "vllm-a-x1" in remedy.reason
    assert decided.observed_generation == 3


REFUSED: Mapping[str, tuple[Case, dict[str, Any], Plan | None]] = {
    "the mode is Suggest": (case(), {}, None),
    "the engine had started": (case(during_start=False), auto(), None),
    "the remedy is not marked safe": (case("NoValidAttentionBackend", captures={}), auto(), None),
    "the version is outside of the gate": (case("CustomAllReduceFailed", captures={}), auto(), o.plan(engine_version="0.24.0")),
    "the version is unknown": (case(), auto(), o.plan(engine_version=None)),
    "the GPU is outside of the gate": (case("DeepGemmUnknownRecipe", captures={}), auto(), o.plan(engine_version="0.24.0")),
    "the user sets the flag": (case(), auto() | {"engine": {"args": [{"name": "max_model_len", "value": "9000"}]}}, None),
    "the user replaces the command line": (
        case(),
        auto() | {"pod_template": {"spec": {"containers": [{"name": "vllm", "args": ["--x"]}]}}},
        None,
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_nothing_is_applied_where(why: str) -> None:
    what, spec, plan = REFUSED[why]
    spec = {("podTemplate" if key == "pod_template" else key): value for key, value in spec.items()}
    assert decide(what, plan=plan, **spec).applied == []


def test_looking_twice_decides_once() -> None:
    first = decide(case(), **auto())
    assert decide(case(now=o.at(5)), first, **auto()) == first
    assert decide(case(during_start=False, captures={}), first, **auto()) == first


def test_a_pod_from_before_the_remedy_says_nothing_about_it() -> None:
    first = decide(case(), **auto())
    assert decide(case(restarts=1, now=o.at(20)), first, **auto()) == first
    assert decide(case(restarts=1, created_at=None), first, **auto()) == first


def test_the_same_crash_after_its_remedy_ends_the_trying() -> None:
    first = decide(case(), **auto())
    again = decide(later(case()), first, **auto(max_attempts=5))
    assert again.state == "GaveUp"
    assert changed(again) == [("--max-model-len", "5568")]
    assert "did not help" in (again.message or "")
    other = decide(later(case("NoKvCacheMemory"), pod="vllm-a-x3"), again, **auto(max_attempts=5))
    assert (other.state, len(other.applied)) == ("GaveUp", 1)


def test_another_crash_gets_its_own_remedy_up_to_the_limit() -> None:
    first = decide(case(), **auto())
    second = decide(later(case("NoKvCacheMemory")), first, **auto())
    assert changed(second) == [("--max-model-len", "5568"), ("--gpu-memory-utilization", "0.95")]
    third = replace(case("SamplerWarmupOom", captures={"requests": "256"}), pod="vllm-a-x3", created_at=o.at(120))
    assert decide(third, second, **auto()).state == "GaveUp"
    allowed = decide(third, second, **auto(max_attempts=3))
    assert changed(allowed)[-1] == ("--max-num-seqs", "128")


def test_a_change_of_the_spec_forgets_everything() -> None:
    first = decide(case(), **auto())
    moved = resource(first, generation=4, **auto())
    assert carried_out(moved, o.plan()) == (moved, o.plan())
    assert without_suggestion(moved) is None


def test_once_it_serves_only_what_is_in_force_remains() -> None:
    first = decide(case(), **auto())
    kept = without_suggestion(resource(first, **auto()))
    assert kept is not None
    assert (kept.state, kept.applied, kept.command, kept.pod) == ("Applied", first.applied, None, None)
    assert without_suggestion(resource(decide(case()))) is None


# carry out


def test_remedies_lie_on_top_of_the_plan_and_leave_it_as_it_is() -> None:
    plan = o.plan(args=[PlannedArgument(name="--max-model-len", value="9000"), PlannedArgument(name="--moe-backend", value="triton")])
    drop = RemedyChange(kind="Argument", action="Remove", name="--moe-backend")
    decided = decide(case(), plan=plan, **auto())
    both = decided.model_copy(update={"applied": [decided.applied[0].model_copy(update={"changes": [*decided.applied[0].changes, drop]})]})
    rendered = remedied(plan, both)
    assert [(argument.name, argument.value) for argument in rendered.args] == [("--max-model-len", "5568")]
    assert plan.args[0].value == "9000"


def test_a_hopeless_crash_frees_the_gpus_if_the_policy_says_so() -> None:
    policy: dict[str, Any] = {"remediation": {"onUnrecoverableCrash": "ScaleToZero"}}
    unrecoverable = case("MigUuidNotInteger", captures={}, restarts=4, during_start=False)
    stopped = decide(unrecoverable, **policy)
    assert stopped.state == "Stopped"
    assert carried_out(resource(stopped, **policy), o.plan())[0].spec.replicas == 0
    assert carried_out(resource(stopped, generation=4, **policy), o.plan())[0].spec.replicas == 1
    assert decide(replace(unrecoverable, restarts=3), **policy).state != "Stopped"
    assert decide(replace(unrecoverable, serving=1), **policy).state != "Stopped"
    assert decide(unrecoverable).state != "Stopped"
    retryable = replace(unrecoverable, signature="GpuMemoryInUse")
    assert decide(retryable, **policy).state != "Stopped"


def test_a_remedy_with_an_impossible_time_is_kept_and_nothing_is_tried_over_it() -> None:
    applied = decide(case(), **auto())
    impossible = [remedy.model_copy(update={"since": "2026-13-45T99:99:99Z"}) for remedy in applied.applied]
    kept = applied.model_copy(update={"applied": impossible})
    assert decide(case(restarts=1), kept, **auto()) == kept


# the command


def change(name: str, value: str | None = "1", kind: ChangeKind = "Argument", action: Literal["Set", "Remove"] = "Set") -> RemedyChange:
    return RemedyChange(kind=kind, action=action, name=name, value=value)


PATCHES: Mapping[str, tuple[dict[str, Any], list[RemedyChange], list[dict[str, Any]]]] = {
    "no engine yet": (
        {},
        [change("--max-model-len", "5")],
        [
            {"op": "test", "path": "/spec/engine", "value": None},
            {"op": "add", "path": "/spec/engine", "value": {"args": [{"name": "--max-model-len", "value": "5"}]}},
        ],
    ),
    "no list yet": (
        {"engine": {"version": "0.20.1"}},
        [change("NCCL_NVLS_ENABLE", "0", "Variable")],
        [
            {"op": "test", "path": "/spec/engine/env", "value": None},
            {"op": "add", "path": "/spec/engine/env", "value": [{"name": "NCCL_NVLS_ENABLE", "value": "0"}]},
        ],
    ),
    "beside others": (
        {"engine": {"args": [{"name": "seed", "value": "1"}]}},
        [change("--enforce-eager", None)],
        [{"op": "add", "path": "/spec/engine/args/-", "value": {"name": "--enforce-eager"}}],
    ),
    "in the place of the user's, as the user spells it": (
        {"engine": {"args": [{"name": "seed", "value": "1"}, {"name": "max_model_len", "value": "9"}]}},
        [change("--max-model-len", "5")],
        [
            {"op": "test", "path": "/spec/engine/args/1/name", "value": "max_model_len"},
            {"op": "replace", "path": "/spec/engine/args/1", "value": {"name": "max_model_len", "value": "5"}},
        ],
    ),
    "removals from the end": (
        {"engine": {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]}},
        [change(name, None, "Variable", "Remove") for name in ("A", "B")],
        [
            {"op": "test", "path": "/spec/engine/env/1/name", "value": "B"},
            {"op": "remove", "path": "/spec/engine/env/1"},
            {"op": "test", "path": "/spec/engine/env/0/name", "value": "A"},
            {"op": "remove", "path": "/spec/engine/env/0"},
        ],
    ),
    "nothing of the user's to remove": ({}, [change("--moe-backend", None, action="Remove")], []),
}


@pytest.mark.parametrize("name", PATCHES)
def test_a_change_is_written_as_a_patch_of_lists(name: str) -> None:
    spec, changes, want = PATCHES[name]
    made = resource(**spec)
    assert patch_operations(made, changes) == want
    command = patch_command(made, changes)
    assert (command is None) == (not want)
    if command is not None:
        assert json.loads(shlex.split(command)[-1]) == want


def test_what_is_in_force_already_is_no_change() -> None:
    engine = Engine.of(resource(engine={"args": [{"name": "--max-model-len", "value": "5568"}]}).spec, o.plan(), load_versions())
    assert exact_changes(engine, SIGNATURES["MaxModelLenExceedsKvCache"], TOO_LONG) == ()


def test_the_time_of_a_remedy_is_a_time_that_can_be_read_again() -> None:
    first = decide(case(), **auto())
    pod_made_a_second_later = o.NOW + timedelta(seconds=1)
    again = decide(replace(later(case()), created_at=pod_made_a_second_later), first, **auto())
    assert again.state == "GaveUp"


# hostile sequences

KNOWN = sorted(load_remedies())
CRASHES = st.sampled_from([*KNOWN, "NoValidAttentionBackend", "CudaOutOfMemory"])
CAPTURED = {**TOO_LONG, "requests": "256", "tokens": "8192", "free": "10.0", "total": "80.0", "utilization": "0.9"}


@dataclass(frozen=True)
class Blow:
    """A crash: in a new Pod or in the one before, with its log read or not; before it the spec may have been changed."""

    signature: str
    in_new_pod: bool
    has_log: bool
    spec_changes: bool


BLOWS = st.lists(st.builds(Blow, CRASHES, st.booleans(), st.booleans(), st.integers(0, 9).map(lambda n: n == 0)), max_size=25)


@given(BLOWS, st.integers(1, 5), st.sampled_from(["0.15.1", "0.20.1", "0.33.0"]), st.sampled_from(["sm_75", "sm_90", "sm_100"]))
def test_no_sequence_of_crashes_goes_round_in_circles(blows: list[Blow], most: int, version: str, architecture: str) -> None:
    plan, status = o.plan(engine_version=version, architecture=architecture), None
    generation, pod, restarts, created = 3, 0, 0, 0
    for number, blow in enumerate(blows):
        generation += blow.spec_changes
        if blow.in_new_pod:
            pod, restarts, created = pod + 1, 0, 60 * number + 30
        else:
            restarts += 1
        what = case(
            blow.signature,
            pod=f"vllm-a-x{pod}",
            restarts=restarts,
            now=o.at(60 * number + 50),
            captures=CAPTURED,
            during_start=blow.has_log,
            created_at=o.at(created),
        )
        spec = auto(maxAttempts=most) | {"engine": {"args": [{"name": "max-num-seqs", "value": "8"}]}}
        before = remediation_in_force(resource(status, generation=generation, **spec))
        status = decide_for(what, resource(status, generation=generation, **spec), plan)
        applied = [remedy.signature for remedy in status.applied]
        assert len(applied) <= most
        assert len(set(applied)) == len(applied), "no remedy is tried twice"
        assert all(name != "--max-num-seqs" for name, _ in changed(status)), "what the user sets stays"
        if before is not None:
            assert status.applied[: len(before.applied)] == before.applied, "what was done is not rewritten"
            assert len(status.applied) <= len(before.applied) + 1, "one at a time"
            if before.state == "GaveUp":
                assert (status.state, status.applied) == ("GaveUp", before.applied)
        again = decide_for(what, resource(status, generation=generation, **spec), plan)
        assert again.applied == status.applied, "looking twice does nothing twice"
