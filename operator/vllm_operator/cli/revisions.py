"""`kubectl vllm history` and `rollback`: the plans of a VLLMDeployment, and the way back to an earlier one.

A rollback is an annotation that the operator follows: an earlier revision runs, with the spec that it was made for, until the spec of the
object changes or a new plan is requested. The spec of the object stays as it is.

Exit status: 0, or 2 if the object or the revision does not exist, or cannot be used.
"""

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from vllm_operator.api.conditions import READY, REFUSALS, find_condition
from vllm_operator.api.labels import FAILED_ANNOTATION, GATE_ANNOTATION, ROLLBACK_ANNOTATION, SERVED_ANNOTATION
from vllm_operator.api.reading import Manifest, moment, text
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.caches.measurement import read_gate_record
from vllm_operator.cli.documents import parse_deployment
from vllm_operator.cli.inputs import InputError, print_as
from vllm_operator.cli.live import annotate, described, read_with_revisions, with_client
from vllm_operator.cli.plan import causes, difference_lines, plan_in, revisions_of
from vllm_operator.cli.terminal import age, table, wrap
from vllm_operator.planning.outcome import compare
from vllm_operator.planning.pinning import rollback_request, rollbacks_to_try
from vllm_operator.rendering.revision import RevisionError, is_recorded, last_served, number_of, read_planned_spec, read_revision

_RECORDS = {FAILED_ANNOTATION: "failed", SERVED_ANNOTATION: "served"}
"""What became of a plan, by annotation, the latest first."""
HEADER = ("REVISION", "AGE", "STATE", "GPU", "VLLM", "WHY")


def show_history(arguments: argparse.Namespace) -> int:
    """Print the plans. Return the exit status."""
    manifest, objects = read_with_revisions(arguments)
    resource = parse_deployment(manifest)
    rows = history(resource, revisions_of(resource, objects), datetime.now(UTC))
    if arguments.output:
        print_as(rows, arguments.output)
    else:
        print("\n".join(table(HEADER, [list(map(str, row.values())) for row in rows])) if rows else "There is no plan yet.")
    return 0


def history(resource: VLLMDeployment, revisions: Sequence[Manifest], now: datetime) -> list[dict[str, Any]]:
    """Return the revisions of an object, oldest first, in the order of the columns of the table."""
    running, rollbacks = resource.status.revision or "", [it.names for it in rollbacks_to_try(resource)]
    back, crash = resource.status.rollback, resource.status.last_crash
    current = next((it for it in revisions if text(it, "metadata", "name") == running and is_recorded(it, SERVED_ANNOTATION)), None)
    serves = (current or last_served(revisions)) if resource.status.ready_replicas else None
    rows, before = list[dict[str, Any]](), None
    for revision in revisions:
        name = text(revision, "metadata", "name")
        row = {"revision": number_of(revision), "age": age(moment(revision, "metadata", "creationTimestamp"), now)}
        reached = next((said for record, said in _RECORDS.items() if is_recorded(revision, record)), "")
        state = "serves" if revision is serves and reached == "served" else reached or ("not served yet" if name == running else "")
        row["state"] = "rolled back" if (running, name) in rollbacks else state
        try:
            made = read_revision(resource, revision)
            failed = f"It failed: {crash.signature}." if back and back.failed == name and crash else ""
            why = " ".join(filter(None, (*(causes(before, made) if before is not None else ()), _measured(revision), failed)))
            row |= {"gpu": f"{made.count} x {made.gpu or made.resource}", "version": made.engine_version or "", "why": why}
            before = made
        except RevisionError as error:
            row |= {"gpu": "", "version": "", "why": f"{error}."}
        rows.append(row)
    return rows


def _measured(revision: Manifest) -> str:
    record = read_gate_record(text(revision, "metadata", "annotations", GATE_ANNOTATION))
    if record is None or not record.is_over:
        return ""
    if record.failure or record.skipped:
        return f"Measured: it failed: {record.failure}" if record.failure else f"Not measured: {record.skipped}"
    return f"Measured: worse: {'; '.join(figure.text for figure in record.worse)}." if record.worse else "Measured: not worse."


def find_rollback(resource: VLLMDeployment, revisions: Sequence[Manifest], number: int | None) -> tuple[Manifest, Manifest, Manifest]:
    """Return the revision to go back to (default: the last that served before the current one), the current one, and that of the spec.

    `revisions` are those of the object, oldest first. Raises InputError if there is no such revision, or nothing to go back from.
    """
    name, running, ready = resource.metadata.name, resource.status.revision or "", find_condition(resource.status.conditions, READY)
    by_name = {text(each, "metadata", "name"): each for each in revisions}
    if resource.status.observed_generation != resource.metadata.generation or ready is None:
        raise InputError(
            f"the operator has not processed the requested spec of {name} yet. Try again, or check that it runs: kubectl vllm check"
        )
    if ready.reason in REFUSALS or running not in by_name:
        raise InputError(f"the requested spec of {name} has no plan that it could be rolled back from. {ready.message}")
    current, rollbacks = by_name[running], (it.names for it in rollbacks_to_try(resource))
    replaced = next((by_name[left] for to, left in rollbacks if to == running and left in by_name), current)
    if number is not None:
        target = next((each for each in revisions if number_of(each) == number), None)
    else:
        target = last_served([each for each in revisions if number_of(each) < number_of(current)])
    if target is None:
        wanted, way = (f"revision {number}", "") if number is not None else ("earlier revision that is known to have served", "Name one. ")
        known = ", ".join(str(number_of(each)) for each in revisions)
        raise InputError(f"{name} has no {wanted}. {way}It has {known}, and {number_of(current)} is the current one")
    if target in (current, replaced):
        way = "is the current one" if target is current else f"is the one for the requested spec. To return to it: {_end_command(resource)}"
        raise InputError(f"revision {number_of(target)} {way}")
    if not read_planned_spec(target):
        raise InputError(f"revision {number_of(target)} does not contain its spec")
    return target, current, replaced


def _end_command(resource: VLLMDeployment) -> str:
    return f"kubectl annotate vllm {resource.metadata.name} -n {resource.metadata.namespace} {ROLLBACK_ANNOTATION}-"


def roll_back(arguments: argparse.Namespace) -> int:
    """Request a rollback, and print what changes. Return the exit status."""
    manifest, objects = read_with_revisions(arguments)
    resource = parse_deployment(manifest)
    target, current, replaced = find_rollback(resource, revisions_of(resource, objects), arguments.revision)
    title = f"{resource.metadata.namespace}/{resource.metadata.name} from revision {number_of(current)} to revision {number_of(target)}"
    print(f"{'Would roll back' if arguments.dry_run else 'Rolling back'} {title}.")
    lines = difference_lines(compare(plan_in(resource, current), plan_in(resource, target)), "current", "then")
    print("\n".join(lines or ["The GPU, the image, the backends and the settings stay the same."]))
    if not arguments.dry_run:
        value = rollback_request(*(text(each, "metadata", "name") for each in (target, replaced)))
        with_client(arguments, described(arguments), lambda client: annotate(client, manifest, ROLLBACK_ANNOTATION, value))
        ending = "The rollback ends when the spec changes or a new plan is requested. To end it now:"
        print("\n" + "\n".join([*wrap(ending, ""), f"  {_end_command(resource)}"]))
    return 0
