"""`vllm-operator prime`: fill the caches of a VLLMDeployment ahead of traffic, and wait until they are filled.

It sets the annotation `vllm-operator.dev/prime` to the present cache key; the operator in the cluster does the rest. So
it may be interrupted at any time, and nothing has to be undone: with the next key the annotation means nothing.

Exit status: 0 filled, 1 not filled in time or nowhere to fill, 2 the cluster or the object cannot be used.
"""

import argparse
import asyncio
import sys
import time
from typing import Any

from vllm_operator.api.conditions import CACHE_WARM
from vllm_operator.api.labels import KIND, PRIME_ANNOTATION
from vllm_operator.cluster.client import VLLM_DEPLOYMENT, ClusterClient, ClusterError
from vllm_operator.cluster.connection import MissingConnectionError, load_configuration
from vllm_operator.cluster.kube import KubeClient
from vllm_operator.pods import reading

FILLED_STATUS, NOT_FILLED_STATUS, BAD_INPUT_STATUS = 0, 1, 2
LOOK_SECONDS = 2.0
MANAGER = "vllm-operator-prime"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", metavar="NAME", help=f"name of the {KIND}; it may have spec.replicas 0")
    parser.add_argument("-n", "--namespace", default="default", help="its namespace (default: default)")
    parser.add_argument("--timeout", type=int, default=3600, metavar="SECONDS", help="how long to wait (default: 3600); 0 only asks")


def run(arguments: argparse.Namespace) -> int:
    """Ask for it and wait; return the exit status."""
    try:
        return asyncio.run(_connect(arguments))
    except KeyboardInterrupt:
        print("Not waiting any longer; the caches are being filled all the same.", file=sys.stderr)
        return NOT_FILLED_STATUS


async def _connect(arguments: argparse.Namespace) -> int:
    try:
        client = KubeClient(await load_configuration(), timeout_seconds=15)
    except MissingConnectionError as error:
        print(f"Error: {error}", file=sys.stderr)
        return BAD_INPUT_STATUS
    try:
        return await prime(client, arguments.namespace, arguments.name, timeout_seconds=arguments.timeout)
    except ClusterError as error:
        print(f"Error: {error}", file=sys.stderr)
        return BAD_INPUT_STATUS
    finally:
        await client.close()


async def prime(client: ClusterClient, namespace: str, name: str, *, timeout_seconds: float, look_seconds: float = LOOK_SECONDS) -> int:
    """Ask for the caches to be filled, and print what happens until they are; return the exit status.

    Raises:
        ClusterError: The object does not exist, or the API server does not answer.
    """
    said = asked = ""
    until = time.monotonic() + timeout_seconds
    while True:
        resource = await client.get(VLLM_DEPLOYMENT, name, namespace)
        key, state, message = _state(resource)
        if key and not reading.text(resource, "status", "cache", "claimName"):
            print(f"The caches of {name} are on no claim that its Pods share, so nothing can be filled ahead. {message}")
            return NOT_FILLED_STATUS
        if key and asked != key:
            await _ask(client, resource, key)
            asked = key
        if message != said:
            print(message, flush=True)
            said = message
        if state == "Warm":
            print(f"The caches of {name} are filled (directory {key}).")
            return FILLED_STATUS
        if time.monotonic() >= until and (asked or timeout_seconds > 0):
            return FILLED_STATUS if timeout_seconds == 0 else NOT_FILLED_STATUS
        await asyncio.sleep(look_seconds)


async def _ask(client: ClusterClient, resource: dict[str, Any], key: str) -> None:
    metadata = resource["metadata"]
    if (metadata.get("annotations") or {}).get(PRIME_ANNOTATION) == key:
        return
    operations: list[dict[str, Any]] = []
    if "annotations" not in metadata:
        operations.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    operations.append({"op": "add", "path": f"/metadata/annotations/{PRIME_ANNOTATION.replace('/', '~1')}", "value": key})
    await client.patch(VLLM_DEPLOYMENT, metadata["name"], metadata["namespace"], operations, manager=MANAGER)


def _state(resource: dict[str, Any]) -> tuple[str, str, str]:
    """Key and state of the caches, and what is said of them."""
    key, state = (reading.text(resource, "status", "cache", field) for field in ("key", "state"))
    condition = reading.named(resource, CACHE_WARM, "status", "conditions")
    return key, state, reading.text(condition, "message") or "The operator has not looked at it yet."
