"""`vllm-operator prime`: fill the caches of a VLLMDeployment before it serves, and wait until they are filled.

It sets the annotation `vllm-operator.dev/prime` to the current cache key, which is without effect for another key.
Exit status: 0 filled, 1 not filled in time or no shared caches, 2 the cluster or the object cannot be read.
"""

import argparse
import asyncio
import sys
import time
from functools import partial
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.conditions import CACHE_PUBLISHED, READY, Reason
from vllm_operator.api.labels import PRIME_ANNOTATION
from vllm_operator.api.status import FILLED
from vllm_operator.caches.address import reported_cache_claim
from vllm_operator.cli.inputs import add_name
from vllm_operator.cli.live import annotate, described, namespace_of, with_client
from vllm_operator.kube.client import VLLM_DEPLOYMENT, ClusterClient, Unavailable

FILLED_STATUS, NOT_FILLED_STATUS = 0, 1
LOOK_SECONDS = 2.0
PLAN_SECONDS = 30.0
"""Maximum time to wait for a plan if the command does not wait for the caches."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_name(parser)
    parser.add_argument(
        "--timeout",
        type=int,
        default=3600,
        metavar="SECONDS",
        help="maximum time to wait (default: 3600). 0 requests priming and does not wait",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Request priming and wait. Return the exit status."""
    wait = partial(prime, namespace=namespace_of(arguments), name=arguments.name, timeout_seconds=arguments.timeout)
    try:
        return with_client(arguments, described(arguments), wait)
    except KeyboardInterrupt:
        print("Stopped waiting. The operator continues to fill the caches.", file=sys.stderr)
        return NOT_FILLED_STATUS


async def prime(client: ClusterClient, namespace: str, name: str, *, timeout_seconds: float, look_seconds: float = LOOK_SECONDS) -> int:
    """Request priming and print its progress until the caches are filled. After the first read, an outage only delays it."""
    printed = requested = ""
    until = time.monotonic() + (timeout_seconds or PLAN_SECONDS)
    while True:
        try:
            resource = await client.get(VLLM_DEPLOYMENT, name, namespace)
            key, state, message = _state(resource)
            published = reading.named(resource, CACHE_PUBLISHED, "status", "conditions")
            can_publish = published and published.get("reason") != Reason.NOT_PUBLISHABLE
            if key and not reported_cache_claim(resource) and not can_publish:
                print(f"{name} has no PersistentVolumeClaim for caches that its Pods share, so they cannot be filled in advance. {message}")
                return NOT_FILLED_STATUS
            if key and requested != key:
                if reading.text(resource, "metadata", "annotations", PRIME_ANNOTATION) != key:
                    await annotate(client, resource, PRIME_ANNOTATION, key)
                requested = key
        except Unavailable as error:
            if not printed:
                raise
            state, message = "", f"The API server is not available: {error}"
        if message != printed:
            print(message, flush=True)
            printed = message
        if state in FILLED:
            print(f"The caches of {name} are filled (cache key {key}).")
            return FILLED_STATUS
        if requested and timeout_seconds == 0:
            return FILLED_STATUS
        if time.monotonic() >= until:
            if requested:
                print(f"The caches of {name} were not filled within {timeout_seconds:g} s. The operator continues to fill them.")
            else:
                print(f"{name} has no plan yet, so compiling was not requested. For the reason, see its condition Ready.")
            return NOT_FILLED_STATUS
        await asyncio.sleep(look_seconds)


def _state(resource: dict[str, Any]) -> tuple[str, str, str]:
    """Return key and state of the caches, and what is said about them. Without a shared PVC, caches are warm when they are published."""
    key, state = (reading.text(resource, "status", "cache", field) for field in ("key", "state"))
    published = reading.named(resource, CACHE_PUBLISHED, "status", "conditions")
    if key and not reported_cache_claim(resource) and published.get("status") == "True":
        state = "Warm"
    ready = reading.text(reading.named(resource, READY, "status", "conditions"), "message")
    return key, state, reading.text(resource, "status", "cache", "message") or ready or "Waiting for the operator."
