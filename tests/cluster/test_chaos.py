"""Outages, crashes and edits at random: no update is lost, nothing foreign is touched, no status is unexplained.

`make chaos SEEDS="1 2 3" SECONDS=180` runs it. It prints the seed and what happened when.
"""

import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from chaos.run import Run, patient
from support.account import add_account, make_account, remove_account
from support.cluster import Cluster
from support.operator_process import OperatorProcess

pytestmark = [pytest.mark.cluster, pytest.mark.extended, pytest.mark.chaos, pytest.mark.timeout(0)]
NODE_KIND = "h100-sxm"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("seed", [int(seed) for seed in metafunc.config.getoption("--chaos-seeds").split()])


async def test_nothing_is_lost_foreign_or_unexplained(
    served: Cluster,
    gpu_nodes: Callable[..., list[str]],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    seed: int,
) -> None:
    [node] = [node["metadata"]["name"] for node in await served.list_all("Node")]
    [steady] = gpu_nodes(NODE_KIND, name="steady")
    kubeconfig = await make_account(served, tmp_path / "operator.kubeconfig")
    second = OperatorProcess(await add_account(served, "second", tmp_path / "second.kubeconfig"), served.namespace)
    async with patient(served) as client, AsyncExitStack() as stack:
        first = await stack.enter_async_context(OperatorProcess(kubeconfig, served.namespace))
        stack.push_async_exit(second)  # started by chance
        run = Run(client, (first, second), seed=seed, folder=tmp_path, nodes=(node, steady), node_kind=NODE_KIND)
        try:
            await run.run(request.config.getoption("--chaos-seconds"))
        except BaseException as error:
            error.add_note(run.journal.report())
            raise
    await remove_account(served)
    with capsys.disabled():
        sys.stdout.write(f"\n{run.summary()}\n")
    assert run.volumes.removed, f"{run.journal.report()}\nNo cleaning Pod has removed anything."
    assert not run.journal.violations, f"{run.journal.report()}\nThe state is in {tmp_path}."
