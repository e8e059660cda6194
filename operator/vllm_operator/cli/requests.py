"""`kubectl vllm prime`, `replan` and `race`: request something of the operator with an annotation, and wait until it is done.

`prime` fills the caches of a VLLMDeployment before it serves. Its annotation has the current cache key, which is without effect for another
key. Exit status: 0 filled, 1 not filled in time or no shared caches, 2 the cluster or the object cannot be read.

`replan` requests new plans for VLLMDeployments, all at once or in waves. Exit status: 0 requested, and with `--wave` all serve; 1 one does
not serve, so the rest was not requested; 2 invalid input.

`race` requests races of backends; `race export` prints the winners as rules. Exit status: 0, or 2 if an object cannot be read.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import yaml

from vllm_operator.api.conditions import CACHE_PUBLISHED, CRASHED, PLAN_DRIFTED, READY, REFUSALS, STALLED, Reason
from vllm_operator.api.labels import KIND, PRIME_ANNOTATION, RACE_ANNOTATION, REPLAN_ANNOTATION
from vllm_operator.api.reading import Manifest, mapping, named, text
from vllm_operator.api.status import FILLED
from vllm_operator.caches.address import reported_cache_claim
from vllm_operator.caches.measurement import read_race
from vllm_operator.cli.inputs import InputError
from vllm_operator.cli.live import annotate, described, namespace_of, scope_of, with_client
from vllm_operator.cli.terminal import wrap
from vllm_operator.kube.client import REVISION, VLLM_DEPLOYMENT, ClusterClient, Unavailable, watched_labels
from vllm_operator.text.wording import count

DONE_STATUS, NOT_DONE_STATUS = 0, 1
LOOK_SECONDS = 2.0
PLAN_SECONDS = 30.0
"""Maximum time to wait for a plan if `prime` does not wait for the caches."""


def run_prime(arguments: argparse.Namespace) -> int:
    """Request priming, and wait. Return the exit status."""
    wait = partial(prime, namespace=namespace_of(arguments), name=arguments.name, timeout_seconds=arguments.timeout)
    try:
        return with_client(arguments, described(arguments), wait)
    except KeyboardInterrupt:
        print("Stopped waiting. The operator continues to fill the caches.", file=sys.stderr)
        return NOT_DONE_STATUS


async def prime(client: ClusterClient, namespace: str, name: str, *, timeout_seconds: float, look_seconds: float = LOOK_SECONDS) -> int:
    """Request priming and print its progress until the caches are filled. After the first read, an outage only delays it."""
    printed = requested = ""
    until = time.monotonic() + (timeout_seconds or PLAN_SECONDS)
    while True:
        try:
            resource = await client.get(VLLM_DEPLOYMENT, name, namespace)
            key, state, message = _state(resource)
            published = named(resource, CACHE_PUBLISHED, "status", "conditions")
            can_publish = published and published.get("reason") != Reason.NOT_PUBLISHABLE
            if key and not reported_cache_claim(resource) and not can_publish:
                print(f"{name} has no PersistentVolumeClaim for caches that its Pods share, so they cannot be filled in advance. {message}")
                return NOT_DONE_STATUS
            if key and requested != key:
                if text(resource, "metadata", "annotations", PRIME_ANNOTATION) != key:
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
            return DONE_STATUS
        if requested and timeout_seconds == 0:
            return DONE_STATUS
        if time.monotonic() >= until:
            if requested:
                print(f"The caches of {name} were not filled within {timeout_seconds:g} s. The operator continues to fill them.")
            else:
                print(f"{name} has no plan yet, so compiling was not requested. For the reason, see its condition Ready.")
            return NOT_DONE_STATUS
        await asyncio.sleep(look_seconds)


def _state(resource: Manifest) -> tuple[str, str, str]:
    """Return key and state of the caches, and what is said about them. Without a shared PVC, caches are warm when they are published."""
    key, state = (text(resource, "status", "cache", field) for field in ("key", "state"))
    published = named(resource, CACHE_PUBLISHED, "status", "conditions")
    if key and not reported_cache_claim(resource) and published.get("status") == "True":
        state = "Warm"
    ready = text(named(resource, READY, "status", "conditions"), "message")
    return key, state, text(resource, "status", "cache", "message") or ready or "Waiting for the operator."


def run_replan(arguments: argparse.Namespace) -> int:
    """Request new plans, or list those that would differ. Return the exit status."""
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
    return "\n".join([_name(resource), *wrap(message or "Today's plan would be the same.", "  ", first="  ")])


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
                return NOT_DONE_STATUS
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


def run_race(arguments: argparse.Namespace) -> int:
    """Request a race, or print the winners of races as rules."""

    async def use(client: ClusterClient) -> None:
        if arguments.name == "export":
            rules = export_rules(await client.find(REVISION, namespace_of(arguments), labels=watched_labels(REVISION)))
            return print(yaml.safe_dump(rules, sort_keys=False, width=140) if rules else "# No race has a winner.")
        resource = await client.get(VLLM_DEPLOYMENT, arguments.name, namespace_of(arguments))
        await annotate(client, resource, RACE_ANNOTATION, str(int(time.time())))
        return print(
            f"Requested a race of the backends of {arguments.name}; the operator will roll out a winner. "
            f"Progress: kubectl vllm status {arguments.name} -n {namespace_of(arguments)}"
        )

    with_client(arguments, described(arguments), use)
    return 0


def export_rules(revisions: Iterable[Manifest]) -> list[dict[str, Any]]:
    """Return the winners of the races in these ControllerRevisions as rules of an administrator. The newest of equal races counts."""
    records = sorted(filter(None, map(read_race, revisions)), key=lambda record: record.started)
    return list({record.key: record.to_rule(winner) for record in records if (winner := record.winner) is not None}.values())
