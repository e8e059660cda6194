"""What `kubectl vllm check` says of nodes."""

from support.fake_cluster import FakeCluster
from testenv.nodes import gpu_node
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
