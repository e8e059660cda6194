"""The progress of the rollout: whether it proceeds, is stuck or complete, and the state of the Pod that is furthest behind.

Why the scheduler or an admission plugin refuses a Pod is available as text only: the message of the Pod condition PodScheduled, and of the
Deployment condition ReplicaFailure.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from vllm_operator.api import labels, reading
from vllm_operator.api.conditions import FALSE, TRUE, Reason, Verdict
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import LOG_OF_GROUPS, is_of_groups
from vllm_operator.api.spec import AcceleratorSpec
from vllm_operator.api.status import RemediationStatus, StartupStatus
from vllm_operator.caches.context import Gate
from vllm_operator.caches.measurement import MIN_PAIRS
from vllm_operator.inventory.devices import requested_devices
from vllm_operator.inventory.pools import GPU_TAINT, Taint
from vllm_operator.logs.ranks import GroupState
from vllm_operator.planning.outcome import compare
from vllm_operator.pods.view import Phase, PodView
from vllm_operator.status.claims import one_node, space_verdict, wrong_claim
from vllm_operator.status.knowledge import load_messages
from vllm_operator.status.observation import Observation, PodFacts
from vllm_operator.status.reaction import stall_restarts_left
from vllm_operator.status.remedies import remediation_in_force
from vllm_operator.status.startup import describe, describe_fetching

_PROCEEDS = frozenset({Phase.WAITING_FOR_VOLUME, Phase.IMAGE_PULLING, Phase.SCHEDULING, Phase.CREATING, Phase.STARTING})


def progress(observed: Observation, startup: StartupStatus | None, remediation: RemediationStatus | None) -> Verdict:
    """Judge the progress of the rollout: True if it proceeds or is complete. `startup` and `remediation` are parts of the new status."""
    say = observed.messages.say
    if (fetching := describe_fetching(observed)) is not None:
        return fetching
    if observed.unhealthy:
        waits = observed.unhealthy[0].phase in (Phase.WAITING_FOR_VOLUME, Phase.SCHEDULING)
        return (wrong_claim(observed) if waits else None) or _of_pods(observed, startup)
    if (refusal := observed.outcome.refusal) is not None:
        return Verdict(refusal.status, Reason.NOT_PLANNED, "")
    if (held := observed.activity.rollout) is not None:
        return Verdict(FALSE, Reason.ROLLOUT_HELD, say("rollout.held", held=held, serving=observed.serving))
    if (gate := observed.activity.gate) is not None and gate.is_held:
        starts = [pod_text(observed, view, startup) for view in observed.primer_facts if view.phase not in (Phase.READY, Phase.TERMINATING)]
        return _measuring(observed, gate, next(iter(starts), ""))
    if (short := space_verdict(observed)) is not None:
        return short
    if observed.wanted == 0:
        return Verdict(TRUE, Reason.SCALED_TO_ZERO, "")
    if remediation is not None and remediation.state == "Stopped":
        return Verdict(FALSE, Reason.STOPPED, say("starting.stopped", text=remediation.message))
    if observed.serving >= observed.wanted:
        return _all_serve(observed)
    if observed.activity.step == "Elsewhere":
        return Verdict(TRUE, Reason.WAITING_FOR_CACHES, say("starting.elsewhere", holder=observed.activity.holder))
    if failure := observed.rollout.failure:
        advice = say(refusal_advice(failure), namespace=observed.resource.metadata.namespace)
        return Verdict(FALSE, Reason.POD_REFUSED, say("starting.refused", message=failure, advice=advice))
    if observed.activity.limit is not None and observed.serving >= observed.activity.limit:
        volume = one_node(observed) or {}
        return Verdict(FALSE, Reason.UNSCHEDULABLE, say("starting.one_node", serving=observed.serving, wanted=observed.wanted, **volume))
    if observed.serving > 0:
        return Verdict(TRUE, Reason.STARTING, say("starting.more", serving=observed.serving, wanted=observed.wanted))
    if observed.pod_facts:
        return Verdict(TRUE, Reason.NOT_STARTED, say("pod.Terminating", pod=observed.pod_facts[0]))
    controller_log = LOG_OF_GROUPS if is_of_groups(observed.deployment) else ""
    return Verdict(TRUE, Reason.NOT_STARTED, say("starting.no_pod", controller_log=controller_log))


def pod_text(observed: Observation, view: PodFacts, startup: StartupStatus | None = None) -> str:
    """Describe the state of one Pod, and the fix."""
    text, state = _state_text(observed, view, startup), view.state
    if view.group is not None and view.group.diagnosis.state is not GroupState.CRASHED:
        text = observed.messages.fit("pods.of_group", shrink=("text",), text=text, pod=view, group=view.group, controller_log=LOG_OF_GROUPS)
    if state is None or not state.skipped_seconds:
        return text
    return observed.messages.fit("pods.log_skipped", shrink=("text",), text=text, pod=view, seconds=state.skipped_seconds)


def _state_text(observed: Observation, view: PodFacts, startup: StartupStatus | None) -> str:
    check = view.stall_check
    if check is not None and check.stalled:
        left, decided = stall_restarts_left(observed), remediation_in_force(observed.resource)
        done = "restarting" if left or (decided and view.start_name in decided.stalled_pods) else "left" if left == 0 else ""
        facts: dict[str, Any] = {"since": check.since, "limit_seconds": check.limit, "done": done}
        return observed.messages.fit("pod.Stalled", shrink=("text",), pod=view, text=describe(observed, view, briefly=True), **facts)
    text = describe(observed, view, startup)
    facts = _unschedulable(observed, view) if view.phase is Phase.UNSCHEDULABLE else {"on_hang": observed.plan and observed.plan.on_hang}
    return observed.messages.say(f"pod.{view.phase}", pod=view, text=text, **facts)


def _unschedulable(observed: Observation, view: PodFacts) -> dict[str, Any]:
    outcome, say = observed.outcome, observed.messages.say
    if outcome.plan is not None and not view.has_caches_of(outcome.plan):
        outcome = replace(outcome, plan=None, fresh=None, free=None)  # a Pod that the rollout is going to replace
    plan, today = outcome.plan, outcome.fresh.plan if outcome.fresh is not None else None
    gpu = plan.product if plan is not None else None
    found, free, wanted = find_untolerated_taints(observed, view), outcome.free, observed.resource.spec.accelerator or AcceleratorSpec()
    gpu_today = today.product if gpu and today and today.product != gpu and (free is None or free.is_better) else None
    ending = _ending(observed, plan) if plan is not None else []
    ends = (reading.text(pod.manifest, "metadata", "deletionTimestamp") for pod in ending)
    advice = say(
        unschedulable_advice(view.message or "", found, has_other_plan=gpu_today is not None and not ending),
        untolerated=found,
        tainted=say("unschedulable.tainted", untolerated=found) if found is not None else "",
        plan=plan,
        requests=reading.mapping(reading.named(view.manifest, labels.CONTAINER, "spec", "containers", key="name"), "resources", "requests"),
        serving=observed.serving if observed.serving < observed.wanted else 0,  # during a rollout, there may be one replica more
        ending=ending,
        until=None if observed.draining else reading.moment(max(ends, default="")),
        gpu_today=gpu_today,
        free=free,
        moves=free is not None and free.is_open and not wanted.uuids and len(wanted.products or ()) != 1,
        is_limited=wanted.is_limited,
        metadata=observed.resource.metadata,
    )
    return {"advice": advice, "is_brief": found is not None}


def _ending(observed: Observation, plan: Plan) -> list[PodView]:
    """Return the object's own Pods whose end makes room for those that wait; empty if they have too few of the devices."""
    nodes = observed.inventory.nodes_of(plan.resource, plan.architecture, plan.product) if observed.inventory is not None else ()
    own = (pod for pod in (*observed.pods, *observed.followers, *observed.primers) if pod.node in nodes)
    ending = [pod for pod in own if pod.phase is Phase.TERMINATING]
    needed = plan.count * sum(view.phase is Phase.UNSCHEDULABLE for view in (*observed.pod_facts, *observed.primer_facts))
    return ending if sum(requested_devices(pod.manifest).get(plan.resource, 0) for pod in ending) >= needed else []


def partly(observed: Observation, text: str) -> str:
    """Prefix a text with the number of ready replicas, if some are ready."""
    if observed.serving == 0 or observed.wanted <= 1:
        return text
    return observed.messages.fit("pods.partly", shrink=("text",), serving=observed.serving, wanted=observed.wanted, text=text)


def _of_pods(observed: Observation, startup: StartupStatus | None) -> Verdict:
    worst, *others = observed.unhealthy
    text = pod_text(observed, worst, startup)
    if others:
        text = observed.messages.fit("pods.others", shrink=("text",), text=text, others=len(others))
    # others wait until the first Pod has filled the cache
    waiting = observed.wanted - observed.replicas
    if waiting > 0 and observed.activity.step == "FirstPod":
        text = observed.messages.fit("starting.first_pod", shrink=("text",), text=text, waiting=waiting)
    if worst.is_stalled:
        return Verdict(FALSE, Reason.NO_PROGRESS, partly(observed, text))
    return Verdict(TRUE if worst.phase in _PROCEEDS else FALSE, observed.messages.reasons[worst.phase], partly(observed, text))


def _all_serve(observed: Observation) -> Verdict:
    say, activity, rollout = observed.messages.say, observed.activity, observed.rollout
    if activity.held and activity.unowned_claims:
        return Verdict(FALSE, Reason.CLAIM_NAME_TAKEN, say("starting.claim_not_owned", claims=activity.unowned_claims))
    if activity.held:
        # no time ends this wait, unlike that for a GPU
        broken = next((view for view in observed.primer_facts if view.phase in (Phase.IMAGE_PULL_FAILED, Phase.CONTAINER_FAILED)), None)
        text = pod_text(observed, broken) if broken else ""
        said = observed.messages.fit("starting.held", shrink=("text",), serving=observed.serving, text=text)
        return Verdict(FALSE, observed.messages.reasons[broken.phase], said) if broken else Verdict(TRUE, Reason.ROLLING_OUT, said)
    if not rollout.is_complete:
        namespace = observed.resource.metadata.namespace
        return Verdict(TRUE, Reason.ROLLING_OUT, say("starting.rollout", rollout=rollout, wanted=observed.wanted, namespace=namespace))
    return Verdict(TRUE, Reason.STARTED, "")


def _measuring(observed: Observation, gate: Gate, start: str) -> Verdict:
    """Judge a rollout that is measured, or held because of what was measured. `start` tells of the Pod that measures, or is empty."""
    say, record, plan = observed.messages.say, gate.record, observed.outcome.plan
    if record.skipped:
        return Verdict(TRUE, Reason.MEASURING, say("event.measured", skipped=record.skipped))
    if gate.run_name:
        done = len(record.before) + len(record.after)
        facts: dict[str, Any] = {"run": done + 1, "runs": max(2 * MIN_PAIRS, done + 1), "is_new": gate.is_new, "text": start}
        return Verdict(TRUE, Reason.MEASURING, say("gate.running", serving=observed.serving, **facts))
    differences = compare(observed.serving_plan, plan) if observed.serving_plan is not None and plan is not None else []
    said = say(
        "gate.held",
        measured=record,
        worse=[figure.text for figure in sorted(record.worse, key=lambda figure: figure.limit / figure.loss)[:2]],
        differences=[each.subject[:1].lower() + each.subject[1:] for each in differences],
        serving=observed.serving,
    )
    return Verdict(FALSE, Reason.ROLLOUT_HELD, said)


@dataclass(frozen=True, slots=True)
class UntoleratedTaints:
    """The taints on the nodes with the fewest untolerated taints. `node` is one of `nodes` nodes with exactly these."""

    node: str
    nodes: int
    taints: tuple[Taint, ...]


def find_untolerated_taints(observed: Observation, view: PodFacts) -> UntoleratedTaints | None:
    """Return the taints that keep a Pod off the nodes with its GPUs; None if there are none or they are unknown."""
    tolerations = reading.mapping(view.manifest, "spec").get("tolerations")
    kept_off = ((node, tuple(it for it in taints if not it.is_tolerated(tolerations))) for node, taints in observed.taints.items())
    tainted = {node: taints for node, taints in kept_off if taints}
    if not tainted:
        return None
    node = min(tainted, key=lambda name: (len(tainted[name]), name))
    return UntoleratedTaints(node, Counter(tainted.values())[tainted[node]], tainted[node])


def unschedulable_advice(message: str, untolerated: UntoleratedTaints | None, *, has_other_plan: bool) -> str:
    """Choose the advice for a Pod that fits no node, by the scheduler's message. `has_other_plan`: a new plan would use another GPU."""
    if untolerated is not None and "taint" in message:
        if any(taint.is_passing for taint in untolerated.taints):
            return "unschedulable.taint_passing"
        is_usually_tolerated = any(taint.key == GPU_TAINT for taint in untolerated.taints)
        return "unschedulable.taint_usually_tolerated" if is_usually_tolerated else "unschedulable.taint"
    found = next((name for phrase, name in load_messages().misfits.items() if phrase in message), "unschedulable.anything")
    return "unschedulable.other_plan" if has_other_plan and found != "unschedulable.cpu_or_memory" else found


def refusal_advice(message: str) -> str:
    """Choose the advice for Pods that an admission plugin refuses."""
    return next((name for phrase, name in load_messages().refusals.items() if phrase in message), "refused.policy")
