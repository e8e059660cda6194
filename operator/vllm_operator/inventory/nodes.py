"""The inventory: from Nodes, ResourceSlices and node pools to pools of equal devices.

Values of nodes never raise an error, because many tools and users write labels. An invalid value is noted and treated as unknown. Products
and architectures come from ResourceSlices, else from labels (see `node_labels`). Resource names and amounts come from `status.allocatable`.

A node pool, from which Karpenter or a cluster autoscaler would add nodes for a Pod, counts if its requirements identify the GPU by a cloud
label, such as `karpenter.k8s.aws/instance-gpu-name`. The affinity uses that label, because autoscalers know only the labels that new nodes
have from the beginning.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vllm_operator.api.reading import mapping, objects, read_count, read_integer, read_text, sequence
from vllm_operator.catalog.gpus import GPUs, InstanceType
from vllm_operator.inventory.devices import Device, read_slices
from vllm_operator.inventory.node_labels import INVALID, MOST_SLICES, PREFIX, NodeGPULabels, read_labels
from vllm_operator.inventory.pools import (
    GPU_DEVICE_CLASS,
    GPU_RESOURCE,
    MIG_DEVICE_CLASS,
    MIG_RESOURCE_PREFIX,
    SHARED_GPU_RESOURCE,
    Inventory,
    Pool,
    Source,
    Taint,
    read_taints,
)

HOST_LABEL = "kubernetes.io/arch"
POOLS_LIMIT, VALUES_LIMIT, COUNT_LIMIT = 64, 16, 64
NAME_LENGTH = 63

Template = tuple[Pool, Mapping[str, str]]
"""A pool, and the labels that its nodes would have."""


def read_instance_pools(types: Iterable[InstanceType], gpus: GPUs) -> list[Template]:
    """Return the pools of the node pools in the ConfigMap of the cluster's administrator."""
    return [
        (_pool(f"node pool {each.name}", each.product, each.count, dict(each.labels), each.labels, gpus), dict(each.labels))
        for each in types
    ]


def read_node_pools(node_pools: Iterable[Mapping[str, Any]], gpus: GPUs) -> list[Template]:
    """Return the pools of Karpenter's NodePools. Any value is valid input."""
    found: list[Template] = []
    for node_pool in node_pools:
        name = read_text(mapping(node_pool, "metadata").get("name"))
        if name is not None and mapping(node_pool, "metadata").get("deletionTimestamp") is None:
            found += _read_node_pool(f"NodePool {name[:NAME_LENGTH]}", mapping(node_pool, "spec"), gpus)
    return found[:POOLS_LIMIT]


def _read_node_pool(name: str, spec: Mapping[str, Any], gpus: GPUs) -> list[Template]:
    template = mapping(spec, "template")
    labels = {key: value for key, value in mapping(template, "metadata", "labels").items() if isinstance(value, str)}
    allowed = {str(each.get("key")): _values(each) for each in objects(template, "spec", "requirements") if each.get("operator") == "In"}
    labels |= {key: values[0] for key, values in allowed.items() if len(values) == 1}
    limit = read_count(mapping(spec, "limits").get(GPU_RESOURCE))
    found: list[Template] = []
    for table in gpus.label_tables:
        sizes = [size for value in allowed.get(table.count_label or "", ()) if (size := read_integer(value))]
        count = min(max(sizes, default=1), COUNT_LIMIT if limit is None else limit, COUNT_LIMIT)
        for value in allowed.get(table.key, [labels[table.key]] if table.key in labels else []):
            own = {**labels, table.key: value}
            read = read_labels(own, gpus, lambda _: None)
            if read.source is Source.CLOUD and read.product is not None and read.mig_profile is None and not read.shared and count > 0:
                found.append((_pool(name, read.product, count, own, read.labels, gpus), own))
    return found


def _values(requirement: Mapping[str, Any]) -> list[str]:
    return [value for value in sequence(requirement.get("values")) if isinstance(value, str)][:VALUES_LIMIT]


def _pool(name: str, product: str, count: int, labels: Mapping[str, str], identity: tuple[tuple[str, str], ...], gpus: GPUs) -> Pool:
    known = gpus.product(product)
    return Pool(
        architecture=known.architecture if known else None,
        product=known.name if known else product,
        memory_mebibytes=known.memory_mebibytes if known else None,
        count=count,
        resource=GPU_RESOURCE,
        claims=False,
        mig_profile=None,
        mig_strategy=None,
        shared=False,
        host=labels.get(HOST_LABEL) or (known.host if known else None),
        driver=None,
        cuda=None,
        source=Source.CLOUD,
        labels=tuple(pair for pair in identity if pair[0] != HOST_LABEL),
        upgrade_label=None,
        problems=(),
        uuids=(),
        nodes=(name,),
        provider=name,
    )


MIG_STATE = f"{PREFIX}mig.config.state"
UPGRADE_STATE = f"{PREFIX}gpu-driver-upgrade-state"
LABEL_LENGTH = 63
"""Maximum length of a label value, and of a resource name after its prefix."""
NOTES_LIMIT = 32
"""Maximum number of notes."""


def read_inventory(
    nodes: Iterable[Mapping[str, Any]],
    slices: Iterable[Mapping[str, Any]],
    gpus: GPUs,
    *,
    node_pools: Iterable[Mapping[str, Any]] = (),
) -> Inventory:
    """Read Nodes, ResourceSlices and Karpenter's NodePools into an inventory. The result does not depend on their order."""
    devices = read_slices(slices)
    notes: set[str] = set()
    pools: list[Pool] = []
    labels: dict[str, Mapping[str, str]] = {}
    taints: dict[str, tuple[Taint, ...]] = {}
    count = 0
    for node in nodes:
        name = read_text(mapping(node, "metadata").get("name"))
        if name is None:
            continue
        count += 1
        reader = _Node(name, node, devices.get(name, ()), gpus, notes)
        found = reader.pools()
        if found:
            labels[name], taints[name] = reader.labels, read_taints(mapping(node).get("spec"))
        pools.extend(found)
    templates = sorted(read_node_pools(node_pools, gpus), key=lambda template: (template[0].nodes, template[0].labels))
    return Inventory(_merge(pools), count, tuple(sorted(notes)[:NOTES_LIMIT]), labels, taints).with_templates(templates)


def _merge(pools: Iterable[Pool]) -> tuple[Pool, ...]:
    """Join pools that differ only in their nodes and the UUIDs of their devices."""
    merged: dict[Pool, list[Pool]] = {}
    for pool in pools:
        merged.setdefault(replace(pool, nodes=(), uuids=(), devices=()), []).append(pool)
    joined = [
        replace(
            key,
            nodes=tuple(sorted({node for pool in same for node in pool.nodes})),
            uuids=tuple(sorted({uuid for pool in same for uuid in pool.uuids})),
            devices=tuple(sorted({device for pool in same for device in pool.devices})),
        )
        for key, same in merged.items()
    ]
    return tuple(sorted(joined, key=lambda pool: (pool.nodes, pool.resource, repr(pool))))


class _Node:
    def __init__(self, name: str, node: Mapping[str, Any], devices: Sequence[Device], gpus: GPUs, notes: set[str]) -> None:
        metadata, status = mapping(node.get("metadata")), mapping(node.get("status"))
        self.name = name
        self.devices = devices
        self.gpus = gpus
        self.labels = {key: value for key, value in mapping(metadata.get("labels")).items() if _is_label(value)}
        self.unschedulable = mapping(node.get("spec")).get("unschedulable") is True
        self.ready = _is_ready(status)
        self.allocatable = mapping(status["allocatable"]) if isinstance(status.get("allocatable"), Mapping) else None
        self.notes = notes

    def note(self, what: str) -> None:
        self.notes.add(f"Node {self.name}: {what}")

    def pools(self) -> list[Pool]:
        gpu_labels = read_labels(self.labels, self.gpus, self.note)
        resources = self._resources(gpu_labels)
        if not (resources or self.devices or self._has_gpu(gpu_labels)):
            return []
        problems = self._problems(gpu_labels)
        claimable = self._claimable(gpu_labels, problems)
        if not resources and claimable:
            return claimable
        gpu_labels = self._with_devices(gpu_labels)
        if not resources:
            return [self._pool(gpu_labels, GPU_RESOURCE, 0, problems or ("it has no GPU resource; check the device plugin",))]
        return claimable + [
            pool for name, amount in sorted(resources.items()) for pool in self._offered(gpu_labels, name, amount, problems)
        ]

    def _resources(self, gpu_labels: NodeGPULabels) -> dict[str, int]:
        """Return the GPU resources with at least one device. They come from labels if the node has no status, as in a file."""
        if self.allocatable is None:
            offered = (gpu_labels.count or 0) * (1 if gpu_labels.replicas is None else gpu_labels.replicas)
            return {GPU_RESOURCE: offered} if offered else {}
        found: dict[str, int] = {}
        for name, amount in self.allocatable.items():
            if name in (GPU_RESOURCE, SHARED_GPU_RESOURCE) or _is_slice(name):
                number = read_count(amount)
                if number is None:
                    self.note(f"the amount of {name[:63]} has the invalid value {str(amount)[:63]!r}")
                elif number > 0:
                    found[name] = number
        return found

    def _has_gpu(self, gpu_labels: NodeGPULabels) -> bool:
        present = any(self.labels.get(label) == "true" for label in self.gpus.presence.labels)
        return present or gpu_labels.product is not None or gpu_labels.source is not Source.UNKNOWN

    def _problems(self, gpu_labels: NodeGPULabels) -> tuple[str, ...]:
        problems = []
        if (gpu_labels.product_label or "").endswith(INVALID):
            problems.append("its MIG layout is not uniform")
        state = self.labels.get(MIG_STATE, "success")
        if state == "failed":
            problems.append("the last change of its MIG layout failed")
        elif state not in ("", "success"):
            problems.append(f"its MIG layout is changing, state {state[:63]}")
        upgrade = self.labels.get(UPGRADE_STATE, "")
        if upgrade == "upgrade-failed":
            problems.append("the upgrade of its GPU driver failed")
        elif upgrade not in ("", "upgrade-done"):
            problems.append(f"its GPU driver is being upgraded, state {upgrade[:63]}")
        if self.unschedulable:
            problems.append("it is cordoned")
        if not self.ready:
            problems.append("it is not ready")
        return tuple(problems)

    def _offered(self, gpu_labels: NodeGPULabels, resource: str, amount: int, problems: tuple[str, ...]) -> list[Pool]:
        if resource.startswith(MIG_RESOURCE_PREFIX):
            return [self._pool(self._slice_labels(gpu_labels, resource), resource, amount, problems)]
        if resource == SHARED_GPU_RESOURCE:
            return [self._pool(replace(gpu_labels, shared=True), resource, amount, problems)]
        labelled = None if gpu_labels.count is None else gpu_labels.count * max(gpu_labels.replicas or 0, 1)
        if gpu_labels.source is Source.CLOUD and labelled is not None and labelled < amount:
            return [self._pool(replace(gpu_labels, shared=True), resource, amount, problems)]
        if gpu_labels.source is Source.GFD and labelled is not None and labelled < amount:
            # For a node with several kinds of GPU, GFD writes only one product.
            self.note(f"its labels describe only {labelled} of {amount} GPUs, so the operator ignores them")
            blank = NodeGPULabels(
                mig_strategy=gpu_labels.mig_strategy, host=gpu_labels.host, driver=gpu_labels.driver, cuda=gpu_labels.cuda
            )
            return [self._pool(replace(blank, upgrade_label=gpu_labels.upgrade_label), resource, amount, problems)]
        return [self._pool(gpu_labels, resource, amount, problems)]

    def _slice_labels(self, gpu_labels: NodeGPULabels, resource: str) -> NodeGPULabels:
        """Return the labels of a MIG slice with the strategy `mixed`, which has separate memory labels for each profile."""
        profile = resource.removeprefix(MIG_RESOURCE_PREFIX)
        prefix = f"{PREFIX}mig-{profile}."
        memory = read_integer(self.labels.get(f"{prefix}memory"))
        replicas = read_integer(self.labels.get(f"{prefix}replicas")) or 1
        sliced = 1 < replicas <= MOST_SLICES and self.labels.get(f"{prefix}sharing-strategy") == "time-slicing"
        return replace(
            gpu_labels,
            mig_profile=profile,
            memory_mebibytes=memory or None,
            shared=replicas > 1,
            time_slices=replicas if sliced else None,
        )

    def _with_devices(self, gpu_labels: NodeGPULabels) -> NodeGPULabels:
        """Prefer ResourceSlices to labels for devices of the device plugin, if all whole GPUs of the node are equal."""
        alike = {(d.architecture, d.product, d.memory_mebibytes, d.driver, d.cuda) for d in self.devices if d.mig_profile is None}
        if len(alike) != 1:
            return gpu_labels
        architecture, product, memory, driver, cuda = next(iter(alike))
        if architecture is None:
            return gpu_labels
        return replace(
            gpu_labels,
            source=Source.RESOURCE_SLICE,
            architecture=architecture,
            product=gpu_labels.product or product,
            memory_mebibytes=gpu_labels.memory_mebibytes if gpu_labels.mig_profile else memory,
            driver=driver or gpu_labels.driver,
            cuda=cuda or gpu_labels.cuda,
        )

    def _claimable(self, gpu_labels: NodeGPULabels, problems: tuple[str, ...]) -> list[Pool]:
        alike = [(device, replace(device, uuid=None, parent_uuid=None, identity=None)) for device in self.devices]
        kinds = Counter(kind for _, kind in alike)
        return [
            replace(
                self._pool(gpu_labels, MIG_DEVICE_CLASS if kind.mig_profile else GPU_DEVICE_CLASS, amount, problems),
                claims=True,
                architecture=kind.architecture,
                product=kind.product,
                memory_mebibytes=kind.memory_mebibytes,
                mig_profile=kind.mig_profile,
                shared=False,
                time_slices=None,
                driver=kind.driver,
                cuda=kind.cuda,
                source=Source.RESOURCE_SLICE if kind.architecture else Source.UNKNOWN,
                labels=(),
                upgrade_label=None,
                uuids=tuple(device.uuid for device, other in alike if device.uuid and other == kind),
                devices=tuple((self.name, device.identity) for device, other in alike if device.identity and other == kind),
            )
            for kind, amount in kinds.items()
        ]

    def _pool(self, gpu_labels: NodeGPULabels, resource: str, count: int, problems: tuple[str, ...]) -> Pool:
        return Pool(
            architecture=gpu_labels.architecture,
            product=gpu_labels.product,
            memory_mebibytes=gpu_labels.memory_mebibytes,
            count=count,
            resource=resource,
            claims=False,
            mig_profile=gpu_labels.mig_profile,
            mig_strategy=gpu_labels.mig_strategy,
            shared=gpu_labels.shared,
            time_slices=gpu_labels.time_slices,
            host=self.labels.get("kubernetes.io/arch") or gpu_labels.host,
            driver=gpu_labels.driver,
            cuda=gpu_labels.cuda,
            source=gpu_labels.source,
            labels=gpu_labels.labels,
            upgrade_label=gpu_labels.upgrade_label,
            problems=problems,
            uuids=(),
            nodes=(self.name,),
        )


def _is_slice(resource: Any) -> bool:
    return isinstance(resource, str) and resource.startswith(MIG_RESOURCE_PREFIX) and len(resource) <= LABEL_LENGTH


def _is_label(value: Any) -> bool:
    """Return whether a value has the type and length of a label value. A file may contain any value."""
    return isinstance(value, str) and len(value) <= LABEL_LENGTH


def _is_ready(status: Mapping[str, Any]) -> bool:
    """Return whether the node is ready. A node without conditions, as in a file, is ready."""
    return all(
        mapping(condition).get("status") == "True"
        for condition in sequence(status.get("conditions"))
        if mapping(condition).get("type") == "Ready"
    )
