"""Replicas that need several nodes: their flags, variables and time limits, what they need of storage and version, and notes.

Each node has one Pod. The first one, the leader, serves; the others, the followers, run `vllm serve --headless`
(https://docs.vllm.ai/en/latest/serving/parallelism_scaling/). The process group forms at the leader's address. Until all have joined, each
one waits for `--distributed-timeout-seconds`, which also bounds how long ranks wait for each other while they load. So this limit is
longer than the pull of an image and a start on one node, and shorter than the startup probe of the leader: vLLM then says who is missing
before the kubelet ends the leader.

The webhook of LeaderWorkerSet puts its variables first into each container, and the kubelet replaces `$(NAME)` in arguments.

With data parallelism, all ranks are behind the server of the leader. vLLM derives their numbers from `--node-rank`, and how many a node has
from `--nnodes` (vllm/engine/arg_utils.py `create_engine_config`, 0.18.0 and 0.33.0), so no argument needs arithmetic. The leader listens
for the engines of other nodes at `--data-parallel-address`, and ZMQ listens at an IP address or interface, not at a name. So the leader
gets its own address, and followers the name of the leader, which ZMQ resolves again until it can connect.
"""

from dataclasses import replace

from vllm_operator.api.operation import ClaimVolume, StorageSpec
from vllm_operator.api.plan import PlannedArgument, PlannedVariable, PlannedWeights
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.caches.claims import storage_of, weights_storage
from vllm_operator.catalog.notes import Note, note, say
from vllm_operator.planning.engine.image import ResolvedVersion
from vllm_operator.planning.engine.overrides import Overrides
from vllm_operator.planning.placement.explanations import devices, short_name
from vllm_operator.planning.placement.fitting import Sizing
from vllm_operator.planning.placement.targets import Candidate
from vllm_operator.text.wording import listed

TIMEOUT_FLAG, CPU_TIMEOUT_FLAG = "--distributed-timeout-seconds", "--cpu-distributed-timeout-seconds"
FIRST_VERSION = "0.18.0"
"""The first version with `--distributed-timeout-seconds`. Earlier ones need Ray, or give up after 10 minutes."""
RENDEZVOUS_PORT, ENGINES_PORT = "29501", "29550"
ENGINES_FLAG, ENGINES_ADDRESS = "--data-parallel-address", "$(VLLM_HOST_IP)"
"""Where the leader listens for the engines of other nodes. Followers get `LEADER_ADDRESS` instead."""
LEADER_ADDRESS = "$(LWS_LEADER_ADDRESS)"
_ENDS = ("hybrid-lb", "external-lb", "multi-port-external-lb", "rank", "start-rank")
OTHER_FRONT_ENDS = frozenset(f"--data-parallel-{name}" for name in _ENDS)
"""Flags with which several nodes serve. vLLM refuses them for followers without a server."""
NVLINK_DOMAIN_LABEL = "nvidia.com/gpu.clique"
"""Label of nodes whose GPUs share an NVLink domain. Where `spec.podTemplate` names it, all nodes of a replica are expected to."""
BACKEND_FLAGS = ("--distributed-executor-backend", "--data-parallel-backend")
NAME_LIMIT = 48
"""Maximum characters of the name. A StatefulSet labels its Pods with its own name, the number of a group, and a hash (63 characters)."""


def group_arguments(deadline: int, version: ResolvedVersion, *, data: int) -> list[PlannedArgument]:
    """Return the flags of leader and followers. `deadline` is that of a start, in seconds; `data` is the data-parallel size."""
    seconds = str(deadline * 2 // 3)
    engines = (
        (ENGINES_FLAG, ENGINES_ADDRESS, "Where the leader listens for the engines of other nodes, which get its name."),
        ("--data-parallel-rpc-port", ENGINES_PORT, "Port where the leader listens for them."),
    )
    wanted = (
        ("--nnodes", "$(LWS_GROUP_SIZE)", "Number of nodes of a replica."),
        ("--node-rank", "$(LWS_WORKER_INDEX)", "Number of the node within the replica; the leader has 0."),
        ("--master-addr", LEADER_ADDRESS, "Where the nodes of a replica meet."),
        ("--master-port", RENDEZVOUS_PORT, "Port where the nodes of a replica meet."),
        (TIMEOUT_FLAG, seconds, "Longer than an image pull and a load, shorter than the startup probe."),
        (CPU_TIMEOUT_FLAG, seconds, "The same for groups without GPUs."),
        *(engines if data > 1 else ()),
    )
    known = (each for each in wanted if version.table is None or version.table.knows_flag(each[0]))
    return [PlannedArgument(name=name, value=value, reason=reason) for name, value, reason in known]


def group_variables(spec: VLLMDeploymentSpec) -> list[PlannedVariable]:
    """Return the variables with the network interface of the spec."""
    if spec.network is None or spec.network.interface is None:
        return []
    names, reason = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), "From spec.network.interface."
    return [PlannedVariable(name=name, value=spec.network.interface, reason=reason) for name in names]


def refuse_group(
    resource: VLLMDeployment, target: Candidate, version: ResolvedVersion, given: Overrides, weights: PlannedWeights, *, experts: int | None
) -> str | None:
    """Return why a replica cannot run on several nodes, and what to change; None if it can, or runs on one.

    `experts` is the number of experts of the model; None if it is unknown.
    """
    if target.shape.nodes == 1:
        return None
    spec, where = resource.spec, devices(target)
    if version.table is not None and not version.table.knows_flag(TIMEOUT_FLAG):
        return say("nodes.version", name=short_name(resource), devices=where, version=version.version, first=FIRST_VERSION)
    if len(resource.metadata.name) > NAME_LIMIT:
        return say("nodes.name", devices=where, most=NAME_LIMIT)
    if given.replaces_arguments:
        return say("nodes.template", devices=where)
    if target.shape.parallel.data > 1 and experts == 0:
        return say("nodes.dense", name=short_name(resource), data=target.shape.parallel.data)
    unfit = next((each for each in given.arguments if each in OTHER_FRONT_ENDS), None)
    unfit = unfit or next((f"{each} ray" for each in BACKEND_FLAGS if given.arguments.get(each) == "ray"), None)
    if unfit is not None:
        return say("nodes.flag", devices=where, flag=unfit)
    of_weights = weights_storage(spec, weights)
    field = "cache" if _is_for_one_node(spec.cache) else "weights" if of_weights is not None and _is_for_one_node(of_weights) else None
    return say("nodes.storage", devices=where, field=field) if field is not None else None


def _is_for_one_node(storage: StorageSpec | None) -> bool:
    """Return whether only one node can mount the PVC that the operator creates. The access mode of a user's PVC is unknown here."""
    volume = (storage and storage.volume) or ClaimVolume()
    is_own = storage_of(storage) == "SharedClaim" and not (storage and storage.claim_name)
    return is_own and (volume.access_mode or "ReadWriteOnce") != "ReadWriteMany"


def notes_about_nodes(spec: VLLMDeploymentSpec, target: Candidate, sizing: Sizing) -> list[Note]:
    """Return notes about a replica on several nodes; none for one node."""
    shape, network = target.shape, spec.network
    if shape.nodes == 1:
        return [note("nodes.no-network")] if network is not None else []
    parallel = shape.parallel
    sizes = [("tensor", parallel.tensor), ("pipeline", parallel.pipeline), ("data", parallel.data)]
    named = listed([f"{kind} parallel size {size}" for kind, size in sizes if size > 1 or kind == "tensor"], "and")
    notes = [note("nodes.chosen", devices=devices(target), sizes=named)]
    has_rdma = network is not None and network.rdma_resource is not None
    is_slow = not has_rdma and NVLINK_DOMAIN_LABEL not in str(spec.pod_template)
    if parallel.tensor > shape.count and is_slow:
        may_pipeline = sizing.may_run(target.pool, replace(parallel, tensor=shape.count, pipeline=shape.nodes))
        pipeline = say("nodes.over-a-pipeline", count=shape.count, nodes=shape.nodes) if may_pipeline else ""
        notes.append(note("nodes.tensor", tensor=parallel.tensor, count=shape.count, pipeline=pipeline))
    elif parallel.data > 1 and is_slow:
        notes.append(note("nodes.experts", ranks=parallel.data * parallel.tensor, count=shape.count))
    return [*notes, note("nodes.privileged")] if has_rdma else notes
