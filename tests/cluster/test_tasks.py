"""Every task of a running operator is known here, and what happens when it dies: the operator ends, or it is started again."""

import asyncio
import gc
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from support.cluster import Cluster, Simulator, the_pod
from support.operator_process import llama
from support.own_knowledge import ATTENTION_RULE, config_map
from support.stories import RUNNING
from vllm_operator.controller.app import Operator
from vllm_operator.controller.settings import Settings
from vllm_operator.kube.api_client import Fence, KubeClient
from vllm_operator.kube.connection import load_configuration

pytestmark = [
    pytest.mark.cluster,
    # uvloop complains, when it is collected, of a connection that kopf was still closing when its loop ended
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ENDS = ("connection", "leadership", "object cache", "preconditions", "user data", "workers")
"""Their end is the operator's end: it exits with 1 and is started again."""
RESTARTED = ("log", "stream of a log")
"""They are started again, and that is counted. The log's task owns the one that reads its stream."""
COUNTED_AS = {"stream of a log": "log"}


@dataclass
class Running:
    operator: Operator
    end: asyncio.Task[int]
    before: set[asyncio.Task[Any]]
    threads_before: set[threading.Thread]

    def threads(self) -> list[threading.Thread]:
        """Those that the operator has started, without those that a loop keeps for short work."""
        found = [thread for thread in threading.enumerate() if thread not in self.threads_before]
        return [thread for thread in found if not re.fullmatch(r"(asyncio|uvloop|ThreadPoolExecutor-\d+)_\d+", thread.name)]

    def tasks(self) -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks() - self.before if task is not self.end and not task.done()]

    def find(self, name: str) -> asyncio.Task[Any] | None:
        return next((task for task in self.tasks() if name_of(task) == name), None)

    def restarts(self, task: str) -> int:
        found = re.search(rf'vllm_operator_task_restarts_total{{task="{task}"}} (\d+)', self.operator.metrics.render().decode())
        return int(found[1]) if found else 0

    async def until(self, condition: Callable[[], object]) -> None:
        try:
            async with asyncio.timeout(30):
                while not condition():  # noqa: ASYNC110 - tasks and counters tell nobody
                    await asyncio.sleep(0.05)
        except TimeoutError:
            names = sorted(name_of(task) for task in self.tasks())
            raise AssertionError(f"it did not come true; not ready: {self.operator.readiness.missing}; tasks: {names}") from None


def name_of(task: asyncio.Task[Any]) -> str:
    """What kind of task it is: its name without the object that it is about."""
    name = task.get_name()
    if re.fullmatch(r"Task-\d+", name):
        return str(getattr(task.get_coro(), "__qualname__", name))
    return re.sub(r"^(log|reconcile) .*", r"\1", name)


@asynccontextmanager
async def running(cluster: Cluster, sim: Simulator) -> AsyncIterator[Running]:
    """An operator in this process, with a Pod whose log it follows."""
    await sim.script(path="ok", pull="0", load="hold")
    await cluster.create(config_map("rules", cluster.namespace, ATTENTION_RULE))
    before, threads = asyncio.all_tasks(), set(threading.enumerate())
    client = KubeClient(await load_configuration({"KUBECONFIG": str(cluster.kubeconfig)}), fence=Fence())
    rules = f"{cluster.namespace}/rules"
    settings = Settings(
        namespaces=(cluster.namespace,),
        lease=f"{cluster.namespace}/tasks",
        hub_endpoint="",
        http_host="127.0.0.1",
        http_port=0,
        rules_config_map=rules,
        workers=2,
    )
    operator, stop = Operator(settings, client), asyncio.Event()
    end = asyncio.create_task(operator.run(stop))
    made = Running(operator, end, before, threads)
    try:
        await made.until(lambda: operator.readiness)
        await cluster.create(llama(cluster.namespace))
        sim.log(await the_pod(cluster)).write(RUNNING)
        await made.until(lambda: made.find("stream of a log"))
        yield made
    finally:
        stop.set()
        await end
        await client.close()
        gc.collect()  # here, where the complaint is expected, and not in whatever test this process runs next


async def test_every_task_of_the_operator_is_in_the_table(served: Cluster, sim: Simulator) -> None:
    async with running(served, sim) as made:
        seen: set[str] = set()
        for _ in range(20):
            seen |= {name_of(task) for task in made.tasks()}
            await asyncio.sleep(0.1)
        parts = {task.get_name() for task in made.operator._tasks}
        threads = {thread.name for thread in made.threads()}
    assert parts - {*ENDS} == set()
    assert {*ENDS, *RESTARTED} - seen == set()
    assert threads == set()


@pytest.mark.parametrize("name", ENDS)
async def test_the_end_of_a_task_that_cannot_be_replaced_is_the_operators_end(
    name: str, served: Cluster, sim: Simulator, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(served, sim) as made:
        task = made.find(name)
        assert task is not None
        task.cancel()
        async with asyncio.timeout(30):
            assert await asyncio.shield(made.end) == 1
    assert "the operator exits, to be started again" in caplog.text


@pytest.mark.parametrize("name", RESTARTED)
async def test_a_task_that_can_be_replaced_is_started_again_and_counted(name: str, served: Cluster, sim: Simulator) -> None:
    counter = COUNTED_AS.get(name, name)
    async with running(served, sim) as made:
        task = made.find(name)
        assert task is not None
        task.cancel()
        await made.until(lambda: task.done())
        await made.until(lambda: made.restarts(counter) >= 1 and made.find(name))
        assert not made.end.done()
