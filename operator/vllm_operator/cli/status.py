"""`kubectl vllm status NAME`: the state of a VLLMDeployment on one screen. `--watch` redraws it.

Exit status: 0, or 2 if the object does not exist or the cluster cannot be read.
"""

import argparse
import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from datetime import UTC, datetime

from vllm_operator.api.labels import KIND
from vllm_operator.cli.live import connected, namespace_or_current
from vllm_operator.cli.screen import Line
from vllm_operator.cli.status_page import status_page
from vllm_operator.cli.terminal import screen_width, show, show_each
from vllm_operator.cluster.client import EVENT, VLLM_DEPLOYMENT, ClusterClient, Forbidden, Manifest, Unavailable

READ_STATUS = 0
REDRAW_SECONDS = 1.0
"""Time between two screens: ages and estimates change while the object does not."""
WATCH_SECONDS = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", metavar="NAME", help=f"name of the {KIND}")
    parser.add_argument("-n", "--namespace", help=f"namespace of the {KIND} (default: that of the current context)")
    parser.add_argument("-w", "--watch", action="store_true", help="redraw the screen with each change, until Ctrl-C")


def run(arguments: argparse.Namespace) -> int:
    """Show the screen. Return the exit status."""
    try:
        asyncio.run(_run(arguments))
    except KeyboardInterrupt:
        if not arguments.watch:
            raise
    return READ_STATUS


async def _run(arguments: argparse.Namespace) -> None:
    namespace = await namespace_or_current(arguments.namespace)
    async with connected(f"{KIND} {arguments.name} in the namespace {namespace}") as client:
        if not arguments.watch:
            resource, events = await read_object(client, arguments.name, namespace)
            show(status_page(resource, events, datetime.now(UTC), width=screen_width()))
            return
        await show_each(screens(client, arguments.name, namespace, now=lambda: datetime.now(UTC), width=screen_width))


async def read_object(client: ClusterClient, name: str, namespace: str) -> tuple[Manifest, list[Manifest]]:
    """Read an object and its events; no events without the permission to read them.

    Raises:
        ClusterError: The object does not exist or cannot be read.
    """
    resource = await client.get(VLLM_DEPLOYMENT, name, namespace)
    about = {"involvedObject.kind": KIND, "involvedObject.name": name}
    try:
        return resource, list(await client.find(EVENT, namespace, fields=about))
    except Forbidden:
        return resource, []


async def screens(
    client: ClusterClient,
    name: str,
    namespace: str,
    *,
    now: Callable[[], datetime],
    width: Callable[[], int],
    redraw_seconds: float = REDRAW_SECONDS,
) -> AsyncGenerator[list[Line]]:
    """Yield a screen for each change of the object, and in between as the time goes on. An outage of the API server only delays it.

    Raises:
        ClusterError: The object does not exist or cannot be read.
    """
    shown: tuple[Manifest, list[Manifest]] | None = None
    while True:
        try:
            async with client.watch(VLLM_DEPLOYMENT, name, namespace, seconds=WATCH_SECONDS) as changes:
                shown = await read_object(client, name, namespace)
                change = asyncio.create_task(_next(changes))
                try:
                    while True:
                        yield status_page(*shown, now(), width=width())
                        await asyncio.wait((change,), timeout=redraw_seconds)
                        if not change.done():
                            continue
                        if not change.result():
                            break
                        shown = await read_object(client, name, namespace)
                        change = asyncio.create_task(_next(changes))
                finally:
                    change.cancel()
                    await asyncio.gather(change, return_exceptions=True)
        except Unavailable:
            if shown is None:
                raise
            yield status_page(*shown, now(), width=width())
        await asyncio.sleep(redraw_seconds)


async def _next(changes: AsyncIterator[None]) -> bool:
    """Wait for a change; False if the watch has ended."""
    async for _ in changes:
        return True
    return False
