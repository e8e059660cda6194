"""`kubectl vllm caches`: the caches of all VLLMDeployments: locations, savings, fetched and published artifacts.

Exit status: 0, or 2 if the cluster or the file cannot be read.
"""

import argparse
import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.labels import KIND
from vllm_operator.caches.address import reported_cache_claim
from vllm_operator.cli.documents import read_objects
from vllm_operator.cli.terminal import table
from vllm_operator.text import wording

READ_STATUS = 0
HEADER = ("NAMESPACE", "NAME", "KEY", "WHERE", "STATE", "COLD", "WARM", "SAVED", "HITS", "TOTAL", "FETCHED", "SIZE", "PUBLISHED", "TAG")
_MEBIBYTE = 2**20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("-n", "--namespace", help="namespace of the VLLMDeployments (default: that of the current context)")
    scope.add_argument("-A", "--all-namespaces", action="store_true", help="list the VLLMDeployments of all namespaces")
    scope.add_argument("-f", "--filename", metavar="FILE", help="read this file, from `kubectl get vllm -o yaml` (- is standard input)")
    parser.add_argument("-o", "--output", choices=("json",), help="print the list in this format")


def run(arguments: argparse.Namespace) -> int:
    """Print the table. Return the exit status."""
    if arguments.filename is not None:
        resources: Sequence[Mapping[str, Any]] = [it for it in read_objects(arguments.filename) if it.get("kind") == KIND]
    else:
        resources = asyncio.run(_read(arguments.namespace, everywhere=arguments.all_namespaces))
    rows = sorted((row for resource in resources if (row := read_row(resource))), key=lambda row: (row["namespace"], row["name"]))
    if arguments.output == "json":
        print(json.dumps(rows, indent=2))
    else:
        print("\n".join(table(HEADER, [_cells(row) for row in rows])) if rows else "No VLLMDeployment has caches yet.")
    return READ_STATUS


async def _read(namespace: str | None, *, everywhere: bool) -> Sequence[Mapping[str, Any]]:
    from vllm_operator.cli.live import (  # imported only here, because the Kubernetes client is slow to import
        connected,
        namespace_or_current,
    )
    from vllm_operator.kube.client import VLLM_DEPLOYMENT

    where = None if everywhere else await namespace_or_current(namespace)
    async with connected("VLLMDeployment on this API server: the operator is not installed") as client:
        return await client.find(VLLM_DEPLOYMENT, where, cached=True)


def read_row(resource: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a VLLMDeployment's row for the table of caches; None if it has no plan yet. Accepts any object."""
    cache = reading.mapping(resource, "status", "cache")
    key = reading.text(cache, "key")
    if not key:
        return None
    artifact = reading.mapping(cache, "artifact")
    cold, warm = reading.integer(cache, "coldStartSeconds"), reading.integer(cache, "warmStartSeconds")
    cold = reading.integer(artifact, "coldStartSeconds") if cold is None else cold
    return {
        "namespace": reading.text(resource, "metadata", "namespace"),
        "name": reading.text(resource, "metadata", "name"),
        "key": key,
        "where": reported_cache_claim(resource) or _storage(resource),
        "state": reading.text(cache, "state"),
        "coldStartSeconds": cold,
        "warmStartSeconds": warm,
        "savedSeconds": max(0, cold - warm) if cold is not None and warm is not None else None,
        "warmStarts": reading.integer(cache, "warmStarts"),
        "savedSecondsTotal": reading.integer(cache, "savedSeconds"),
        "fetch": reading.text(artifact, "fetch"),
        "sizeBytes": reading.integer(artifact, "sizeBytes"),
        "publishResult": reading.text(artifact, "publishResult"),
        "tag": reading.text(artifact, "tag"),
    }


def _storage(resource: Mapping[str, Any]) -> str:
    """Return the kind of storage without a shared PVC. A path implies HostPath."""
    cache = reading.mapping(resource, "spec", "cache")
    return reading.text(cache, "storage") or ("HostPath" if cache.get("hostPath") else "")


def _cells(row: Mapping[str, Any]) -> list[str]:
    size = row["sizeBytes"]
    hits, total = row["warmStarts"], row["savedSecondsTotal"]
    texts = (
        "" if hits is None else str(hits),
        _seconds(total),
        row["fetch"],
        "" if size is None else f"{size / _MEBIBYTE:.0f} MiB",
        row["publishResult"],
        row["tag"],
    )
    names = (row["namespace"], row["name"], row["key"], row["where"], row["state"])
    return [wording.clean(text, 128) for text in (*names, *map(_seconds, _durations(row)), *texts)]


def _durations(row: Mapping[str, Any]) -> Iterable[int | None]:
    return (row["coldStartSeconds"], row["warmStartSeconds"], row["savedSeconds"])


def _seconds(seconds: int | None) -> str:
    return "" if seconds is None else f"{seconds} s"
