"""The simulated nodes carry what real ones do."""

import pytest

from testenv import gpu_node, node_kinds


@pytest.mark.parametrize("kind", node_kinds())
def test_every_kind_is_a_node_that_a_scheduler_can_use(kind: str) -> None:
    node = gpu_node(kind, "a-name")
    assert node["metadata"]["name"] == node["metadata"]["labels"]["kubernetes.io/hostname"] == "a-name"
    assert node["status"]["allocatable"] == node["status"]["capacity"]
    assert all(isinstance(value, str) for value in (*node["metadata"]["labels"].values(), *node["status"]["capacity"].values()))
    assert node["metadata"]["labels"]["kubernetes.io/arch"] == node["status"]["nodeInfo"]["architecture"]


@pytest.mark.parametrize(
    ("kind", "want_labels", "want_resources"),
    [
        ("h100-sxm", {"gpu.compute.major": "9", "gpu.memory": "81559", "gpu.product": "NVIDIA-H100-80GB-HBM3"}, {"gpu": "8"}),
        ("h100-sxm-old-driver", {"cuda.driver-version.full": "535.129.03", "cuda.driver-version.revision": "03"}, {"gpu": "8"}),
        ("gb10", {"gpu.compute.minor": "1", "gpu.memory": None, "cuda.driver-version.revision": "", "mig.capable": "false"}, {"gpu": "1"}),
        ("h100-mig-single", {"gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "gpu.memory": "9984", "gpu.count": "56"}, {"gpu": "56"}),
        (
            "h100-mig-mixed",
            {"gpu.replicas": "0", "mig.strategy": "mixed", "mig-3g.40gb.memory": "40320", "mig-2g.20gb.count": "1"},
            {"gpu": "0", "mig-1g.10gb": "2", "mig-2g.20gb": "1", "mig-3g.40gb": "1"},
        ),
        ("h100-mig-invalid", {"gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-INVALID", "mig.config.state": "pending"}, {"gpu": "0"}),
        ("h100-time-sliced", {"gpu.replicas": "4", "gpu.sharing-strategy": "time-slicing"}, {"gpu": "32"}),
        ("gke-h100", {"gpu.product": None, "gpu.present": None}, {"gpu": "8"}),
        ("nfd-only", {"gpu.compute.major": None}, {"gpu": "2"}),
        ("cpu", {"gpu.present": None}, {"gpu": None}),
    ],
)
def test_the_facts_of_a_kind_are_in_its_labels_and_resources(
    kind: str, want_labels: dict[str, str | None], want_resources: dict[str, str | None]
) -> None:
    node = gpu_node(kind)
    labels, resources = node["metadata"]["labels"], node["status"]["allocatable"]
    assert {key: labels.get(f"nvidia.com/{key}") for key in want_labels} == want_labels
    assert {key: resources.get(f"nvidia.com/{key}") for key in want_resources} == want_resources
