"""`kubectl vllm replan`: request new plans for VLLMDeployments, all at once or in waves.

Exit status: 0 requested, and with `--wave` all serve; 1 one does not serve, so the rest was not requested; 2 invalid input.
"""

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence

from vllm_operator.api.conditions import CRASHED, PLAN_DRIFTED, READY, REFUSALS, STALLED, Reason
from vllm_operator.api.labels import KIND, REPLAN_ANNOTATION
from vllm_operator.api.reading import Manifest, mapping, named, text
from vllm_operator.cli.inputs import InputError, add_namespace, object_name
from vllm_operator.cli.live import annotate, scope_of, with_client
from vllm_operator.cli.terminal import wrap
from vllm_operator.kube.client import VLLM_DEPLOYMENT, ClusterClient, Unavailable
from vllm_operator.text.wording import count

LOOK_SECONDS = 2.0
DOES_NOT_SERVE_STATUS = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    names = "names of VLLMDeployments. Without names, all whose plan would differ today"
    parser.add_argument("names", nargs="*", metavar="NAME", type=object_name, help=names)
    parser.add_argument("-l", "--selector", metavar="KEY=VALUE,...", default="", help="without names: only those with these labels")
    add_namespace(parser, lists=True)
    parser.add_argument("--wave", type=int, metavar="N", help="request N at a time, and wait until they serve; stop if one does not")
    parser.add_argument("--timeout", type=int, default=3600, metavar="SECONDS", help="maximum time of a wave (default: 3600)")
    parser.add_argument("--dry-run", action="store_true", help="only list them, with what would differ")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """List the objects or request their plans. Return the exit status."""
    if (arguments.names and (arguments.selector or arguments.all_namespaces)) or arguments.wave == 0:
        raise InputError("give names, or choose with -l and -A; a wave has at least one")
    labels, namespace = read_selector(arguments.selector), scope_of(arguments)

    async def use(client: ClusterClient) -> int:
        if arguments.names:
            found: Sequence[Manifest] = [await client.get(VLLM_DEPLOYMENT, name, namespace) for name in arguments.names]
        else:
            found = list(filter(would_differ, await client.find(VLLM_DEPLOYMENT, namespace, labels=labels)))
        if arguments.dry_run or not found:
            print(f"{count(len(found), 'plan')} would be replaced.", *map(_described, found), sep="\n\n")
            return 0
        return await replan(client, found, wave=arguments.wave, timeout_seconds=arguments.timeout)

    return with_client(arguments, f"{KIND} {' or '.join(arguments.names)} in the namespace {namespace}", use)


def read_selector(written: str) -> Mapping[str, str]:
    """Read `key=value,...`. Raises InputError for other selectors of kubectl."""
    pairs = [part.partition("=") for part in written.split(",") if part]
    if any(not sign or key.endswith("!") or " " in key for key, sign, _ in pairs):
        raise InputError(f"the selector {written} is not of the form key=value,key=value")
    return {key: value.removeprefix("=") for key, _, value in pairs}


def would_differ(resource: Manifest) -> bool:
    """Return whether the operator reports that a new plan would differ."""
    return named(resource, PLAN_DRIFTED, "status", "conditions").get("reason") == Reason.PLAN_DRIFTED


def _described(resource: Manifest) -> str:
    message = text(named(resource, PLAN_DRIFTED, "status", "conditions"), "message")
    return "\n".join([_name(resource), *wrap(message, "  ", first="  ")])


async def replan(
    client: ClusterClient, found: Sequence[Manifest], *, wave: int | None, timeout_seconds: float, look_seconds: float = LOOK_SECONDS
) -> int:
    """Request new plans: with `wave`, that many at a time, each wave when the one before serves. Return the exit status."""
    token, size = str(int(time.time())), wave or len(found)
    for start in range(0, len(found), size):
        part, until = found[start : start + size], time.monotonic() + timeout_seconds
        for resource in part:
            await annotate(client, resource, REPLAN_ANNOTATION, token)
            print(f"{_name(resource)}: a new plan is requested", flush=True)
        for before in part if wave is not None else ():
            now, serves = before, None
            while serves is None and time.monotonic() < until:
                await asyncio.sleep(look_seconds)
                try:
                    now = await client.get(VLLM_DEPLOYMENT, before["metadata"]["name"], before["metadata"]["namespace"])
                    serves = judge(before, now, token)
                except Unavailable:
                    continue
            if not serves:
                message = text(named(now, READY, "status", "conditions"), "message")
                print("\n".join(wrap(f"{_name(before)} does not serve with the new plan: {message}", "")))
                left, (namespace, name) = len(found) - start - len(part), _name(before).split("/")
                print(f"Stopped; {left} more are as they were. To go back: kubectl vllm rollback {name} -n {namespace}")
                return DOES_NOT_SERVE_STATUS
            print(f"{_name(before)}: serves", flush=True)
    return 0


def judge(before: Manifest, now: Manifest, token: str) -> bool | None:
    """Return whether an object serves with the plan of this token; None while that is open. `before` is the object before the request."""
    status, status_before = (
        {name: named(each, name, "status", "conditions").get("status") for name in (READY, CRASHED, STALLED)} for each in (now, before)
    )
    reason, reason_before = (named(each, READY, "status", "conditions").get("reason") for each in (now, before))
    refused = reason in REFUSALS and reason_before not in REFUSALS
    if text(now, "status", "replanToken") != token:
        return False if refused else None
    if status[READY] == "True":
        return True
    crash, crash_before = (mapping(each, "status", "lastCrash").get("time") for each in (now, before))
    has_crashed, is_stalled = status[CRASHED] == "True" and crash != crash_before, status[STALLED] == "True" != status_before[STALLED]
    return False if refused or has_crashed or is_stalled else None


def _name(resource: Manifest) -> str:
    return f"{text(resource, 'metadata', 'namespace')}/{text(resource, 'metadata', 'name')}"
