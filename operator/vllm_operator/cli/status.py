"""`kubectl vllm status`, `top` and `caches`: the state of one VLLMDeployment, and tables of all.

Exit status: 0, or 2 if an object does not exist, or the cluster cannot be read.
"""

import argparse
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from vllm_operator.api.conditions import AVAILABLE, CRASHED, PLAN_DRIFTED, READING_IMAGE, READY, REFUSALS, STALLED, WHILE_ASKED, Reason
from vllm_operator.api.labels import KIND, UNUSED_ANNOTATION
from vllm_operator.api.reading import Manifest, integer, mapping, moment, named, objects, text
from vllm_operator.caches.address import reported_cache_claim
from vllm_operator.caches.claims import find_orphans
from vllm_operator.cli.inputs import print_as
from vllm_operator.cli.live import Read, described, find_if_there, last_renewal, namespace_of, scope_of, screens, with_client
from vllm_operator.cli.terminal import Line, Span, Style, age, bar, grid, is_terminal, labelled, line, screen_width, show, show_each, table
from vllm_operator.kube.client import CLAIM, EVENT, VLLM_DEPLOYMENT, ClusterClient, watched_labels
from vllm_operator.text.wording import clean, clock, count, duration

_NOT_INSTALLED = "VLLMDeployment on this API server: the operator is not installed"


def _show(
    arguments: argparse.Namespace,
    what: str,
    read: Callable[[ClusterClient], Awaitable[Read]],
    as_data: Callable[[Read], Any],
    draw: Callable[[Read], list[Line]],
    *,
    is_endless: bool,
) -> int:
    if arguments.output:
        print_as(as_data(with_client(arguments, what, read)), arguments.output)
        return 0

    async def use(client: ClusterClient) -> None:
        async def read_all() -> tuple[Read, datetime | None]:
            return await read(client), await last_renewal(client)

        pages = screens(read_all, lambda found: [*notice_of_absence(found[1], datetime.now(UTC), width=screen_width()), *draw(found[0])])
        await show_each(pages) if is_endless else show(await anext(pages))

    try:
        with_client(arguments, what, use)
    except KeyboardInterrupt:
        if not is_endless:
            raise
        print()
    return 0


def show_status(arguments: argparse.Namespace) -> int:
    """Print the screen of one object. Return the exit status."""
    return _show(
        arguments,
        described(arguments),
        partial(read_object, name=arguments.name, namespace=namespace_of(arguments)),
        lambda found: {"deployment": found[0], "events": [event for _, event in newest(found[1])]},
        lambda found: status_page(*found, datetime.now(UTC), width=screen_width()),
        is_endless=arguments.watch,
    )


def show_top(arguments: argparse.Namespace) -> int:
    """Print the table of all objects. Return the exit status."""
    namespace = scope_of(arguments)
    return _show(
        arguments,
        _NOT_INSTALLED,
        lambda client: client.find(VLLM_DEPLOYMENT, namespace, cached=True),
        lambda resources: {"deployments": resources},
        lambda resources: top_page(resources, datetime.now(UTC), width=screen_width(), namespace=namespace),
        is_endless=is_terminal() and not arguments.once,
    )


async def read_object(client: ClusterClient, name: str, namespace: str) -> tuple[Manifest, Sequence[Manifest]]:
    """Read an object and its events, which are empty without the permission. Raises ClusterError if the object cannot be read."""
    resource = await client.get(VLLM_DEPLOYMENT, name, namespace)
    # an earlier object of this name may have left events
    fields = {"involvedObject.kind": KIND, "involvedObject.name": name, "involvedObject.uid": text(resource, "metadata", "uid")}
    return resource, await find_if_there(client, EVENT, namespace, fields=fields)


AWAY_SECONDS = 30
"""An operator that has not renewed its Lease for so long is away: another one could have acquired it after half of the time."""


def notice_of_absence(renewed: datetime | None, now: datetime, *, width: int) -> list[Line]:
    """Return that what follows is old, if no operator has renewed its Lease for a while. `renewed` is None if that is unknown."""
    if renewed is None or (now - renewed).total_seconds() < AWAY_SECONDS:
        return []
    words = f"The operator has not renewed its Lease since {clock(renewed)} ({age(renewed, now)} ago): this is the state of that time."
    return [*labelled("", words, style=Style.RED, label_width=0, width=width), ()]


EVENTS_SHOWN, _GIB = 5, 2**30
_LABEL = 12
_COMMANDS = {"remediation": "Command", "lastCrash": "Command", "rollback": "Next try"}
_COMMAND_IN_STATUS = re.compile(r" The command is in status\.\w+\.command\.")
_ESTIMATE = re.compile(r", about [^,.]{1,40} left(?: in this step)?(?=\.$)")
"""The remaining time as of the status. The bar shows the current one."""
_PARTS = re.compile(r"(?<=[.)]) (?=Note: |Backends: )")
"""Boundaries between the parts of what is said about the plan."""
_SEE = re.compile(r" See conditions? (\w+)")
"""Where Ready refers to the condition that says more."""
_SEE_READY = "See condition Ready."
_SEE_CRASHED = " See condition Crashed. "
"""What comes after it in the message of Ready is not in the condition Crashed."""
_CACHES = {
    "Cold": "the next start compiles everything",
    "Compiling": "a Pod compiles kernels",
    "Filled": "a Pod was ready with them, so the next start should load the compiled kernels",
    "Warm": "the next start loads compiled kernels",
    "Quarantined": "they are damaged, so the next start compiles again",
}
"""What the states of caches mean."""
_LINK = re.compile(r" \(See (https?://[^\s)]+)\)$")


def status_page(resource: Manifest, events: Iterable[Manifest], now: datetime, *, width: int) -> list[Line]:
    """Return the page of an object with any content. Only commands and names may be longer than `width` characters."""
    return _StatusPage(resource, now, width).compose(events)


class _StatusPage:
    def __init__(self, resource: Manifest, now: datetime, width: int) -> None:
        self.resource, self.now, self.width = resource, now, width
        self.status, self.last = mapping(resource, "status"), mapping(resource, "status", "lastCrash")
        self.lines: list[Line] = []

    def compose(self, events: Iterable[Manifest]) -> list[Line]:
        created, (reason, style) = age(moment(self.resource, "metadata", "creationTimestamp"), self.now), state_of(self.resource)
        is_crashed = self._is_true(CRASHED)
        service = service_of(self.resource, self.now)
        head = (Span("/".join(_name(self.resource)), Style.BOLD), "  ", Span(f"{service}  " if service else "", style), Span(reason, style))
        self.lines = [
            line(*head, Span(f"  created {created} ago" if created else "", Style.DIM)),
            line(Span(text(self.resource, "spec", "model", "uri"), Style.DIM)),
            (),
        ]
        state, serves = self._state(), self._is_true(AVAILABLE)
        # while Ready is about the crash, the rows of the crash say it
        tells_crash = is_crashed and reason == text(named(self.status, CRASHED, "conditions"), "reason")
        if self._is_true(READY) and serves:
            self._add("State", self._message(AVAILABLE), style)
        else:
            self._add("State", "" if tells_crash else _ESTIMATE.sub("", state), style)
            self._add("Serves", self._message(AVAILABLE) if serves else "")
        if not is_crashed:
            self._add_command()
            self._add_link(READY)
        if not self._is_true(READY):  # a Pod that is only measured is in the row of what it is for
            self._add_start()
        if is_crashed:
            self._add_crash()
        self._add_gpu()
        existing, (ready, wanted) = integer(self.status, "replicas"), _ready(self.resource)
        others = f", {count(existing, 'Pod')} in total" if existing is not None and existing != wanted else ""
        self._add("Replicas", f"{ready} of {wanted} ready{others}")
        self._add_caches()
        self._add("Race", text(self.status, "race"))
        if not is_crashed and (signature := text(self.last, "signature")):
            cause = text(self.last, "cause")
            self._add("Last crash", f"{signature}{self._since_crash()}. {cause if cause not in state else ''}".rstrip(), Style.DIM)
        for part, bad in {**dict.fromkeys(WHILE_ASKED, "False"), READING_IMAGE: "True"}.items():
            if named(self.status, part, "conditions").get("status") == bad and (said := self._message(part)) not in (state, _SEE_READY):
                self._add("Also", said, Style.YELLOW)
        self._add_events(events)
        return self.lines

    def _add(self, label: str, words: str, style: str = "") -> None:
        self.lines += labelled(label, words, style=style, label_width=_LABEL, width=self.width) if words else []

    def _is_true(self, condition: str) -> bool:
        return named(self.status, condition, "conditions").get("status") == "True"

    def _message(self, condition: str) -> str:
        return _LINK.sub("", self._said(condition))

    def _said(self, condition: str) -> str:
        return text(named(self.status, condition, "conditions"), "message")

    def _add_link(self, condition: str) -> None:
        link = _LINK.search(self._said(condition))
        self._add("See", link[1] if link else "", Style.DIM)

    def _state(self) -> str:
        """Return the message of the condition that Ready refers to, else the one of Ready."""
        said = self._message(READY)
        see = _SEE.search(said)
        return _COMMAND_IN_STATUS.sub("", (self._message(see[1]) if see else "") or said)

    def _add_command(self) -> None:
        commands = {text(self.status, where, "command"): label for where, label in _COMMANDS.items()}
        for command in [*filter(None, commands)][:1]:  # on one line, so that it can be copied
            self.lines.append(line(Span(f"{commands[command]:<{_LABEL}}", Style.BOLD), Span(command, Style.GREEN)))

    def _add_start(self) -> None:
        startup = mapping(self.status, "startup")
        stage, since = text(startup, "stage"), age(moment(startup, "stageSince"), self.now)
        if not stage:
            return
        spans, pods = stage_bar(startup, self.now), list(objects(startup, "pods"))
        self.lines.append(
            line(Span(f"{'Stage':<{_LABEL}}", Style.BOLD), Span(stage, Style.CYAN), Span(f" for {since}" if since else "", Style.DIM))
        )
        self.lines += [line(" " * _LABEL, *spans)] if spans else []
        for pod in ({**startup, "name": text(startup, "pod")}, *pods) if pods else ():
            completed, total = integer(pod, "completed"), integer(pod, "total")
            done = f" {completed}/{total}" if completed is not None and total else ""
            self.lines.append(line(" " * _LABEL, Span(f"{text(pod, 'name')}: {text(pod, 'stage')}{done}", Style.DIM)))

    def _since_crash(self) -> str:
        since = age(moment(self.last, "time"), self.now)
        return f", {since} ago" if since else ""

    def _add_crash(self) -> None:
        cause, _, remedy = _COMMAND_IN_STATUS.sub("", self._message(CRASHED)).partition(" What to do: ")
        name = text(named(self.status, CRASHED, "conditions"), "reason")
        what, _, why = cause.partition(f" ({name}). ")  # the Pod and how often, then the cause
        said = (f"{name}{self._since_crash()}.", f"{what}." if why else "", self._message(READY).partition(_SEE_CRASHED)[2])
        self._add("Crash", " ".join(filter(None, said)), Style.RED)
        self._add("Cause", text(self.last, "cause") or why or cause)
        known = text(self.last, "remedy")
        self._add("What to do", remedy.replace("See status.lastCrash.remedy.", known) or known, Style.BOLD)
        self._add_command()
        self._add_link(CRASHED)
        self._add("Log", clean(text(self.last, "excerpt")), Style.DIM)

    def _add_gpu(self) -> None:
        gpu, *parts = _PARTS.split((text(self.status, "plan") or self._message(PLAN_DRIFTED)).removeprefix("Planned for "))
        self._add("Requested" if "previous spec" in self._said(AVAILABLE) else "GPU", gpu)
        for part in (*parts, text(self.status, "engine", "memory")):
            self._add("", part, Style.DIM)

    def _add_caches(self) -> None:
        cache = mapping(self.status, "cache")
        if not cache:
            return
        claim, times = reported_cache_claim(self.resource), {kind: integer(cache, f"{kind}StartSeconds") for kind in ("cold", "warm")}
        starts = [f"the last {kind} start took {duration(seconds)}" for kind, seconds in times.items() if seconds is not None]
        # the status has no state while the caches are cold or without a PVC
        state = text(cache, "state") or ("Cold" if claim else "On no shared PVC")
        means = f": {_CACHES[state]}" if state in _CACHES and not text(cache, "message") else ""
        facts = "; ".join(filter(None, (f"{state}{means}", f"PVC {claim}" if claim else "", *starts)))
        self._add("Caches", " ".join(filter(None, (f"{facts}." if facts else "", text(cache, "message")))))

    def _add_events(self, events: Iterable[Manifest]) -> None:
        known = newest(events)
        shown = known[:EVENTS_SHOWN]
        more = f" (the newest {len(shown)} of {len(known)}; `kubectl vllm status -o yaml` shows all)" if len(known) > len(shown) else ""
        self.lines += [(), line(Span(f"Events{more}", Style.BOLD))] if shown else []
        for when, event in shown:
            style = Style.YELLOW if text(event, "type") == "Warning" else ""
            times = integer(event, "count") or 1
            head = f"  {age(when, self.now) or '?':>7}  {clean(text(event, 'reason'), 64)}{f' ({times} times)' if times > 1 else ''}"
            room = max(0, self.width - len(head) - 2)
            self.lines.append(line(Span(head, style), Span(f"  {clean(text(event, 'message'), room)}", Style.DIM)))


def newest(events: Iterable[Manifest]) -> Sequence[tuple[datetime | None, Manifest]]:
    """Return events with their times, newest first, and without a time last."""
    paths = (("lastTimestamp",), ("series", "lastObservedTime"), ("eventTime",), ("metadata", "creationTimestamp"))
    timed = [(next(filter(None, (moment(event, *path) for path in paths)), None), event) for event in events]
    return sorted(timed, key=lambda pair: (pair[0] is None, -(pair[0].timestamp() if pair[0] else 0.0)))


def state_of(resource: Manifest) -> tuple[str, Style]:
    """Return the reason of the condition Ready, and a style for its severity."""
    ready, *bad = (named(resource, name, "status", "conditions") for name in (READY, CRASHED, STALLED))
    reason = text(ready, "reason") or "Waiting for the operator"
    if ready.get("status") == "True":
        return reason, Style.GREEN
    is_bad = reason in REFUSALS or any(found.get("status") == "True" for found in bad)
    return reason, Style.RED if is_bad and not _serves(resource) else Style.YELLOW


def _serves(resource: Manifest) -> bool:
    return named(resource, AVAILABLE, "status", "conditions").get("status") == "True"


def service_of(resource: Manifest, now: datetime) -> str:
    """Return whether something serves although not all is well, and if not, since when; empty if all is well or it is unknown."""
    (ready, wanted), status = _ready(resource), mapping(resource, "status")
    judged = [named(status, condition, "conditions") for condition in (READY, AVAILABLE)]
    is_ready, is_available = (found.get("status") for found in judged)
    if is_ready == "True" or is_available not in ("True", "False") or not wanted:
        return ""
    if is_available == "True":
        return f"SERVING {ready} of {wanted}" if ready < wanted else "SERVING, NOT AS REQUESTED"
    if not text(status, "url"):  # set when the first replica serves
        reason, style = state_of(resource)
        needs_change = (
            named(status, STALLED, "conditions") or mapping(status, "rollback") or reason in {*REFUSALS} - {Reason.NODES_UNREADABLE}
        )
        return "WILL NOT SERVE WITHOUT A CHANGE" if needs_change else "NOT SERVING" if style is Style.RED else "NOT SERVING YET"
    # Available is also False while the object is scaled to zero, and Ready is True then
    since = max(filter(None, (moment(found, "lastTransitionTime") for found in judged)), default=None)
    return f"DOWN since {clock(since)} ({age(since, now)} ago)" if since else "DOWN"


def stage_bar(startup: Manifest, now: datetime) -> list[Span]:
    """Return the bar of the current stage with its count and estimate, based on time if the engine does not count."""
    completed, total = integer(startup, "completed"), integer(startup, "total")
    left = _seconds_left(startup, now)
    estimate = Span(f"  about {duration(left)} left in this step" if left is not None else "", Style.DIM)
    if completed is not None and total:
        is_size = total >= _GIB  # a download is counted in bytes
        done = f"{completed / _GIB:.1f}/{total / _GIB:.1f} GiB" if is_size else f"{completed}/{total}"
        return [*bar(completed, total), Span(f" {done}"), estimate]
    elapsed = (now - (moment(startup, "stageSince") or now)).total_seconds()
    return [] if left is None or elapsed < 0 else [*bar(elapsed, elapsed + left), estimate]


def _seconds_left(startup: Manifest, now: datetime) -> int | None:
    estimated, written = integer(startup, "etaSeconds"), moment(startup, "updateTime")
    left = 0.0 if estimated is None or written is None else estimated - (now - written).total_seconds()
    return round(left) if left > 0 else None


def _ready(resource: Manifest) -> tuple[int, int]:
    wanted = integer(resource, "spec", "replicas")
    return integer(resource, "status", "readyReplicas") or 0, 1 if wanted is None else wanted


def _name(resource: Manifest) -> tuple[str, str]:
    return text(resource, "metadata", "namespace"), text(resource, "metadata", "name")


TOP_HEADER = ("NAMESPACE", "NAME", "STATUS", "READY", "GPU", "STAGE", "PROGRESS", "STEP LEFT", "CACHE", "AGE")
_SEVERITIES = {"failed": Style.RED, "not ready": Style.YELLOW, "serving with a problem": Style.YELLOW, "ready": Style.GREEN}
_BAR_SCALE = 3
"""Factor by which bars are shorter than the bars of `kubectl vllm status`."""


def top_page(resources: Iterable[Mapping[str, Any]], now: datetime, *, width: int, namespace: str | None = None) -> list[Line]:
    """Return the page. Objects may have any content."""
    states = [(state_of(resource), resource) for resource in resources]
    if not states:
        return labelled("", f"There are no VLLMDeployments{f' in {namespace} (all: -A)' if namespace else ''}.", label_width=0, width=width)
    states.sort(key=lambda each: (list(_SEVERITIES).index(_severity(*each)), _name(each[1])))
    counts = Counter(_severity(*each) for each in states)
    spans = [span for word, style in _SEVERITIES.items() if (number := counts[word]) for span in (", ", Span(f"{number} {word}", style))]
    head = line(count(len(states), "VLLMDeployment"), ": ", *spans[1:])
    return [head, (), *grid(TOP_HEADER, [_top_row(reason, style, resource, now) for (reason, style), resource in states])]


def _severity(state: tuple[str, Style], resource: Manifest) -> str:
    words = {Style.RED: "failed", Style.GREEN: "ready"}
    return words.get(state[1], "serving with a problem" if _serves(resource) else "not ready")


def _top_row(reason: str, style: Style, resource: Mapping[str, Any], now: datetime) -> Sequence[Span]:
    startup, cache = mapping(resource, "status", "startup"), text(resource, "status", "cache", "state")
    left, (namespace, name) = _seconds_left(startup, now), _name(resource)
    return (
        Span(namespace, Style.DIM),
        Span(name),
        Span(clean(reason, 40), style),
        Span("/".join(map(str, _ready(resource)))),
        Span(text(resource, "status", "gpu")),
        Span(text(startup, "stage"), Style.CYAN),
        Span(_progress(startup, now)),
        Span(duration(left) if left is not None else "", Style.DIM),
        Span(cache, Style.GREEN if cache == "Warm" else ""),
        Span(age(moment(resource, "metadata", "creationTimestamp"), now), Style.DIM),
    )


def _progress(startup: Mapping[str, Any], now: datetime) -> str:
    spans = stage_bar(startup, now)
    if not spans:
        return ""
    done, rest = (len(span.text) // _BAR_SCALE for span in spans[:2])
    return f"{'█' * done}{'░' * rest}{spans[2].text if len(spans) > 3 else ''}"


CACHES_HEADER = ("NAMESPACE", "NAME", "KEY", "WHERE", "STATE", "COLD", "WARM", "SAVED", "FETCHED", "PUBLISHED", "TAG")
ORPHANS_HEADER = ("NAMESPACE", "NAME", "SIZE", "AGE", "UNUSED FOR")


def show_caches(arguments: argparse.Namespace) -> int:
    """Print the tables of caches, and of volumes that nothing uses. Return the exit status."""
    resources, claims = with_client(arguments, _NOT_INSTALLED, partial(_with_claims, namespace=scope_of(arguments)))
    orphans = [_orphan_row(claim, datetime.now(UTC)) for claim in find_orphans(claims, resources)]
    rows = sorted((row for resource in resources if (row := _caches_row(resource))), key=lambda row: (row["namespace"], row["name"]))
    if arguments.output:
        print_as({"caches": rows, "orphanedVolumes": orphans}, arguments.output)
    else:
        cells = [[clean(_cell(field, value), 128) for field, value in row.items()] for row in rows]
        lines = table(CACHES_HEADER, cells) if rows else [f"No caches yet{'' if arguments.all_namespaces else ' in this namespace'}."]
        if orphans:
            lines += ["", "Volumes that the operator made and no VLLMDeployment uses. They are kept until you delete them:"]
            lines += table(ORPHANS_HEADER, [list(row.values()) for row in orphans])
            for namespace in sorted({row["namespace"] for row in orphans}):
                names = " ".join(row["name"] for row in orphans if row["namespace"] == namespace)
                lines += ["", f"  kubectl delete pvc -n {namespace} {names}"]
        print("\n".join(lines))
    return 0


async def _with_claims(client: ClusterClient, namespace: str | None) -> tuple[Sequence[dict[str, Any]], ...]:
    resources = await client.find(VLLM_DEPLOYMENT, namespace, cached=True)
    return resources, await find_if_there(client, CLAIM, namespace, labels=watched_labels(CLAIM))


def _orphan_row(claim: Manifest, now: datetime) -> dict[str, str]:
    namespace, name = _name(claim)
    return {
        "namespace": namespace,
        "name": name,
        "size": text(claim, "spec", "resources", "requests", "storage"),
        "age": age(moment(claim, "metadata", "creationTimestamp"), now),
        "unusedFor": age(moment(claim, "metadata", "annotations", UNUSED_ANNOTATION), now),
    }


def _caches_row(resource: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a VLLMDeployment's row for the table, in the order of its columns; None if it has no plan yet. Accepts any object."""
    cache, spec = mapping(resource, "status", "cache"), mapping(resource, "spec", "cache")
    artifact = mapping(cache, "artifact")
    if not text(cache, "key"):
        return None
    cold, warm = integer(cache, "coldStartSeconds"), integer(cache, "warmStartSeconds")
    cold = integer(artifact, "coldStartSeconds") if cold is None else cold
    storage = text(spec, "storage") or ("HostPath" if spec.get("hostPath") else "")  # a path implies HostPath
    namespace, name = _name(resource)
    return {
        "namespace": namespace,
        "name": name,
        "key": text(cache, "key"),
        "where": reported_cache_claim(resource) or storage,
        "state": text(cache, "state"),
        "coldStartSeconds": cold,
        "warmStartSeconds": warm,
        "savedSeconds": max(0, cold - warm) if cold is not None and warm is not None else None,
        **{field: text(artifact, field) for field in ("fetch", "publishResult", "tag")},
    }


def _cell(field: str, value: Any) -> str:
    return "" if value is None else f"{value} s" if "Seconds" in field else str(value)
