"""Starting: whether Pods are on their way, and what the one that is worst off is doing."""

from typing import Any

from vllm_operator.api.conditions import Reason
from vllm_operator.api.status import ConditionStatus, RemediationState, RemediationStatus, StartupStatus
from vllm_operator.planning.outcome import Verdict
from vllm_operator.planning.remediation.in_force import current
from vllm_operator.planning.storage.care import PrimingStep
from vllm_operator.reporting import rollout
from vllm_operator.reporting.conditions import FALSE, TRUE
from vllm_operator.reporting.pods import Phase, PodView
from vllm_operator.reporting.progress import describe
from vllm_operator.reporting.remedies import stall_restarts_left
from vllm_operator.reporting.scene import Scene
from vllm_operator.reporting.taints import obstacle

_VERDICTS: dict[Phase, tuple[ConditionStatus, str]] = {
    Phase.CRASHED: (FALSE, Reason.START_FAILED),
    Phase.FAILED: (FALSE, Reason.START_FAILED),
    Phase.CONTAINER_FAILED: (FALSE, Reason.CONTAINER_CONFIG_FAILED),
    Phase.UNSCHEDULABLE: (FALSE, Reason.UNSCHEDULABLE),
    Phase.IMAGE_PULL_FAILED: (FALSE, Reason.IMAGE_PULL_FAILED),
    Phase.NODE_LOST: (FALSE, Reason.NODE_LOST),
    Phase.WAITING_FOR_VOLUME: (TRUE, Reason.WAITING_FOR_VOLUME),
    Phase.IMAGE_PULLING: (TRUE, Reason.PULLING_IMAGE),
    Phase.SCHEDULING: (TRUE, Reason.PROGRESSING),
    Phase.CREATING: (TRUE, Reason.PROGRESSING),
    Phase.STARTING: (TRUE, Reason.PROGRESSING),
    Phase.NOT_RESPONDING: (FALSE, Reason.NOT_RESPONDING),
}


def starting(scene: Scene, block: StartupStatus | None, remediation: RemediationStatus | None = None) -> Verdict:
    """Judge the start; `block` and `remediation` are those of the status that is going to be written."""
    observation, say = scene.observation, scene.messages.say
    if scene.troubled:
        return _of_pods(scene, block)
    if observation.wanted == 0:
        return Verdict(FALSE, Reason.SCALED_TO_ZERO, say("starting.scaled_to_zero"))
    if remediation is not None and remediation.state is RemediationState.STOPPED:
        return Verdict(FALSE, Reason.STOPPED, say("starting.stopped", text=remediation.message))
    if scene.serving >= observation.wanted:
        return _all_serve(scene)
    if observation.care.step is PrimingStep.ELSEWHERE:
        return Verdict(TRUE, Reason.PRIMING, say("starting.elsewhere", holder=observation.care.holder))
    if failure := rollout.creation_failure(scene):
        return Verdict(FALSE, Reason.POD_REFUSED, say("starting.refused", message=failure))
    if scene.serving > 0:
        return Verdict(TRUE, Reason.PROGRESSING, say("starting.more", serving=scene.serving, wanted=observation.wanted))
    if scene.pods:
        return Verdict(FALSE, Reason.NOT_STARTED, say("pod.Terminating", pod=scene.pods[0]))
    name = "starting.not_planned" if observation.outcome.plan is None else "starting.no_pod"
    return Verdict(FALSE, Reason.NOT_STARTED, say(name))


def pod_text(scene: Scene, view: PodView, block: StartupStatus | None = None) -> str:
    """Say in a sentence or two what one Pod does and what can be done."""
    judgement = scene.judgement(view)
    text = block.message if block and block.message and block.pods and block.pods[0].name == view.name else describe(scene, view)
    if judgement is not None and judgement.stalled:
        text = describe(scene, view, briefly=True)
        left, noted = stall_restarts_left(scene), current(scene.observation.resource)
        done = "restarting" if left or (noted and view.name in noted.stalled_pods) else "left" if left == 0 else ""
        return scene.messages.fit(
            "pod.Stalled",
            shrink=("text",),
            pod=view,
            text=text,
            since=judgement.since,
            limit_seconds=judgement.limit,
            is_idle=judgement.is_idle,
            done=done,
        )
    name = "Progressing" if view.phase is Phase.STARTING else view.phase
    facts = _place(scene, view) if view.phase is Phase.UNSCHEDULABLE else {}
    return scene.messages.say(f"pod.{name}", pod=view, text=text, **facts)


def _place(scene: Scene, view: PodView) -> dict[str, Any]:
    """What could be changed for a Pod that no node takes."""
    observation, outcome = scene.observation, scene.observation.outcome
    gpu, today = outcome.plan and outcome.plan.product, outcome.today and outcome.today.plan
    return {
        "obstacle": obstacle(scene, view),
        "serving": scene.serving if scene.serving < observation.wanted else 0,  # while Pods are replaced, one may be too many
        "gpu": gpu,
        "gpu_today": today.product if gpu and today and today.product != gpu else None,
    }


def partly(scene: Scene, text: str) -> str:
    """Say first how many replicas serve, where some do."""
    observation = scene.observation
    if scene.serving == 0 or observation.wanted <= 1:
        return text
    return scene.messages.fit("pods.partly", shrink=("text",), serving=scene.serving, wanted=observation.wanted, text=text)


def _of_pods(scene: Scene, block: StartupStatus | None) -> Verdict:
    worst = scene.troubled[0]
    text = pod_text(scene, worst, block)
    others = len(scene.troubled) - 1
    if others:
        text = scene.messages.fit("pods.others", shrink=("text",), text=text, others=others)
    waiting = _waiting(scene)
    if waiting:
        text = scene.messages.fit("starting.first_pod", shrink=("text",), text=text, waiting=waiting)
    status, reason = (FALSE, Reason.STALLED) if scene.stalled(worst) else _VERDICTS[worst.phase]
    return Verdict(status, reason, partly(scene, text))


def _waiting(scene: Scene) -> int:
    """How many replicas start only when the first one has filled the cache."""
    observation = scene.observation
    living = sum(view.phase not in (Phase.TERMINATING, Phase.FAILED) for view in scene.pods)
    return max(0, observation.wanted - living) if observation.care.step is PrimingStep.FIRST_POD else 0


def _all_serve(scene: Scene) -> Verdict:
    observation, say = scene.observation, scene.messages.say
    if observation.care.held and observation.care.foreign_claims:
        return Verdict(FALSE, Reason.CLAIM_NOT_OWNED, say("starting.claim_not_owned", claims=observation.care.foreign_claims))
    if observation.care.held:
        return Verdict(TRUE, Reason.PRIMING, say("starting.held", serving=scene.serving))
    if not rollout.is_rolled_out(scene) and observation.outcome.plan is not None:
        updated = rollout.updated_replicas(scene) or 0
        paused = rollout.paused(scene)
        return Verdict(TRUE, Reason.ROLLING_OUT, say("starting.rollout", updated=updated, wanted=observation.wanted, paused=paused))
    return Verdict(FALSE, Reason.STARTED, say("starting.started", wanted=observation.wanted))
