"""The inventory: from Nodes, ResourceSlices and node pools to pools of equal devices.

Values of nodes never raise an error, because many tools and users write labels. An invalid value is noted and treated as unknown. Products
and architectures come from ResourceSlices, else from labels (see `node_labels`). Resource names and amounts come from `status.allocatable`.

A node pool, from which Karpenter or a cluster autoscaler would add nodes for a Pod, counts if its requirements identify the GPU by a cloud
label, such as `karpenter.k8s.aws/instance-gpu-name`. The affinity uses that label, because autoscalers know only the labels that new nodes
have from the beginning.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vllm_operator.api.reading import mapping, objects, read_count, read_integer, read_text, sequence
from vllm_operator.catalog.gpus import GPUs, InstanceType
from vllm_operator.inventory.devices import Device, read_slices
from vllm_operator.inventory.node_labels import INVALID, MAX_PODS_PER_GPU, PREFIX, NodeLabels, read_labels
from vllm_operator.inventory.pools import GPU_RESOURCE, MIG_RESOURCE_PREFIX, SHARED_GPU_RESOURCE, Inventory, Pool, Source, read_taints

HOST_LABEL = "kubernetes.io/arch"
MIG_STATE = f"{PREFIX}mig.config.state"
UPGRADE_STATE = f"{PREFIX}gpu-driver-upgrade-state"
LABEL_LENGTH = 63
"""Maximum length of a label value, and of a resource name after its prefix."""
NOTES_LIMIT = 32
"""Maximum number of notes."""
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
            read = read_labels(own, gpus, lambda _: None).pool
            if read.source is Source.CLOUD and read.product is not None and read.mig_profile is None and not read.shared and count > 0:
                found.append((_pool(name, read.product, count, own, read.labels, gpus), own))
    return found


def _values(requirement: Mapping[str, Any]) -> list[str]:
    return [value for value in sequence(requirement.get("values")) if isinstance(value, str)][:VALUES_LIMIT]


def _pool(name: str, product: str, count: int, labels: Mapping[str, str], identity: Iterable[tuple[str, str]], gpus: GPUs) -> Pool:
    known = gpus.product(product)
    return Pool(
        architecture=known.architecture if known else None,
        product=known.name if known else product,
        memory_mebibytes=known.memory_mebibytes if known else None,
        count=count,
        host=labels.get(HOST_LABEL) or (known.host if known else None),
        source=Source.CLOUD,
        labels=tuple(pair for pair in identity if pair[0] != HOST_LABEL),
        nodes=(name,),
        provider=name,
    )


def read_inventory(
    nodes: Iterable[Mapping[str, Any]], slices: Iterable[Mapping[str, Any]], gpus: GPUs, *, node_pools: Iterable[Mapping[str, Any]] = ()
) -> Inventory:
    """Read Nodes, ResourceSlices and Karpenter's NodePools into an inventory. The result does not depend on their order."""
    devices = read_slices(slices)
    notes: set[str] = set()
    pools: list[Pool] = []
    with_pools: dict[str, _Node] = {}
    boots: dict[str, str] = {}
    for node in nodes:
        name = read_text(mapping(node, "metadata").get("name"))
        if name is None:
            continue
        boots[name] = (read_text(mapping(node, "status", "nodeInfo").get("bootID")) or "")[:128]
        reader = _Node(name, node, devices.get(name, ()), gpus, notes)
        found = reader.pools()
        if found:
            with_pools[name] = reader
        pools.extend(found)
    templates = sorted(read_node_pools(node_pools, gpus), key=lambda template: (template[0].nodes, template[0].labels))
    merged, said = _merge(pools), tuple(sorted(notes)[:NOTES_LIMIT])
    labels, taints = {name: it.labels for name, it in with_pools.items()}, {name: it.taints for name, it in with_pools.items()}
    return Inventory(merged, said, labels, taints, boots=boots).with_templates(templates)


def _merge(pools: Iterable[Pool]) -> tuple[Pool, ...]:
    """Join pools that differ only in their nodes and the UUIDs of their devices."""
    merged: dict[Pool, list[Pool]] = {}
    for pool in pools:
        merged.setdefault(replace(pool, nodes=(), uuids=(), devices=()), []).append(pool)

    def union(same: list[Pool], name: str) -> tuple[Any, ...]:
        return tuple(sorted({each for pool in same for each in getattr(pool, name)}))

    joined = (
        replace(key, nodes=union(same, "nodes"), uuids=union(same, "uuids"), devices=union(same, "devices")) for key, same in merged.items()
    )
    return tuple(sorted(joined, key=lambda pool: (pool.nodes, pool.resource, repr(pool))))


class _Node:
    def __init__(self, name: str, node: Mapping[str, Any], devices: Sequence[Device], gpus: GPUs, notes: set[str]) -> None:
        status = mapping(node, "status")
        self.name, self.devices, self.gpus, self.notes = name, devices, gpus, notes
        labels = mapping(node, "metadata", "labels")  # a file may contain any value
        self.labels = {key: value for key, value in labels.items() if isinstance(value, str) and len(value) <= LABEL_LENGTH}
        self.unschedulable, self.taints = mapping(node, "spec").get("unschedulable") is True, read_taints(mapping(node).get("spec"))
        # a node without conditions, as in a file, is ready
        self.ready = all(each.get("status") == "True" for each in objects(status, "conditions") if each.get("type") == "Ready")
        self.allocatable = status["allocatable"] if isinstance(status.get("allocatable"), dict) else None

    def note(self, what: str) -> None:
        self.notes.add(f"Node {self.name}: {what}")

    def pools(self) -> list[Pool]:
        read = read_labels(self.labels, self.gpus, self.note)
        resources = self._resources(read)
        if not (resources or self.devices or self._has_gpu(read.pool)):
            return []
        host = self.labels.get(HOST_LABEL) or read.pool.host
        pool = replace(read.pool, host=host, problems=self._problems(read.product_label or ""), nodes=(self.name,))
        claimable = [replace(each, has_plugin=bool(resources)) for each in self._claimable(pool)]
        if not resources and claimable:
            return claimable
        pool = self._with_devices(pool)
        if not resources:
            return [replace(pool, problems=pool.problems or ("it has no GPU resource; check the device plugin",))]
        return claimable + [self._offered(pool, read, name, amount) for name, amount in sorted(resources.items())]

    def _resources(self, read: NodeLabels) -> dict[str, int]:
        """Return the GPU resources with at least one device. They come from labels if the node has no status, as in a file."""
        if self.allocatable is None:
            offered = (read.count or 0) * (1 if read.replicas is None else read.replicas)
            return {GPU_RESOURCE: offered} if offered else {}
        found: dict[str, int] = {}
        for name, amount in self.allocatable.items():
            is_slice = str(name).startswith(MIG_RESOURCE_PREFIX) and len(name) <= LABEL_LENGTH
            if is_slice or name in (GPU_RESOURCE, SHARED_GPU_RESOURCE):
                number = read_count(amount)
                if number is None:
                    self.note(f"the amount of {name[:63]} has the invalid value {str(amount)[:63]!r}")
                elif number > 0:
                    found[name] = number
        return found

    def _has_gpu(self, pool: Pool) -> bool:
        present = any(self.labels.get(label) == "true" for label in self.gpus.presence.labels)
        return present or pool.product is not None or pool.source is not Source.UNKNOWN

    def _problems(self, product_label: str) -> tuple[str, ...]:
        layout, upgrade = self.labels.get(MIG_STATE, "success"), self.labels.get(UPGRADE_STATE, "")
        problems = {
            "its MIG layout is not uniform": product_label.endswith(INVALID),
            "the last change of its MIG layout failed": layout == "failed",
            f"its MIG layout is changing, state {layout[:63]}": layout not in ("", "success", "failed"),
            "the upgrade of its GPU driver failed": upgrade == "upgrade-failed",
            f"its GPU driver is being upgraded, state {upgrade[:63]}": upgrade not in ("", "upgrade-done", "upgrade-failed"),
            "it is cordoned": self.unschedulable,
            "it is not ready": not self.ready,
        }
        return tuple(problem for problem, exists in problems.items() if exists)

    def _offered(self, pool: Pool, read: NodeLabels, resource: str, amount: int) -> Pool:
        offered = replace(pool, resource=resource, count=amount)
        if resource.startswith(MIG_RESOURCE_PREFIX):
            return self._slices(offered)
        labelled = None if read.count is None else read.count * max(read.replicas or 0, 1)
        fewer = labelled is not None and labelled < amount
        if resource == SHARED_GPU_RESOURCE or (pool.source is Source.CLOUD and fewer):
            return replace(offered, shared=True)
        if pool.source is Source.GFD and fewer:
            # For a node with several kinds of GPU, GFD writes only one product.
            self.note(f"its labels describe only {labelled} of {amount} GPUs, so the operator ignores them")
            unknown = Pool()
            facts = ("architecture", "product", "memory_mebibytes", "mig_profile", "shared", "time_slices", "source", "labels")
            return replace(offered, **{name: getattr(unknown, name) for name in facts})
        return offered

    def _slices(self, pool: Pool) -> Pool:
        """Return the pool of MIG slices with the strategy `mixed`, which has separate labels for each profile."""
        profile = pool.resource.removeprefix(MIG_RESOURCE_PREFIX)
        prefix = f"{PREFIX}mig-{profile}."
        memory = read_integer(self.labels.get(f"{prefix}memory"))
        replicas = read_integer(self.labels.get(f"{prefix}replicas")) or 1
        sliced = 1 < replicas <= MAX_PODS_PER_GPU and self.labels.get(f"{prefix}sharing-strategy") == "time-slicing"
        slices = replicas if sliced else None
        return replace(pool, mig_profile=profile, memory_mebibytes=memory or None, shared=replicas > 1, time_slices=slices)

    def _with_devices(self, pool: Pool) -> Pool:
        """Prefer ResourceSlices to labels for devices of the device plugin, if all whole GPUs of the node are equal."""
        alike = {device.pool for device in self.devices if device.pool.mig_profile is None}
        listed = alike.pop() if len(alike) == 1 else None
        if listed is None or listed.architecture is None:
            return pool
        return replace(
            pool,
            source=Source.RESOURCE_SLICE,
            architecture=listed.architecture,
            product=pool.product or listed.product,
            memory_mebibytes=pool.memory_mebibytes if pool.mig_profile else listed.memory_mebibytes,
            driver=listed.driver or pool.driver,
            cuda=listed.cuda or pool.cuda,
        )

    def _claimable(self, pool: Pool) -> list[Pool]:
        kinds: dict[Pool, list[Device]] = {}
        for device in self.devices:
            kinds.setdefault(device.pool, []).append(device)
        node = {name: getattr(pool, name) for name in ("host", "problems", "nodes")}
        return [
            replace(
                kind,
                count=len(devices),
                uuids=tuple(device.uuid for device in devices if device.uuid),
                devices=tuple((self.name, device.identity) for device in devices if device.identity),
                **node,
            )
            for kind, devices in kinds.items()
        ]
