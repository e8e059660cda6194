"""`kubectl vllm timeline NAME`: the last cold and the last warm start of a VLLMDeployment, stage by stage.

Exit status: 0, 1 if no start has finished yet, 2 if the object does not exist or the cluster cannot be read.
"""

import argparse
import asyncio
import re
import sys
from collections.abc import Mapping
from typing import Any

from vllm_operator.api.labels import KIND
from vllm_operator.cli.live import connected, namespace_or_current
from vllm_operator.cli.timeline_page import OTHER, Start, print_starts, rank
from vllm_operator.cluster.client import VLLM_DEPLOYMENT, Manifest
from vllm_operator.pods import reading

SHOWN_STATUS, NO_START_STATUS = 0, 1
FORMS = ("svg", "json")
_STAGES_SHOWN = 16
_RECORDED = re.compile(r"([A-Za-z]{1,40})=([0-9]{1,8})")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", metavar="NAME", help=f"name of the {KIND}")
    parser.add_argument("-n", "--namespace", help=f"namespace of the {KIND} (default: that of the current context)")
    parser.add_argument("-o", "--output", choices=FORMS, help="print a picture (svg) or a JSON list")


def run(arguments: argparse.Namespace) -> int:
    """Print the starts. Return the exit status."""
    resource = asyncio.run(_read(arguments))
    starts = starts_of_status(resource)
    if not starts:
        print(
            f"{arguments.name} has finished no start with its current caches yet. To see the current start, run kubectl vllm status.",
            file=sys.stderr,
        )
        return NO_START_STATUS
    print_starts(starts, f"Starts of {resource['metadata']['namespace']}/{arguments.name}", arguments.output)
    return SHOWN_STATUS


def starts_of_status(resource: Mapping[str, Any]) -> list[Start]:
    """The last cold and the last warm start with the current caches, as the status has them."""
    cache = reading.mapping(resource, "status", "cache")
    found = []
    for kind in ("cold", "warm"):
        total = reading.integer(cache, f"{kind}StartSeconds")
        if total is None or total < 0:
            continue
        recorded = _RECORDED.findall(reading.text(cache, f"{kind}Stages"))[:_STAGES_SHOWN]
        known = sorted(((stage, float(seconds)) for stage, seconds in recorded), key=lambda each: rank(each[0]))
        rest = total - sum(seconds for _, seconds in known)
        found.append(Start(f"{kind} start", (*known, *(((OTHER, float(rest)),) if rest > 0 else ()))))
    return found


async def _read(arguments: argparse.Namespace) -> Manifest:
    namespace = await namespace_or_current(arguments.namespace)
    async with connected(f"{KIND} {arguments.name} in the namespace {namespace}") as client:
        return await client.get(VLLM_DEPLOYMENT, arguments.name, namespace)
