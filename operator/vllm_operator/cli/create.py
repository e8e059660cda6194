"""`kubectl vllm create MODEL`: create a VLLMDeployment of a model, or print it.

Exit status: 0, or 2 if it is invalid or exists already, or the cluster does not accept it.
"""

import argparse
from typing import Any

from vllm_operator.api.labels import API_VERSION, GROUP, KIND
from vllm_operator.catalog.entry import load_file
from vllm_operator.catalog.gpus import GPUs
from vllm_operator.cli.imports.translation import valid_name
from vllm_operator.cli.inputs import InputError, add_namespace, add_output, invalid, print_as
from vllm_operator.cli.live import namespace_of, with_client
from vllm_operator.planning.validation import violations
from vllm_operator.sizing.resolve import find_product


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="organisation/name on the hub, or a URI (hf://, pvc://, s3://, gs:// or az://)")
    parser.add_argument("--name", metavar="NAME", help=f"name of the {KIND} (default: that of the model)")
    parser.add_argument("--replicas", type=int, metavar="N", help="number of replicas (default: 1)")
    parser.add_argument("--gpu", nargs="+", action="extend", default=[], metavar="GPU", help="only these GPUs, such as H100 or B200")
    parser.add_argument("--context-length", type=int, metavar="N", help="tokens of one request; default: the model's own")
    parser.add_argument("--concurrency", type=int, metavar="N", help="requests of this length at a time")
    add_namespace(parser)
    parser.add_argument("--dry-run", action="store_true", help="only print it")
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Create or print the object, with only the fields that were given. Return the exit status."""
    uri, gpus = arguments.model if "://" in arguments.model else f"hf://{arguments.model}", load_file(GPUs, "gpus.yaml")
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
    if problems := violations(manifest):
        raise invalid(f"the {KIND} {metadata['name']} would be", problems)
    if arguments.dry_run:
        print_as(manifest, arguments.output or "yaml")
        return 0
    manifest["metadata"]["namespace"] = namespace_of(arguments)
    made = with_client(arguments, f"CRD of {KIND}s, or no such namespace", lambda client: client.create(manifest))
    if arguments.output:
        print_as(made, arguments.output)
    else:
        print(f"{KIND.lower()}.{GROUP}/{metadata['name']} created")
    return 0


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, {})}
