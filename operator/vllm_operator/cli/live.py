"""Reading a VLLMDeployment, its revisions and the GPUs of a cluster with the user's account."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from vllm_operator.api.labels import KIND
from vllm_operator.api.spec import AcceleratorPolicy
from vllm_operator.cli.errors import InputError
from vllm_operator.cluster.client import (
    NODE,
    POD,
    RESOURCE_SLICE,
    REVISION,
    VLLM_DEPLOYMENT,
    ClusterError,
    Forbidden,
    NotFound,
    children_of,
)
from vllm_operator.cluster.connection import MissingConnectionError, configuration_paths, context_namespace, load_configuration
from vllm_operator.cluster.inventory import has_gpu_sign
from vllm_operator.cluster.kube import KubeClient
from vllm_operator.pods.reading import mapping

Objects = list[dict[str, Any]]


def read_live(namespace: str, name: str) -> tuple[dict[str, Any], Objects]:
    """Read a VLLMDeployment, its ControllerRevisions, the nodes with GPUs and the ResourceSlices.

    Raises:
        InputError: The object does not exist, or the cluster cannot be read.
    """
    return asyncio.run(_read(namespace, name, _nodes))


def read_with_revisions(namespace: str, name: str) -> tuple[dict[str, Any], Objects]:
    """Read a VLLMDeployment and its ControllerRevisions. Raises InputError."""
    return asyncio.run(_read(namespace, name, None))


async def _read(
    namespace: str, name: str, more: Callable[[KubeClient, Mapping[str, Any]], Awaitable[Objects]] | None
) -> tuple[dict[str, Any], Objects]:
    async with connected(f"{KIND} {name} in the namespace {namespace}") as client:
        resource = await client.get(VLLM_DEPLOYMENT, name, namespace)
        # items of a list have no kind
        revisions = [
            {**entry, "kind": REVISION.kind} for entry in await client.find(REVISION, namespace, labels=children_of(REVISION, name))
        ]
        return resource, [*revisions, *(await more(client, resource) if more is not None else ())]


@asynccontextmanager
async def connected(what: str) -> AsyncIterator[KubeClient]:
    """A client with the user's account. `what` is read: it is named if it does not exist.

    Raises:
        InputError: There is no cluster, or it refuses or does not answer a request inside the block.
    """
    try:
        client = KubeClient(await load_configuration(), reload=load_configuration)
    except MissingConnectionError as error:
        raise InputError(str(error)) from error
    try:
        yield client
    except NotFound as error:
        raise InputError(f"there is no {what}") from error
    except Forbidden as error:
        raise InputError(f"your account may not {error.verb} {error.resource}: {error}") from error
    except ClusterError as error:
        raise InputError(f"the cluster cannot be read: {error}") from error
    finally:
        await client.close()


async def namespace_or_current(given: str | None) -> str:
    """The given namespace, else that of the current context."""
    return given if given is not None else await asyncio.to_thread(context_namespace, configuration_paths())


async def _nodes(client: KubeClient, resource: Mapping[str, Any]) -> Objects:
    nodes = [node for node in await client.find(NODE, cached=True) if has_gpu_sign(node)]
    return [
        *nodes,
        *await resource_slices(client),
        *(await _pods(client) if mapping(resource, "spec", "accelerator").get("policy") == AcceleratorPolicy.MOST_FREE else ()),
    ]


async def _pods(client: KubeClient) -> Objects:
    """Pods with devices, for the policy MostFree."""
    try:
        return list(await client.find(POD))
    except Forbidden:
        return []


async def resource_slices(client: KubeClient) -> Objects:
    """The ResourceSlices; none without dynamic resource allocation, or without permission."""
    try:
        return list(await client.find(RESOURCE_SLICE, cached=True))
    except (NotFound, Forbidden):
        return []
