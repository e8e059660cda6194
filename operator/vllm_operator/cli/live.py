"""Read a VLLMDeployment, its revisions and the GPUs of a cluster with the user's account."""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, Unpack

from vllm_operator.api.labels import API_VERSION, KIND, NAME_LABEL, OPERATOR_NAME
from vllm_operator.api.reading import mapping, moment, objects, text
from vllm_operator.cli.documents import ClusterObjects
from vllm_operator.cli.inputs import InputError
from vllm_operator.cli.terminal import Line
from vllm_operator.controller.inventory_reader import ON_NODES, has_gpu_sign
from vllm_operator.controller.settings import PREFIX
from vllm_operator.inventory.devices import requested_devices
from vllm_operator.kube import client as kube
from vllm_operator.kube.api_client import KubeClient
from vllm_operator.kube.connection import MissingConnectionError, context_namespace, load_configuration

Read = TypeVar("Read")
Objects = list[dict[str, Any]]
REDRAW_SECONDS = 2.0
OPERATOR = {NAME_LABEL: OPERATOR_NAME}
"""Label of the Deployment and of the Lease of the operator, as the chart sets it."""
CONFIG_MAPS = {"rules": "--rules", "instance_types": "--instance-types"}
"""The operator's settings (without `_config_map`) that name a ConfigMap for plans, with the flags for a file instead."""


def with_client(arguments: argparse.Namespace, what: str, use: Callable[[KubeClient], Awaitable[Read]]) -> Read:
    """Use a client with the user's account. Requests raise InputError, which says that there is no `what` if it does not exist."""
    load = partial(load_configuration, _environment(arguments), context=arguments.context)

    async def run() -> Read:
        client = KubeClient(await load(), reload=load)
        try:
            return await use(client)
        finally:
            await client.close()

    try:
        return asyncio.run(run())
    except MissingConnectionError as error:
        raise InputError(str(error)) from error
    except kube.NotFound as error:
        raise InputError(f"there is no {what}") from error
    except kube.Forbidden as error:
        raise InputError(f"your account may not {error.verb} {error.resource}: {error}") from error
    except kube.ClusterError as error:
        raise InputError(f"the cluster cannot be read: {error}") from error


def read_live(arguments: argparse.Namespace) -> ClusterObjects:
    """Read a VLLMDeployment and the input of its plan, as the operator reads it. Raises InputError."""
    namespace, name = namespace_of(arguments), arguments.name

    async def read(client: KubeClient) -> ClusterObjects:
        resource, objects = await find_deployment(client, namespace, name)
        objects += [node for node in await client.find(kube.NODE, cached=True) if has_gpu_sign(node)]
        for kind in (kube.RESOURCE_SLICE, kube.NODE_POOL, kube.RESOURCE_CLAIM):
            objects += await find_if_there(client, kind, cached=True)
        objects += await _presets(client, resource)
        return ClusterObjects(resource, objects, await _pods(client), await _config_maps(client))

    return with_client(arguments, described(arguments), read)


def read_with_revisions(arguments: argparse.Namespace) -> tuple[dict[str, Any], Objects]:
    """Read a VLLMDeployment and its ControllerRevisions. Raises InputError."""
    namespace, name = namespace_of(arguments), arguments.name
    return with_client(arguments, described(arguments), lambda client: find_deployment(client, namespace, name))


def described(arguments: argparse.Namespace) -> str:
    """Return the VLLMDeployment that the arguments name, for a message."""
    return f"{KIND} {arguments.name} in the namespace {namespace_of(arguments)}"


async def find_deployment(client: kube.ClusterClient, namespace: str, name: str) -> tuple[dict[str, Any], Objects]:
    """Read a VLLMDeployment and its ControllerRevisions. Raises ClusterError."""
    resource = await client.get(kube.VLLM_DEPLOYMENT, name, namespace)
    revisions = await client.find(kube.REVISION, namespace, labels=kube.children_of(kube.REVISION, name))
    return resource, [{**entry, "kind": kube.REVISION.kind} for entry in revisions]  # list items have no kind


async def annotate(client: kube.ClusterClient, resource: Mapping[str, Any], annotation: str, value: str) -> None:
    """Set an annotation of a VLLMDeployment, and keep the others. Each annotation has its own field manager. Raises ClusterError."""
    metadata = {field: resource["metadata"][field] for field in ("name", "namespace")} | {"annotations": {annotation: value}}
    wanted = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}
    await client.apply(wanted, manager=f"vllm-operator-{annotation.rpartition('/')[2]}")


def namespace_of(arguments: argparse.Namespace) -> str:
    """Return the given namespace, else the namespace of the context."""
    given: str | None = arguments.namespace
    return given if given is not None else context_namespace(_environment(arguments), context=arguments.context)


def scope_of(arguments: argparse.Namespace) -> str | None:
    """Return the namespace as `namespace_of`; None for all namespaces."""
    return None if arguments.all_namespaces else namespace_of(arguments)


def _environment(arguments: argparse.Namespace) -> Mapping[str, str]:
    return {**os.environ, **({"KUBECONFIG": arguments.kubeconfig} if arguments.kubeconfig else {})}


async def screens(
    read: Callable[[], Awaitable[Read]], draw: Callable[[Read], list[Line]], *, redraw_seconds: float = REDRAW_SECONDS
) -> AsyncGenerator[list[Line]]:
    """Read and draw repeatedly. Raises ClusterError; an outage of the API server after the first read only delays the next screen."""
    shown = await read()
    while True:
        yield draw(shown)
        await asyncio.sleep(redraw_seconds)
        with suppress(kube.Unavailable):
            shown = await read()


async def _presets(client: KubeClient, resource: dict[str, Any]) -> Objects:
    reference = mapping(resource, "spec", "presetRef")
    if not reference:
        return []
    kind = kube.CLUSTER_PRESET if reference.get("kind") == kube.CLUSTER_PRESET.kind else kube.PRESET
    try:
        found = await client.find(kind, resource["metadata"]["namespace"] if kind.namespaced else None)
    except kube.NotFound:
        return []
    return [{**entry, "kind": kind.kind} for entry in found]


async def find_if_there(client: kube.ClusterClient, kind: kube.Kind, namespace: str | None = None, **query: Unpack[kube.Query]) -> Objects:
    """Return objects of a kind, as `client.find`; empty if the cluster does not have the kind, or without permission."""
    try:
        return list(await client.find(kind, namespace, **query))
    except (kube.NotFound, kube.Forbidden):
        return []


async def last_renewal(client: kube.ClusterClient) -> datetime | None:
    """Return when an operator renewed its Lease last; None without a Lease, or without the permission to list Leases."""
    leases = await find_if_there(client, kube.LEASE, labels=OPERATOR, cached=True)
    return max(filter(None, (moment(lease, "spec", "renewTime") for lease in leases)), default=None)


async def _pods(client: KubeClient) -> Objects | None:
    try:
        return [pod async for page in client.pages(kube.POD, fields=ON_NODES) for pod in page if requested_devices(pod)]
    except kube.Forbidden:
        return None


async def _config_maps(client: KubeClient) -> Mapping[str, Mapping[str, str]]:
    """Return the texts of the ConfigMaps that the operator's Deployment names in its settings."""
    operators = await find_if_there(client, kube.DEPLOYMENT, labels=OPERATOR)
    found: dict[str, Mapping[str, str]] = {}
    for purpose, flag in CONFIG_MAPS.items():
        names = {named for operator in operators if (named := named_by(operator, f"{purpose.upper()}_CONFIG_MAP")) is not None}
        if len(names) > 1:
            listed = " and ".join(sorted(map("/".join, names)))
            print(f"Warning: the operators of this cluster use {listed}. Choose one with {flag}.", file=sys.stderr)
        for namespace, name in names if len(names) == 1 else ():
            try:
                texts = mapping(await client.get(kube.CONFIG_MAP, name, namespace), "data")
            except kube.NotFound:
                continue
            except kube.Forbidden:
                print(f"Warning: your account may not get the ConfigMap {namespace}/{name}. Give it with {flag}.", file=sys.stderr)
                continue
            found[purpose] = {key: value for key, value in texts.items() if isinstance(value, str)}
    return found


def setting_of(operator: Mapping[str, Any], name: str) -> str:
    """Return a setting of an operator from the variables in its Deployment; empty without one."""
    containers = objects(operator, "spec", "template", "spec", "containers")
    values = (text(each, "value") for container in containers for each in objects(container, "env") if each.get("name") == PREFIX + name)
    return next((value for value in values if value), "")


def named_by(operator: Mapping[str, Any], name: str) -> tuple[str, str] | None:
    """Return namespace and name of the object that a setting of an operator names; None without one."""
    namespace, _, name = setting_of(operator, name).rpartition("/")
    return (namespace or text(operator, "metadata", "namespace"), name) if name else None
