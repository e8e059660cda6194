"""`vllm-operator import`: convert another tool's deployment of vLLM to a VLLMDeployment.

The VLLMDeployment goes to standard output, a report to standard error. Exit status: 0, or 2 if the input cannot be converted.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from vllm_operator.catalog.loader import load_catalog
from vllm_operator.cli.documents import read_objects
from vllm_operator.cli.imports.sources import find_engines
from vllm_operator.cli.imports.translation import translate
from vllm_operator.cli.inputs import add_namespace, invalid
from vllm_operator.cli.terminal import section
from vllm_operator.planning.validation import violations

_LAST = ("", "Look at the plan before you apply it: vllm-operator plan -f FILE --nodes nodes.yaml", "")
_LIVE = ("deployment/", "deploy/", "deployments/")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "source",
        metavar="FILE|deployment/NAME",
        help="file with a Deployment, an InferenceService or LLMInferenceService of KServe, an InferenceService and a Model of LLMKube, or "
        "values of the production stack (- is standard input); or a Deployment of the cluster",
    )
    add_namespace(parser)
    parser.add_argument(
        "--model",
        metavar="URI",
        help="URI of the model (hf://, pvc://, s3://, gs:// or az://), if the manifest names none that can be used",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the VLLMDeployments and the reports. Return the exit status."""
    objects = _read(arguments)
    catalog = load_catalog()
    results = [(engine.source, *translate(engine, catalog, model=arguments.model)) for engine in find_engines(objects)]
    manifests = [manifest for _, manifest, _ in results]
    for manifest in manifests:
        if problems := violations(manifest):
            raise invalid(f"the VLLMDeployment {manifest['metadata']['name']} would be", problems)
    print(yaml.safe_dump_all(manifests, sort_keys=False, width=140, allow_unicode=True), end="")
    for source, manifest, report in results:
        lines = [line for title, sentences in report.sections() for line in section(title, sentences)]
        print(f"{source} -> VLLMDeployment {manifest['metadata']['name']}", *lines, *_LAST, sep="\n", file=sys.stderr)
    return 0


def _read(arguments: argparse.Namespace) -> Sequence[Mapping[str, Any]]:
    source = arguments.source
    prefix = next((prefix for prefix in _LIVE if source.startswith(prefix)), None)
    if prefix is None:
        return read_objects(source)
    # imported only here, because the Kubernetes client is slow to import
    from vllm_operator.cli.live import namespace_of, with_client
    from vllm_operator.kube.client import DEPLOYMENT

    name, namespace = source.removeprefix(prefix), namespace_of(arguments)
    what = f"Deployment {name} in the namespace {namespace}"
    found = with_client(arguments, what, lambda client: client.get(DEPLOYMENT, name, namespace))
    return [{**found, "kind": DEPLOYMENT.kind}]
