"""`kubectl vllm create MODEL` and `vllm-operator import`: write a VLLMDeployment of a model, or of another tool's deployment of vLLM.

`create` creates it, or prints it. `import` prints it to standard output, and a report to standard error. Exit status: 0, or 2 if the input
is invalid or cannot be converted, and of `create` if it exists already, or the cluster does not accept it.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from vllm_operator.api.labels import API_VERSION, GROUP, KIND
from vllm_operator.catalog.gpus import load_gpus
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.cli.documents import read_objects
from vllm_operator.cli.imports.sources import find_engines
from vllm_operator.cli.imports.translation import translate, valid_name
from vllm_operator.cli.inputs import InputError, invalid, print_as
from vllm_operator.cli.terminal import section
from vllm_operator.planning.validation import violations
from vllm_operator.sizing.resolve import find_product

_LAST = ("", "Look at the plan before you apply it: vllm-operator plan -f FILE --nodes nodes.yaml", "")
_LIVE = ("deployment", "deploy", "deployments")


def create(arguments: argparse.Namespace) -> int:
    """Create a VLLMDeployment, or print it. Return the exit status."""
    uri, gpus = arguments.model if "://" in arguments.model else f"hf://{arguments.model}", load_gpus()
    products = {given: find_product(given, gpus) for given in arguments.gpu}
    if unknown := next((given for given, product in products.items() if product is None), None):
        raise InputError(f"the catalog has no GPU {unknown}. `kubectl vllm catalog gpus` lists them")
    spec = {
        "model": {"uri": uri},
        "replicas": arguments.replicas,
        "accelerator": _given(products=[product.name for product in products.values() if product] or None),
        "sizing": _given(contextLength=arguments.context_length, concurrency=arguments.concurrency),
    }
    metadata = _given(name=arguments.name or valid_name(uri.rstrip("/").rpartition("/")[2]), namespace=arguments.namespace)
    manifest: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": _given(**spec)}
    _check(manifest)
    if arguments.dry_run:
        print_as(manifest, arguments.output or "yaml")
        return 0
    from vllm_operator.cli.live import namespace_of, with_client  # slow to import, and not always needed

    manifest["metadata"]["namespace"] = namespace_of(arguments)
    made = with_client(arguments, f"CRD of {KIND}s, or no such namespace", lambda client: client.create(manifest))
    if arguments.output:
        print_as(made, arguments.output)
    else:
        print(f"{KIND.lower()}.{GROUP}/{metadata['name']} created")
    return 0


def _check(manifest: Mapping[str, Any]) -> None:
    if problems := violations(manifest):
        raise invalid(f"the {KIND} {manifest['metadata']['name']} would be", problems)


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, {})}


def import_engines(arguments: argparse.Namespace) -> int:
    """Print the VLLMDeployments, and the report. Return the exit status."""
    objects = _read(arguments)
    catalog = load_catalog()
    results = [(engine.source, *translate(engine, catalog, model=arguments.model)) for engine in find_engines(objects)]
    manifests = [manifest for _, manifest, _ in results]
    for manifest in manifests:
        _check(manifest)
    print(yaml.safe_dump_all(manifests, sort_keys=False, width=140, allow_unicode=True), end="")
    for source, manifest, report in results:
        lines = [line for title, sentences in report.sections() for line in section(title, sentences)]
        print(f"{source} -> VLLMDeployment {manifest['metadata']['name']}", *lines, *_LAST, sep="\n", file=sys.stderr)
    return 0


def _read(arguments: argparse.Namespace) -> Sequence[Mapping[str, Any]]:
    kind, _, name = arguments.source.partition("/")
    if kind not in _LIVE or not name or Path(arguments.source).exists():  # a folder can have this name
        return read_objects(arguments.source)
    from vllm_operator.cli.live import namespace_of, with_client  # slow to import, and not always needed
    from vllm_operator.kube.client import DEPLOYMENT

    namespace = namespace_of(arguments)
    what = f"Deployment {name} in the namespace {namespace}"
    return [{**with_client(arguments, what, lambda client: client.get(DEPLOYMENT, name, namespace)), "kind": DEPLOYMENT.kind}]
