"""`kubectl vllm history`: the plans of a VLLMDeployment, and what changed between them.

Exit status: 0 shown, 2 the input cannot be used.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import yaml

from vllm_operator.api.labels import KIND
from vllm_operator.api.plan import Plan
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.cli.documents import name_of, parse_deployment, read_objects
from vllm_operator.cli.errors import InputError
from vllm_operator.cli.revisions import Revision, read_revisions
from vllm_operator.cli.tables import wrap
from vllm_operator.planning.differences import Difference, compare

SHOWN_STATUS = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", metavar="NAME", help="name of the VLLMDeployment")
    parser.add_argument("-n", "--namespace", default="default", help="namespace of the VLLMDeployment (default: default)")
    parser.add_argument(
        "-f",
        "--filename",
        metavar="FILE",
        help="read this file instead of the cluster, from `kubectl get vllm,deployments,controllerrevisions -o yaml` (- is standard input)",
    )
    parser.add_argument("-o", "--output", choices=("json", "yaml"), help="print the history in this format")


def run(arguments: argparse.Namespace) -> int:
    """Show the history; return the exit status."""
    resource, revisions = read_history(arguments.name, namespace=arguments.namespace, path=arguments.filename)
    if arguments.output == "json":
        print(json.dumps(_for_programs(resource, revisions), indent=2))
    elif arguments.output == "yaml":
        print(yaml.safe_dump(_for_programs(resource, revisions), sort_keys=False, width=140, allow_unicode=True), end="")
    else:
        print("\n".join(_page(resource, revisions)))
    return SHOWN_STATUS


def read_history(name: str, *, namespace: str, path: str | None) -> tuple[VLLMDeployment, list[Revision]]:
    """Read a VLLMDeployment and its revisions from the cluster, or from a file.

    Raises:
        InputError: They are not there, or cannot be read.
    """
    if path is None:
        from vllm_operator.cli.live import read_with_revisions  # imported only here, because the Kubernetes client is slow to import

        manifest, objects = read_with_revisions(namespace, name)
    else:
        objects = read_objects(path)
        found = [entry for entry in objects if entry.get("kind") == KIND and name_of(entry) == name]
        if len(found) != 1:
            raise InputError(f"{path} contains {'several objects' if found else 'no object'} of kind {KIND} with the name {name}")
        manifest = found[0]
    resource = parse_deployment(manifest)
    return resource, read_revisions(resource, objects)


def in_force(resource: VLLMDeployment) -> str | None:
    """The name of the revision in force; None if there is none."""
    return resource.status.pinned_plan.revision if resource.status.pinned_plan is not None else None


def causes(before: Plan | None, plan: Plan) -> Iterator[str]:
    """Why a plan was made, as far as the two plans tell."""
    if before is None:
        return
    if plan.replan_token != before.replan_token:
        yield "A new plan was requested."
    if plan.spec_digest != before.spec_digest:
        yield f"The spec changed (generation {before.observed_generation} to {plan.observed_generation})."
    if plan.catalog_version != before.catalog_version:
        yield f"Made with catalog {plan.catalog_version}, before {before.catalog_version}."
    parts, parts_before = ({part.name: part.value for part in each.cache_key_parts} for each in (plan, before))
    if parts.get("generation") != parts_before.get("generation"):
        yield "The cache directory was damaged and replaced."
    elif plan.cache_key != before.cache_key:
        changed = ", ".join(sorted(name for name in parts.keys() | parts_before.keys() if parts.get(name) != parts_before.get(name)))
        yield f"The cache directory changed because of: {changed or 'the digest of the image'}."


def _page(resource: VLLMDeployment, revisions: Sequence[Revision]) -> Iterator[str]:
    if not revisions:
        yield f"{resource.metadata.namespace}/{resource.metadata.name} has no revisions."
        return
    yield "REVISION  RECORDED              NAME"
    for before, revision in pairwise((None, *revisions)):
        assert revision is not None  # only the first of all pairs begins with None
        mark = "*" if revision.name == in_force(resource) else " "
        yield f"{str(revision.number) + mark:<8}  {revision.recorded or '-':<20}  {revision.name}"
        yield from _changes(before.plan if before is not None else None, revision, is_first=before is None)
    yield ""
    yield f"* in force. To see a plan: kubectl vllm plan {resource.metadata.name} -n {resource.metadata.namespace} --revision N"


def _changes(before: Plan | None, revision: Revision, *, is_first: bool) -> Iterator[str]:
    if revision.plan is None:
        yield from wrap(f"{revision.problem}.", "    ")
        return
    if before is None:
        yield from wrap(_in_short(revision.plan), "    ")
        if not is_first:
            yield "    The revision before it cannot be read."
        return
    for cause in causes(before, revision.plan):
        yield from wrap(cause, "    ")
    differences = compare(before, revision.plan)
    for difference in differences:
        yield from wrap(_in_words(difference), "    ")
    if not differences:
        yield "    The GPU, the image, the backends and the settings stay the same."


def _in_short(plan: Plan) -> str:
    gpu = f"{plan.product or 'unknown GPU'} ({plan.architecture})" if plan.architecture else plan.product or "unknown GPU"
    preset = f" From {plan.preset}: {', '.join(plan.preset.fields) or 'nothing'}." if plan.preset is not None else ""
    return f"{plan.count}x {gpu}, image {plan.image}.{preset}"


def _in_words(difference: Difference) -> str:
    before, after = ("not set" if value is None else value or "set" for value in (difference.before, difference.after))
    reason = difference.after_reason or ""
    return f"{difference.subject.removeprefix('The ')}: {before} -> {after}" + (f"  ({reason.rstrip('.')})" if reason else "")


def _for_programs(resource: VLLMDeployment, revisions: Sequence[Revision]) -> list[dict[str, Any]]:
    return [
        {
            "revision": revision.number,
            "name": revision.name,
            "recorded": revision.recorded or None,
            "inForce": revision.name == in_force(resource),
            "problem": revision.problem or None,
            "causes": list(causes(before.plan, revision.plan)) if before is not None and revision.plan is not None else [],
            "differences": [
                {"subject": found.subject, "before": found.before, "after": found.after, "reason": found.after_reason}
                for found in (compare(before.plan, revision.plan) if before and before.plan and revision.plan else ())
            ],
        }
        for before, revision in pairwise((None, *revisions))
        if revision is not None
    ]
