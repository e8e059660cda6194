"""What `kubectl vllm check` says of nodes and of the operator."""

from support.fake_cluster import FakeCluster
from testenv.nodes import gpu_node
from vllm_operator import __version__
from vllm_operator.cli.check import CHECKS, OK


async def test_gpus_and_slices_of_a_node_are_told_apart() -> None:
    cluster = FakeCluster()
    cluster.put(gpu_node("h100-mig-mixed"))
    found = await CHECKS["GPU nodes"](cluster, "models")
    assert {result for result, _ in found} == {OK}
    assert [said.partition(": ")[2] for _, said in found] == [
        "MIG slice 1g.10gb of NVIDIA-H100-80GB-HBM3",
        "MIG slice 2g.20gb of NVIDIA-H100-80GB-HBM3",
        "MIG slice 3g.40gb of NVIDIA-H100-80GB-HBM3",
    ]


async def test_the_image_of_the_operator_is_named_as_its_tag_may_be_older_than_the_chart() -> None:
    cluster = FakeCluster()
    labels = {"app.kubernetes.io/name": "vllm-operator", "app.kubernetes.io/version": __version__}
    pod = {"containers": [{"name": "operator", "image": "registry.example.com/vllm-operator:older"}]}
    cluster.put(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "vllm-operator", "namespace": "vllm-system", "labels": labels},
            "spec": {"template": {"spec": pod}},
            "status": {"conditions": [{"type": "Available", "status": "True"}]},
        }
    )
    [(result, said)] = await CHECKS["operator"](cluster, "models")
    assert (result, said.partition("image ")[2]) == (OK, "registry.example.com/vllm-operator:older")
