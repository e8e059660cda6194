"""Nodes that new Pods avoid, because Pods crash there for a reason that lies in the node (`origin: node` of the signature).

With `spec.remediation.onBadNode: Avoid`, node affinity keeps new Pods off such a node. As all decisions, it is written to the status first,
and the next reconciliation renders it (`remedies.carried_out`). All replicas have one Pod template, so each change of it replaces all of
them. Therefore:
- a node is added when a Pod crashes there again after a restart. A rolling update replaces that Pod first, and then one Pod at a time.
  With the strategy Recreate, a node is only added while no replica serves
- a node is only added if the other nodes have GPUs for all replicas, also GPUs that are in use now: no Pod waits for ever because of it
- a node that has been restarted or replaced is removed when a new plan is made, or while no replica serves
"""

from vllm_operator.api import reading
from vllm_operator.api.labels import HOSTNAME_LABEL
from vllm_operator.api.plan import NodeRequirement, Plan
from vllm_operator.api.reading import Manifest
from vllm_operator.api.resource import VLLMDeployment, rolls, template_spec
from vllm_operator.api.status import AvoidedNode, CrashStatus
from vllm_operator.inventory.pools import Inventory
from vllm_operator.status.crashes import Crashes, Finding, is_caused_by_node
from vllm_operator.status.observation import Observation

MAX_NODES = 16
"""Maximum number of avoided nodes. With more, the nodes are not the problem."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def avoids(resource: VLLMDeployment) -> bool:
    """Return whether the spec asks for avoiding bad nodes."""
    return resource.spec.remediation is not None and resource.spec.remediation.on_bad_node == "Avoid"


def remaining(resource: VLLMDeployment, inventory: Inventory, live: Manifest | None = None) -> list[AvoidedNode]:
    """Return the avoided nodes that have been neither restarted nor replaced since, or that the live Deployment excludes already."""
    affinity = reading.mapping(template_spec(live), "affinity", "nodeAffinity", _REQUIRED)
    terms = (each for term in reading.objects(affinity, "nodeSelectorTerms") for each in reading.objects(term, "matchExpressions"))
    excluded = {
        name
        for each in terms
        if (each.get("key"), each.get("operator")) == (HOSTNAME_LABEL, "NotIn")
        for name in reading.sequence(each.get("values"))
    }
    nodes = resource.status.avoided_nodes or ()
    return [each for each in nodes if inventory.boots.get(each.name) == each.boot_id or (each.hostname or each.name) in excluded]


def without_restarted(resource: VLLMDeployment, inventory: Inventory, live: Manifest | None) -> VLLMDeployment:
    """Return the object without the avoided nodes that were restarted or replaced. `live` is None if a new plan replaces its Pods."""
    if not resource.status.avoided_nodes:
        return resource
    status = resource.status.model_copy(update={"avoided_nodes": remaining(resource, inventory, live) or None})
    return resource.model_copy(update={"status": status})


def avoiding(resource: VLLMDeployment, plan: Plan) -> Plan:
    """Return the plan with the requirement to avoid these nodes."""
    names = [each.hostname or each.name for each in resource.status.avoided_nodes or ()] if avoids(resource) else []
    if not names:
        return plan
    requirement = NodeRequirement(key=HOSTNAME_LABEL, operator="NotIn", values=names)
    return plan.model_copy(update={"node_requirements": [*plan.node_requirements, requirement]})


def decide_avoided(observed: Observation, crashes: Crashes) -> list[AvoidedNode] | None:
    """Decide which nodes new Pods avoid; None if there are none."""
    resource, inventory = observed.resource, observed.inventory
    if not avoids(resource):
        return None
    avoided = list(resource.status.avoided_nodes or ())
    if inventory is not None:
        avoided = avoided if observed.serving else remaining(resource, inventory)
        for finding in crashes.in_force:
            node = finding.view.node
            if not _must_leave(observed, finding) or len(avoided) == MAX_NODES or not has_others(observed, [node, *_names(avoided)]):
                continue
            label = inventory.labels.get(node, {}).get(HOSTNAME_LABEL)
            hostname = label if label != node else None
            avoided.append(AvoidedNode(name=node, hostname=hostname, boot_id=inventory.boots.get(node, "")))
    return avoided or None


def _names(nodes: list[AvoidedNode]) -> list[str]:
    return [each.name for each in nodes]


def _must_leave(observed: Observation, finding: Finding) -> bool:
    is_of_node = finding.reportable_at is None and is_caused_by_node(observed, finding.status)
    return is_of_node and finding.restarts > 0 and finding.view.is_current and (not observed.serving or rolls(observed.deployment))


def has_others(observed: Observation, bad: list[str]) -> bool:
    """Return whether other nodes have GPUs for all replicas, in use or not. Nodes that an autoscaler would add count."""
    room, plan = observed.room, observed.plan
    if room is None or plan is None:
        return True
    pods = observed.wanted * (plan.nodes or 1)
    return sum(total // room.count for node, total in room.total.items() if node not in bad) >= pods


def describe_node(observed: Observation, crash: CrashStatus, avoided: list[AvoidedNode] | None) -> str:
    """Say in which node the cause of a crash lies, and whether new Pods avoid it; empty if the cause is not in the node."""
    if not is_caused_by_node(observed, crash):
        return ""
    node, avoided_names = crash.node or "", _names(avoided or [])
    is_avoided = node in avoided_names
    is_only = avoids(observed.resource) and not is_avoided and not has_others(observed, [node, *avoided_names])
    return observed.messages.say("crash.node", node=node, is_avoided=is_avoided, is_only=is_only)
