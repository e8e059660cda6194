"""Node pools that have no node at the moment, which the owner of the cluster lists in a ConfigMap: a key for each, with the GPUs of a node.

    data:
      l40s-spot: 4 x NVIDIA-L40S node.kubernetes.io/instance-type=g6e.12xlarge
      h100: 8 x NVIDIA-H100-80GB-HBM3 cloud.google.com/gke-nodepool=h100 kubernetes.io/arch=amd64

The labels are those that the cluster autoscaler knows before it adds a node. The texts are untrusted. An invalid entry is left out and
reported.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from vllm_operator.catalog.gpus import GPUs

ENTRIES_LIMIT, TEXT_LIMIT, LABELS_LIMIT = 64, 1024, 8
SHOWN = 60
"""Characters of an invalid entry in a message."""
FORM = "write the GPUs and the labels of a node, such as `4 x NVIDIA-L40S node.kubernetes.io/instance-type=g6e.12xlarge`"
_GPUS = re.compile(r"([1-9][0-9]?)\s*x\s*([A-Za-z0-9][-A-Za-z0-9_.]{0,62})((?:\s+\S+)*)", re.ASCII)
_LABEL = re.compile(r"((?:[a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9][-A-Za-z0-9_.]{0,62})=([A-Za-z0-9][-A-Za-z0-9_.]{0,62})", re.ASCII)


@dataclass(frozen=True, slots=True)
class InstanceType:
    """The nodes of a pool: `count` GPUs of a product as in nvidia.com/gpu.product, and labels that select the nodes."""

    name: str
    product: str
    count: int
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ReadInstanceTypes:
    """The valid entries, their names, and a sentence about each invalid one."""

    types: tuple[InstanceType, ...] = ()
    added: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def read_instance_types(texts: Mapping[str, str], gpus: GPUs) -> ReadInstanceTypes:
    """Read node pools by name."""
    found: list[InstanceType] = []
    problems: list[str] = []
    for name in sorted(texts):
        if len(found) >= ENTRIES_LIMIT:
            problems.append(f"there are more than {ENTRIES_LIMIT} node pools; the others are ignored.")
            break
        read = _read(name, texts[name], gpus)
        if isinstance(read, InstanceType):
            found.append(read)
        else:
            problems.append(f"node pool {name[:SHOWN]}: {read}. The entry is ignored.")
    return ReadInstanceTypes(tuple(found), tuple(each.name for each in found), tuple(problems))


def _read(name: str, text: str, gpus: GPUs) -> InstanceType | str:
    """The node pool of an entry, or what is wrong."""
    match = _GPUS.fullmatch(text.strip()) if len(text) <= TEXT_LIMIT else None
    if match is None:
        return FORM
    labels = [_LABEL.fullmatch(word) for word in match[3].split()]
    if not labels or len(labels) > LABELS_LIMIT or not all(labels):
        return FORM
    if gpus.product(match[2]) is None:
        return f"{match[2]} is not a known GPU; write a name that `vllm-operator catalog gpus` lists"
    return InstanceType(name, match[2], int(match[1]), tuple(sorted({label[1]: label[2] for label in labels if label}.items())))
