"""The claim of the caches: missing, not bound and why, bound."""

from datetime import datetime, timedelta
from typing import Any

from vllm_operator.api.conditions import Reason
from vllm_operator.planning.outcome import Verdict
from vllm_operator.reporting import reading
from vllm_operator.reporting.conditions import FALSE, UNKNOWN
from vllm_operator.reporting.observation import Manifest
from vllm_operator.reporting.scene import Scene

BINDING_SECONDS = 15
"""How long a new claim may be unbound without a word about it. A provisioner takes some seconds."""
_TELLING = frozenset({"ProvisioningFailed", "FailedBinding", "WaitForFirstConsumer", "WaitForPodScheduled"})
_NORMAL = frozenset({"WaitForFirstConsumer", "WaitForPodScheduled"})


def claim_verdict(scene: Scene) -> Verdict | None:
    """What stands against using the claim; None if it is bound."""
    observation, say = scene.observation, scene.messages.say
    facts: dict[str, Any] = {"claim": observation.claim_name, "namespace": observation.resource.metadata.namespace}
    if observation.claim is None:
        cache = observation.resource.spec.cache
        if cache is not None and cache.claim_name:
            return Verdict(FALSE, Reason.CLAIM_MISSING, say("cache.missing_named", **facts))
        return Verdict(UNKNOWN, Reason.NOT_SEEN_YET, say("cache.missing_own", **facts))
    phase = reading.text(observation.claim, "status", "phase")
    if phase == "Lost":
        return Verdict(FALSE, Reason.CLAIM_NOT_BOUND, say("cache.lost", **facts))
    return None if phase == "Bound" or reading.text(observation.claim, "spec", "volumeName") else _unbound(scene, observation.claim)


def binding_deadline(scene: Scene) -> datetime | None:
    """When an unbound claim that nothing is said about is called not bound; None if that is not to be waited for."""
    claim = scene.observation.claim
    created = reading.moment(claim, "metadata", "creationTimestamp")
    verdict = claim_verdict(scene)
    waits = verdict is not None and claim is not None and verdict.status is UNKNOWN
    return created + timedelta(seconds=BINDING_SECONDS) if waits and created is not None else None


def is_one_node(claim: Manifest | None) -> bool:
    """Whether a claim can be mounted on one node only."""
    modes = reading.mapping(claim, "spec").get("accessModes")
    return isinstance(modes, list) and bool(modes) and all(mode in ("ReadWriteOnce", "ReadWriteOncePod") for mode in modes)


def _unbound(scene: Scene, claim: Manifest) -> Verdict:
    name = reading.text(claim, "metadata", "name")
    uid = reading.text(claim, "metadata", "uid")
    event = scene.log.latest(uid=uid, name=name, kind="PersistentVolumeClaim", reasons=_TELLING)
    facts: dict[str, Any] = {"claim": name, "storage_class": reading.text(claim, "spec", "storageClassName")}
    if event is not None and event.reason in _NORMAL:
        return Verdict(UNKNOWN, Reason.NOT_SEEN_YET, scene.messages.say("cache.waiting_for_consumer", **facts))
    created = reading.moment(claim, "metadata", "creationTimestamp")
    is_new = created is not None and scene.observation.now - created < timedelta(seconds=BINDING_SECONDS)
    if event is None and is_new:
        return Verdict(UNKNOWN, Reason.NOT_SEEN_YET, scene.messages.say("cache.binding", **facts))
    why = event.message if event is not None else "no volume has been provisioned for it"
    return Verdict(FALSE, Reason.CLAIM_NOT_BOUND, scene.messages.say("cache.not_bound", why=why, **facts))
