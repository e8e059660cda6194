"""`kubectl vllm check`: whether a cluster is ready for VLLMDeployments. One line for each finding, with what to do.

Exit status: 0, or 1 if something must be done, or 2 if the cluster cannot be read.
"""

import argparse
import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product

from vllm_operator import __version__
from vllm_operator.api.crd import custom_resource_definition, preset_definition
from vllm_operator.api.labels import GROUP, PLURAL
from vllm_operator.api.plan import gpu_name
from vllm_operator.api.reading import Manifest, integer, mapping, moment, named, objects, sequence, text
from vllm_operator.api.spec import PRESET_PLURALS
from vllm_operator.catalog.gpus import load_gpus
from vllm_operator.cli.inputs import print_as
from vllm_operator.cli.live import OPERATOR, find_if_there, named_by, namespace_of, setting_of, with_client
from vllm_operator.cli.terminal import table
from vllm_operator.controller.inventory_reader import has_gpu_sign
from vllm_operator.controller.preconditions import REQUIRED
from vllm_operator.inventory.nodes import read_inventory
from vllm_operator.kube import client as kube
from vllm_operator.kube.client import ClusterClient, Forbidden
from vllm_operator.text.wording import few

OK, TO_DO, NOTE, UNKNOWN = "OK", "TO DO", "-", "?"
Findings = list[tuple[str, str]]
"""Result and details."""
INTEGRATIONS = {
    "gateway.networking.k8s.io": ("Gateway API", "spec.gateway", "gateway"),
    "inference.networking.k8s.io": ("inference extension", "an InferencePool", "gateway"),
    "keda.sh": ("KEDA", "scaling to zero", "keda"),
    "leaderworkerset.x-k8s.io": ("LeaderWorkerSet", "a replica that spans several nodes", ""),
    "monitoring.coreos.com": ("Prometheus operator", "the alerts of the chart", ""),
}
"""API groups with their titles, what needs them, and the setting of the operator."""
IS_DEFAULT = "storageclass.kubernetes.io/is-default-class"


def run(arguments: argparse.Namespace) -> int:
    """Print the findings. Return the exit status."""
    found = with_client(arguments, "API group", partial(examine, namespace=namespace_of(arguments)))
    if arguments.output:
        print_as([dict(zip(("check", "result", "details"), each, strict=True)) for each in found], arguments.output)
    else:
        print("\n".join(table(("CHECK", "RESULT", "DETAILS"), found)))
    return 1 if any(result == TO_DO for _, result, _ in found) else 0


async def examine(client: ClusterClient, namespace: str) -> list[tuple[str, str, str]]:
    """Return the name of each check, its result and details. `namespace` is where the user would create objects. Raises ClusterError."""
    found = []
    for name, check in CHECKS.items():
        try:
            found += [(name, *finding) for finding in await check(client, namespace)]
        except Forbidden as error:
            found.append((name, UNKNOWN, f"Your account may not {error.verb} {error.resource}."))
    return found


async def _definitions(client: ClusterClient, _: str) -> Findings:
    live, found = {text(each, "metadata", "name"): each for each in await client.find(kube.DEFINITION)}, []
    for definition in (custom_resource_definition(), *map(preset_definition, PRESET_PLURALS)):
        name = definition["metadata"]["name"]
        lacks = _fields(definition) - _fields(live.get(name, {}))
        problem = "is not installed" if name not in live else f"is of another version, without {min(lacks)}" if lacks else ""
        way = f"{name} {problem}. Run kubectl apply --server-side -f crds/ of version {__version__}"
        found.append((TO_DO, way) if problem else (OK, f"{name} has all fields of version {__version__}"))
    return found


def _fields(definition: Manifest) -> set[str]:
    found, schemas = set(), [("", mapping(each, "schema", "openAPIV3Schema")) for each in objects(definition, "spec", "versions")]
    for path, schema in schemas:  # which grows
        for name, field in mapping(schema, "properties").items():
            found.add(f"{path}{name}")
            schemas += [(f"{path}{name}.", mapping(field)), (f"{path}{name}[].", mapping(field, "items"))]
    return found


async def _operators(client: ClusterClient, _: str) -> Findings:
    found, now = [], datetime.now(UTC)
    for operator in await client.find(kube.DEPLOYMENT, labels=OPERATOR):
        (namespace, name), lease = (text(operator, "metadata", field) for field in ("namespace", "name")), named_by(operator, "LEASE")
        held = {text(it, "metadata", "name"): it for it in await client.find(kube.LEASE, lease[0])}.get(lease[1]) if lease else None
        seconds, renewed = integer(held, "spec", "leaseDurationSeconds") or 15, moment(held, "spec", "renewTime")
        version, log = text(operator, "metadata", "labels", "app.kubernetes.io/version"), f"kubectl logs -n {namespace} deployment/{name}"
        image = text(named(operator, "operator", "spec", "template", "spec", "containers", key="name"), "image")
        if named(operator, "Available", "status", "conditions").get("status") != "True":
            found.append((TO_DO, f"{name} is not ready, for example because a permission is missing: {log}"))
        elif lease and (renewed is None or now - renewed > timedelta(seconds=seconds)):
            found.append((TO_DO, f"{name} does not renew the Lease {'/'.join(lease)}, so it changes nothing: {log}"))
        elif version != __version__:
            found.append((TO_DO, f"{name} has version {version or '(unknown)'}, and this command {__version__}. Upgrade the older one"))
        else:
            found.append((OK, f"{name} in the namespace {namespace} works, version {version}, image {image or '(unknown)'}"))
    return found or [
        (TO_DO, "No Deployment of the chart was found. If the operator runs without it, ignore this; otherwise install the chart")
    ]


async def _permissions(client: ClusterClient, namespace: str) -> Findings:
    asked = {"verb": "create", "group": GROUP, "resource": PLURAL, "namespace": namespace}
    allowed = await _is_allowed(client, kube.ACCESS_REVIEW, asked)
    what = f"create VLLMDeployments in the namespace {namespace}"
    return [(OK, f"You may {what}") if allowed else (TO_DO, f"You may not {what}. The ClusterRole edit allows it")]


async def _operators_permissions(client: ClusterClient, _: str) -> Findings:
    found: Findings = []
    for operator in await client.find(kube.DEPLOYMENT, labels=OPERATOR):
        namespace, name = (text(operator, "metadata", field) for field in ("namespace", "name"))
        account = text(operator, "spec", "template", "spec", "serviceAccountName") or "default"
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        who = {"user": f"system:serviceaccount:{namespace}:{account}", "groups": groups}
        places = [place.strip() for place in setting_of(operator, "NAMESPACES").split(",")]  # empty: all
        asked = list(product(REQUIRED, places))
        answers = await asyncio.gather(*(_is_allowed(client, kube.SUBJECT_REVIEW, it.attributes(place), **who) for it, place in asked))
        denied = dict.fromkeys(it for (it, _), allowed in zip(asked, answers, strict=True) if not allowed)
        way = f"Allow it in the ClusterRole of its ServiceAccount {account}, as the chart does"
        found += [(TO_DO, f"{name} may not {it}, so {it.effect}. {way}") for it in denied]
        found += [] if denied else [(OK, f"{name} has the permissions that it always needs")]
    return found


async def _is_allowed(client: ClusterClient, kind: kube.Kind, asked: Mapping[str, object], **subject: object) -> bool:
    review = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {}, "spec": {**subject, "resourceAttributes": asked}}
    return mapping(await client.create(review), "status").get("allowed") is True


async def _integrations(client: ClusterClient, _: str) -> Findings:
    groups, found = {text(each, "name") for each in objects(await client.get_path("/apis"), "groups")}, []
    operators = await find_if_there(client, kube.DEPLOYMENT, labels=OPERATOR)
    enabled = {name for each in operators for name in setting_of(each, "INTEGRATIONS").split(",")}
    for group, (title, purpose, setting) in INTEGRATIONS.items():
        unused = f"{title} is installed, but not used. For {purpose}, set integrations.{setting} in the chart"
        there = (NOTE, unused) if setting and setting not in enabled else (OK, f"{title} is installed")
        found.append(there if group in groups else (NOTE, f"{title} is not installed. It is needed only for {purpose}"))
    return found


async def _storage(client: ClusterClient, _: str) -> Findings:
    default = next((it for it in await client.find(kube.STORAGE_CLASS) if text(it, "metadata", "annotations", IS_DEFAULT) == "true"), None)
    if default is None:
        return [(TO_DO, "No StorageClass is the default. Choose one, or set spec.cache.volume.storageClassName in each VLLMDeployment")]
    name, volumes = text(default, "metadata", "name"), await find_if_there(client, kube.VOLUME)
    own = [mapping(it, "spec") for it in volumes if text(it, "spec", "storageClassName") == name]
    modes = {str(mode) for spec in own for mode in sequence(spec.get("accessModes"))}
    shares = f" Its volumes are {', '.join(sorted(modes))}." if modes else ""
    shares += " Replicas on different nodes can share only ReadWriteMany volumes." if "ReadWriteMany" not in modes else ""
    grows = "" if default.get("allowVolumeExpansion") is True else " Its volumes cannot grow."
    return [(OK, f"The default StorageClass is {name}, of {text(default, 'provisioner')}.{shares}{grows}")]


async def _nodes(client: ClusterClient, _: str) -> Findings:
    nodes, found = [node for node in await client.find(kube.NODE, cached=True) if has_gpu_sign(node)], []
    for pool in read_inventory(nodes, await find_if_there(client, kube.RESOURCE_SLICE), load_gpus()).pools:
        gpu = gpu_name(pool.product or pool.architecture or "", pool.mig_profile)
        problem = " and ".join(pool.problems) or ("" if pool.architecture else "no label names the GPU: install GPU Feature Discovery")
        found.append((TO_DO if problem else OK, f"{few(pool.nodes, 3)}: {problem or gpu}"))
    return found or [(TO_DO, "No node has an NVIDIA GPU. Install the NVIDIA GPU Operator, or its device plugin and GPU Feature Discovery")]


CHECKS = {
    "CRDs": _definitions,
    "operator": _operators,
    "permissions": _permissions,
    "operator's permissions": _operators_permissions,
    "integrations": _integrations,
    "storage": _storage,
    "GPU nodes": _nodes,
}
