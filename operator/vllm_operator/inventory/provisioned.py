"""Provisionable GPUs: pools of nodes that Karpenter or a cluster autoscaler would add for a Pod.

A NodePool of Karpenter counts if its requirements identify the GPU by a cloud label, such as `karpenter.k8s.aws/instance-gpu-name`. The
affinity uses that label, because autoscalers know only the labels that new nodes have from the beginning.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from vllm_operator.api.reading import mapping, objects, read_count, read_integer, read_text, sequence
from vllm_operator.catalog.gpus import GPUs, InstanceType
from vllm_operator.inventory.node_labels import read_labels
from vllm_operator.inventory.pools import GPU_RESOURCE, Pool, Source

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
