"""`kubectl vllm gpus`: the GPUs and MIG slices of the cluster, how many are free, and who uses the others.

Exit status: 0, or 2 if the nodes cannot be read.
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_operator.catalog.gpus import load_gpus
from vllm_operator.cli.gpus_page import gpus_page
from vllm_operator.cli.live import connected, resource_slices
from vllm_operator.cli.terminal import screen_width, show
from vllm_operator.cluster.client import NODE, POD, Forbidden
from vllm_operator.cluster.inventory import has_gpu_sign
from vllm_operator.planning.inventory.nodes import read_inventory

READ_STATUS = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command takes no arguments."""


def run(arguments: argparse.Namespace) -> int:
    """Print the devices. Return the exit status."""
    nodes, slices, pods = asyncio.run(_read())
    gpus = load_gpus()
    show(gpus_page(read_inventory(nodes, slices, gpus), pods, gpus, width=screen_width()))
    return READ_STATUS


async def _read() -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None]:
    async with connected("list of nodes") as client:
        nodes = [node for node in await client.find(NODE, cached=True) if has_gpu_sign(node)]
        try:
            pods: Sequence[Mapping[str, Any]] | None = await client.find(POD, cached=True)
        except Forbidden:
            pods = None
        return nodes, await resource_slices(client), pods
