"""`kubectl vllm diagnose POD`: the stage of a Pod's start, the cause of a crash, and the fix.

It prints the page of `vllm-operator diagnose` from the log and the status of a Pod, or of all Pods of an engine on several nodes.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_operator.api.labels import CONTAINER, GROUP_INDEX_LABEL, LWS_GROUP
from vllm_operator.api.reading import text
from vllm_operator.cli import diagnose
from vllm_operator.cli.diagnose import Group
from vllm_operator.cli.inputs import SIZE_LIMIT, print_as
from vllm_operator.cli.live import find_if_there, namespace_of, with_client
from vllm_operator.controller.log_follower import LogLines, LogUnavailableError
from vllm_operator.kube.client import EVENT, POD, ClusterClient, ClusterError, LogRequest
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.ranks import Rank, diagnose_ranks
from vllm_operator.logs.state import StartupState
from vllm_operator.pods.view import EventLog, Phase, PodView, as_own, find_engine, killed_by_probe, place_of, read_pod, refine
from vllm_operator.status.knowledge import Knowledge, load_knowledge
from vllm_operator.status.terminations import explain_end
from vllm_operator.text.wording import count

_LINE_BYTES = 64 * 1024
_RETRY_SECONDS = (0.5, 1.0, 2.0)
"""Delays between requests for the log of an ended run. A kubelet under load lags behind the status of its Pod."""
_PHASES_OF_LOG = (Phase.STARTING, Phase.READY, Phase.CRASHED, Phase.TERMINATING)
"""Phases in which the log is more informative than the status."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result from the log and the status of a Pod."""

    parser: StartupParser
    state: StartupState
    note: str
    view: PodView


def run(arguments: argparse.Namespace) -> int:
    """Print the diagnosis of a Pod. Return 0, or 3 with `--exit-code` if it crashed."""
    knowledge = load_knowledge(diagnose.known_crashes(arguments.signatures))
    name, namespace = arguments.pod.removeprefix("pod/"), namespace_of(arguments)

    async def read(client: ClusterClient) -> tuple[Diagnosis, Group | None, dict[int, str]]:
        one = await diagnose_pod(client, knowledge, name, namespace, container=arguments.container, previous=arguments.previous)
        several = not arguments.container and await diagnose_group(client, knowledge, one, namespace, previous=arguments.previous)
        return one, *(several or (None, {}))

    found, group, headlines = with_client(arguments, f"Pod {name} in the namespace {namespace}", read)
    parser, state = diagnose.root_cause(group, found.parser) if group is not None else (found.parser, found.state)
    if arguments.output:
        print_as(
            diagnose.as_json(state) | {"pod": found.note} | (diagnose.json_of_group(group) if group is not None else {}), arguments.output
        )
    elif group is not None:
        print(diagnose.page_of_group(group, headlines, parser, state))
    else:
        print(f"{found.note}\n\n{diagnose.page(parser, state, colours=sys.stdout.isatty())}" if state.lines else found.note)
    return diagnose.exit_code(state, arguments)


async def diagnose_group(
    client: ClusterClient, knowledge: Knowledge, one: Diagnosis, namespace: str, *, previous: bool
) -> tuple[Group, dict[int, str]] | None:
    """Read the Pods of an engine on several nodes, of which `one` is known; None if it runs on one node.

    Returns also a line about each Pod. If the engine of a Pod has started again, the run before it may have the root cause.
    """
    place, owner = place_of(one.view.manifest), text(one.view.manifest, "metadata", "labels", f"{LWS_GROUP}/name")
    if place is None or not owner:
        return None
    pods = await client.find(POD, namespace, labels={f"{LWS_GROUP}/name": owner, GROUP_INDEX_LABEL: str(place[0])})
    names = sorted(((place_of(pod) or place)[1], str(pod["metadata"]["name"])) for pod in pods)
    ranks, parsers, lines, served_at = [], {}, {}, None
    for number, name in names:
        found = one if name == one.view.name else await diagnose_pod(client, knowledge, name, namespace, previous=previous)
        served_at = served_at or found.view.ready_at  # of the leader, which comes first: a follower is always ready
        ended, is_over = found.view.termination, previous or found.view.phase is Phase.CRASHED
        if ended is not None and not is_over and not (served_at and ended.finished_at and ended.finished_at < served_at):
            before = await diagnose_pod(client, knowledge, name, namespace, previous=True)
            found, is_over = (before, True) if before.state.crash is not None else (found, False)
        code, end = (ended.exit_code, ended.finished_at) if ended is not None and is_over else (None, None)
        state = found.state if found.state.lines else None  # of a Pod that was just created
        rank = Rank(number=number, name=name, state=state, crash=found.state.crash, exit_code=code, ended_at=end)
        ranks.append(replace(rank, is_blocked=found.view.phase not in _PHASES_OF_LOG))
        parsers[number], lines[number] = found.parser, diagnose.headline(found.state) if found.state.lines else found.note
    return Group(tuple(ranks), parsers, diagnose_ranks(ranks, knowledge.startup), absent="no Pod"), lines


async def diagnose_pod(
    client: ClusterClient, knowledge: Knowledge, name: str, namespace: str, *, container: str | None = None, previous: bool
) -> Diagnosis:
    """Read the log, status and events of a Pod. Raises ClusterError if the Pod does not exist or cannot be read."""
    pod = await client.get(POD, name, namespace)
    events = await find_if_there(client, EVENT, pod["metadata"]["namespace"], fields={"involvedObject.uid": pod["metadata"]["uid"]})
    log = EventLog(tuple(events))
    parser = StartupParser(knowledge.startup)
    containers = [str(each["name"]) for each in pod["spec"]["containers"]]
    engine = container or find_engine(pod) or (CONTAINER if CONTAINER in containers or not containers else containers[0])
    view = refine(read_pod(as_own(pod, engine)), log)
    request = LogRequest(namespace, name, engine, follow=False, previous=previous)
    try:
        await _read_log(client, parser, request, waits=_RETRY_SECONDS if view.termination is not None else ())
    except (ClusterError, LogUnavailableError) as error:
        return Diagnosis(parser, parser.state, f"{_about(knowledge, view)}\nIts log cannot be read: {error}", view)
    state, crash = parser.state, None
    if previous or view.phase is Phase.CRASHED:
        parser.end()
        state = parser.final_state
        if (ended := view.termination) is not None:
            probe = killed_by_probe(view, log) or ""
            crash = explain_end(knowledge, view, ended, log_crash=state.crash, stage=state.stage, unread="", probe=probe)
    return Diagnosis(parser, replace(state, crash=crash or state.crash), _about(knowledge, view, previous=previous), view)


async def _read_log(client: ClusterClient, parser: StartupParser, request: LogRequest, *, waits: Sequence[float]) -> None:
    """Read the log of a run. If nothing could be read, raise the error of the last request."""
    for wait in (*waits, None):
        try:
            return await _read_once(client, parser, request)
        except (ClusterError, LogUnavailableError):
            if wait is None or parser.state.lines:
                raise
            await asyncio.sleep(wait)


async def _read_once(client: ClusterClient, parser: StartupParser, request: LogRequest) -> None:
    lines, size = LogLines(line_bytes=_LINE_BYTES), 0
    async with client.stream_log(request) as stream:
        async for piece in stream:
            size += len(piece)
            for text, moment in lines.feed(piece):
                parser.feed(text, moment)
            if size > SIZE_LIMIT:
                break
    lines.check()
    if (rest := lines.flush()) is not None:
        parser.feed(*rest)


def _about(knowledge: Knowledge, view: PodView, *, previous: bool = False) -> str:
    place = f" on node {view.node}" if view.node else ""
    restarts = f", {count(view.restarts, 'restart')}" if view.restarts else ""
    text = f"Pod {view.name}{place}: {view.phase}{restarts}."
    if view.phase not in _PHASES_OF_LOG:
        text += " " + knowledge.messages.say(f"pod.{view.phase}", pod=view)
    if view.termination is not None and view.phase is not Phase.CRASHED and not previous:
        text += " It crashed before. Use --previous for that run."
    return text
