"""`kubectl vllm top`: all VLLMDeployments. On a terminal the table is redrawn until Ctrl-C; elsewhere it is printed once.

Exit status: 0, or 2 if the cluster cannot be read.
"""

import argparse
import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime

from vllm_operator.cli.live import connected, namespace_or_current
from vllm_operator.cli.screen import Line
from vllm_operator.cli.terminal import is_terminal, screen_width, show, show_each
from vllm_operator.cli.top_page import top_page
from vllm_operator.cluster.client import VLLM_DEPLOYMENT, ClusterClient, Unavailable

READ_STATUS = 0
REDRAW_SECONDS = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("-n", "--namespace", help="namespace of the VLLMDeployments (default: that of the current context)")
    scope.add_argument("-A", "--all-namespaces", action="store_true", help="list the VLLMDeployments of all namespaces")
    parser.add_argument("--once", action="store_true", help="print the table once, also on a terminal")


def run(arguments: argparse.Namespace) -> int:
    """Show the table. Return the exit status."""
    try:
        asyncio.run(_run(arguments))
    except KeyboardInterrupt:
        print()
    return READ_STATUS


async def _run(arguments: argparse.Namespace) -> None:
    namespace = None if arguments.all_namespaces else await namespace_or_current(arguments.namespace)
    async with connected("VLLMDeployment on this API server: the operator is not installed") as client:
        tables = screens(client, namespace, now=lambda: datetime.now(UTC), width=screen_width)
        if arguments.once or not is_terminal():
            show(await anext(tables))
        else:
            await show_each(tables)


async def screens(
    client: ClusterClient,
    namespace: str | None,
    *,
    now: Callable[[], datetime],
    width: Callable[[], int],
    redraw_seconds: float = REDRAW_SECONDS,
) -> AsyncGenerator[list[Line]]:
    """Yield the table again and again. An outage of the API server only delays it.

    Raises:
        ClusterError: The VLLMDeployments cannot be listed.
    """
    resources = await client.find(VLLM_DEPLOYMENT, namespace, cached=True)
    while True:
        yield top_page(resources, now(), width=width())
        await asyncio.sleep(redraw_seconds)
        try:
            resources = await client.find(VLLM_DEPLOYMENT, namespace, cached=True)
        except Unavailable:
            continue
