"""Whether a rollout has to wait: it would stop Pods that serve, and the operator knows that the new ones could not start.

The devices of the Pods that a rollout replaces count as free, on their nodes: a rollout that needs exactly these begins. A rolling update
with a surge stops no Pod before the new one is Ready, so it does not wait for devices. But no rolling update can leave the node of a volume
that only one node can mount, because the old and the new Pods use it at the same time.
"""

from vllm_operator.api import reading
from vllm_operator.api.operation import RolloutSpec
from vllm_operator.api.resource import rolls, surge
from vllm_operator.caches.address import claims_of
from vllm_operator.caches.context import CacheContext, HeldRollout
from vllm_operator.inventory.devices import requested_devices
from vllm_operator.pods.view import Phase, is_over

RECHECK_SECONDS = 8.0
"""Interval between counts of the free devices. Pods of other owners are not watched."""
MAX_RESTARTS = 3
"""A Pod that has restarted this often, and crashes, is not expected to become Ready."""
_LOST = frozenset({Phase.FAILED, Phase.CONTAINER_FAILED, Phase.UNSCHEDULABLE, Phase.IMAGE_PULL_FAILED, Phase.NODE_LOST})


def find_hold(context: CacheContext) -> HeldRollout | None:
    """Return what the rollout waits for; None if it may begin, has begun, or there is none."""
    needed = min(reading.integer(context.desired, "spec", "replicas") or 0, _protected(context)) * (context.plan.nodes or 1)
    if not context.is_rollout or context.room is None or not needed:
        return None
    rolling = rolls(context.desired)
    claim, nodes = (find_mounted(context) if rolling else None) or (None, None)
    free = [number for node, number in (context.room.free or {}).items() if nodes is None or node in nodes]
    held = HeldRollout(
        needed=needed,
        count=context.room.count,
        device=context.device,
        room=context.room.pods(nodes) or 0,
        most_free=max(free, default=0),
        claim=claim,
        nodes=tuple(sorted(nodes or ())),
        is_elsewhere=nodes is not None and not any(context.room.total.get(node) for node in nodes),
    )
    if held.is_elsewhere:
        return held
    surges = rolling and bool(surge(context.desired))
    proceeds_anyway = (context.resource.spec.rollout or RolloutSpec()).on_unschedulable == "Proceed"
    return None if surges or proceeds_anyway or context.room.free is None or held.room >= needed else held


def find_mounted(context: CacheContext) -> tuple[str, frozenset[str]] | None:
    """Return a PVC of the plan that only one node can mount, and the node of the replicas that use it; None if none is known."""
    weights = context.weights_claim_name if reading.is_one_node(context.weights_modes) else None
    cache = context.address.claim if context.address is not None and context.is_one_node else None
    for claim in filter(None, (cache, weights)):
        pods = [pod for _, pod in context.replicas if pod.node and claim in claims_of(pod.manifest.get("spec"))]
        ready = [pod for pod in pods if pod.phase is Phase.READY]  # a Pod that is stuck on another node has not mounted it
        nodes = frozenset(pod.node for pod in ready or pods if not is_over(pod.manifest))
        if context.room is not None and nodes & {*context.room.nodes}:
            return claim, nodes
    return None


def find_misplacement(context: CacheContext) -> str | None:
    """Return why no additional Pod can start while the replicas run: its volume is on a node without devices for it. None if it may."""
    mounted = find_mounted(context)
    if mounted is None or context.room is None:
        return None
    claim, nodes = mounted
    total = sum(context.room.total.get(node, 0) for node in nodes)  # there is one node, unless a replica is stuck on another
    own = (requested_devices(pod.manifest).get(context.plan.resource, 0) for _, pod in context.replicas if pod.node in nodes)
    if total - sum(own) >= context.room.count:
        return None
    lack = "too few GPUs for another Pod" if total else f"no {context.device}"
    return f"PVC {claim} can be mounted on node {', '.join(sorted(nodes))} only (ReadWriteOnce), which has {lack}"


def most_replicas(context: CacheContext) -> int | None:
    """Return how many replicas the only node holds that can mount a volume, at least those that exist; None if every node is possible."""
    mounted, live = find_mounted(context), reading.integer(context.deployment, "spec", "replicas") or 0
    if mounted is None or context.room is None or context.is_rollout:
        return None
    devices = context.room.total if context.room.free is None else context.room.free
    return max(live, sum(devices.get(node, 0) // context.room.count for node in mounted[1]))


def _protected(context: CacheContext) -> int:
    """Return how many replicas serve, or will serve again: one that was Ready may be restarting, or on its way to another node."""
    pods = [pod for _, pod in context.replicas]
    if ready := sum(pod.phase is Phase.READY for pod in pods):
        return ready
    progress = reading.named(context.deployment, "Progressing", "status", "conditions")
    is_lost = any(pod.phase in _LOST or (pod.phase is Phase.CRASHED and pod.restarts >= MAX_RESTARTS) for pod in pods)
    if is_lost or progress.get("reason") != "NewReplicaSetAvailable":  # it stays when Pods are lost later
        return 0
    return reading.integer(context.deployment, "spec", "replicas") or 0
