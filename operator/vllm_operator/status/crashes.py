"""Find crashes, name them, and tell which are in force.

A crash is identified by its Pod and the number of restarts before it. A replica on several nodes is recreated after a crash, with the
same names. There, the number counts the earlier crashes of all Pods of the group since it last served, and a crash stays in force, although
its Pod is gone, until the group serves or something is changed because of it. `status.lastCrash` has the latest crash. It is written when
the log has been read, or `SETTLING_SECONDS` after the end, whichever comes first, so that the event of a crash names its cause. A restarted
operator keeps it if the log is gone.

`kubectl describe` shows each cause once. While `Crashed`, or else `RolledBack`, has cause and remedy word for word, the record omits them
if they can be restored from the signature and the line of the log. So a restarted operator describes the crash as before, even if the log
is gone. It reads exit code and page from the message of `Crashed` (`crash.one` in `messages.yaml`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.conditions import CRASHED, PAGES, TRUE, Reason, find_condition
from vllm_operator.api.status import CrashStatus
from vllm_operator.catalog.startup import Signature
from vllm_operator.catalog.templates import fill_in
from vllm_operator.logs.crash import UNKNOWN
from vllm_operator.logs.state import Crash, LogProblem, Stage, StartupState, UnreadLog
from vllm_operator.pods.view import Phase, Termination, killed_by_probe
from vllm_operator.rendering.revision import find_revision
from vllm_operator.status.observation import Observation, PodFacts
from vllm_operator.status.terminations import SAYS_NOTHING, explain_end, match_pod
from vllm_operator.text import wording

SETTLING_SECONDS = 10
"""Seconds to wait for the log of a run that has ended. The kubelet ends the stream within about a second."""
CLOCK_SKEW = timedelta(minutes=1)
"""Tolerance for a node's clock that is ahead. Later times are ignored when crashes are ordered."""
MESSAGES_READ = 16
"""Maximum number of termination messages parsed per reconciliation, latest ends first. Users write them, and each takes up to 2 ms."""
_ENDS_BY_A_PROBE = (None, 0, 137, 143)
"""Exit codes that an event may explain some seconds later."""
_NODE = re.compile(r"\bNODE\b")  # in a command of the catalog
_HAS_SERVED = (Phase.READY, Phase.HUNG, Phase.NOT_RESPONDING, Phase.NODE_LOST, Phase.TERMINATING)


class Weight(IntEnum):
    """How much the description of a crash says."""

    PENDING = 0  # the log has not been read yet
    UNREAD = 1  # the log cannot be read
    NOTHING = 2  # the log does not say why
    ERROR = 3  # an error that matches no signature
    WEAK = 4  # a cause that a later finding may replace
    STRONG = 5  # the cause
    USER_DEFINED = 6  # the cause, by a signature of an administrator


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A crash of a Pod."""

    view: PodFacts
    restarts: int  # number of restarts before the run that crashed
    time: datetime | None
    in_force: bool  # no later start has succeeded
    reportable_at: datetime | None  # when the crash is reported even without a cause; None if it can be reported now
    status: CrashStatus
    captures: tuple[tuple[str, str], ...] = ()  # values from the log line that names the crash
    during_start: bool = False  # the log shows that the run had not become ready


@dataclass(frozen=True, slots=True)
class Crashes:
    """All crashes of the current Pods, latest first, and the content of `status.lastCrash`."""

    findings: tuple[Finding, ...]
    last: CrashStatus | None
    is_new: bool

    @property
    def in_force(self) -> tuple[Finding, ...]:
        """Crashes after which no start has succeeded."""
        return tuple(finding for finding in self.findings if finding.in_force)

    @property
    def most_informative(self) -> Finding | None:
        """The crash in force with a known cause, else one with an unknown cause; the latest of several."""
        reportable = (finding for finding in self.in_force if finding.reportable_at is None)
        return max(
            reportable,
            key=lambda f: (reason_of(f.status.signature) != Reason.UNKNOWN_CRASH, f.status.time or "", f.view.name),
            default=None,
        )


def find_crashes(observed: Observation) -> Crashes:
    """Find the crashes of the observed Pods."""
    findings = tuple(sorted(_find_all(observed), key=lambda f: (_credible(observed, f.time), f.view.name), reverse=True))
    previous, latest = _read_last_crash(observed), next((finding.status for finding in findings if finding.reportable_at is None), None)
    if latest is None or previous is None or _is_same(observed, latest, previous):
        return Crashes(findings, latest or previous, is_new=latest is not None and previous is None)
    found, before = (_credible(observed, reading.moment(crash.time)) for crash in (latest, previous))
    return Crashes(findings, previous if found < before else latest, is_new=found >= before)


def _credible(observed: Observation, time: datetime | None) -> str:
    """Return a sort key for times: empty, which sorts first, if the time is unknown or in the future."""
    return (reading.stamp(time) or "") if time is not None and time <= observed.now + CLOCK_SKEW else ""


def _is_same(observed: Observation, found: CrashStatus, previous: CrashStatus) -> bool:
    if (_replica(observed, found), found.restarts) != (_replica(observed, previous), previous.restarts):
        return False
    # a group that has served since then has other Pods, and counts from the beginning
    of_groups = (it for pod in observed.pod_facts if pod.group is not None for it in pod.group.members)
    created, time = next((it.created_at for it in of_groups if it.name == found.pod), None), reading.moment(previous.time)
    return created is None or time is None or created <= time or found.time == previous.time


def _replica(observed: Observation, crash: CrashStatus) -> str:
    """Return the Pod of a crash, or for a replica on several nodes, the name of its leader."""
    return f"{observed.resource.metadata.name}-{group}" if (group := _group_number(observed, crash)) is not None else crash.pod


def _group_number(observed: Observation, crash: CrashStatus) -> int | None:
    """Return the number of the group of a crash, from the name of its Pod, which may be gone; None without groups."""
    is_of_groups = observed.plan is not None and observed.plan.nodes is not None
    found = re.fullmatch(rf"{re.escape(observed.resource.metadata.name)}-(\d{{1,9}})(?:-\d{{1,9}})?", crash.pod) if is_of_groups else None
    return int(found[1]) if found is not None else None


def _count_earlier_crashes(observed: Observation, view: PodFacts) -> int:
    """Return the crashes of a replica on several nodes before the present Pods, since it last served."""
    last = observed.previous.last_crash
    if last is None or view.group is None or _replica(observed, last) != view.group.members[0].name:
        return 0
    time, known = reading.moment(last.time), last.restarts or 0
    is_of_these = time is not None and view.created_at is not None and view.created_at <= time
    return known if is_of_these else known + 1 if _last_crash_was_reported(observed) else 0


def _find_crash_of_gone_pod(observed: Observation, view: PodFacts) -> Finding | None:
    """Return the crash of a replica on several nodes whose Pod is gone, while others leave or have not served; None without one."""
    known, leaves = _read_last_crash(observed), view.phase is Phase.TERMINATING
    if known is None or view.group is None or (view.phase in _HAS_SERVED and not leaves):
        return None
    restarts, is_of_group = known.restarts or 0, _replica(observed, known) == view.group.members[0].name
    if leaves and not (is_of_group and _last_crash_was_reported(observed)):
        return None  # it is not deleted because of the crash of another Pod of its group
    if not leaves and restarts >= _count_earlier_crashes(observed, view):
        return None  # it is not the successor of a Pod of a group that crashed
    return Finding(view=view, restarts=restarts, time=reading.moment(known.time), in_force=True, reportable_at=None, status=known)


def _find_crash_of_gone_group(observed: Observation) -> Finding | None:
    """Return the crash of a replica on several nodes that has no Pods now, because it is created again; None without one."""
    known = _read_last_crash(observed)
    group = _group_number(observed, known) if known is not None else None
    if known is None or group is None or group >= observed.wanted or not _last_crash_was_reported(observed):
        return None
    leader = _replica(observed, known)
    if any(view.group is not None and view.group.members[0].name == leader for view in observed.pod_facts):
        return None
    nothing: dict[str, Any] = {"state": None, "stall_check": None, "cache_key": "", "is_current": True}
    view = PodFacts(name=leader, uid="", phase=Phase.SCHEDULING, created_at=None, stage=Stage.SCHEDULING, **nothing)
    time = reading.moment(known.time)
    return Finding(view=view, restarts=known.restarts or 0, time=time, in_force=True, reportable_at=None, status=known)


def _last_crash_was_reported(observed: Observation) -> bool:
    """Return whether the last crash was in force at the last report, and nothing was changed because of it."""
    condition, previous = find_condition(observed.previous.conditions, CRASHED), observed.previous
    changed = [remedy.since for remedy in (previous.remediation.applied if previous.remediation is not None else ())]
    changed += [previous.rollback.time] if previous.rollback is not None and previous.rollback.revision else []
    revision = find_revision(observed.revisions, observed.revision)
    changed += [reading.text(revision, "metadata", "creationTimestamp")] if revision is not None else []
    time = previous.last_crash.time if previous.last_crash is not None else None
    was_reported = condition is not None and condition.status is TRUE and condition.reason != Reason.DIAGNOSING_CRASH
    return was_reported and time is not None and all(each <= time for each in changed)


def _read_last_crash(observed: Observation) -> CrashStatus | None:
    """Return `status.lastCrash` with what was omitted."""
    crash, condition = observed.previous.last_crash, find_condition(observed.previous.conditions, CRASHED)
    if crash is not None and crash.cause is None:
        crash = _restore(crash, observed.knowledge.signatures) or crash
    if crash is None or condition is None or not condition.message.startswith(f"Pod {crash.pod} "):
        return crash
    code = re.search(r"^[^(]* with exit code (\d+)", condition.message)
    link = re.search(r"\(See (https://\S+)\)$", condition.message)
    shown = {"exit_code": int(code[1]) if code is not None else None, "reference": link[1] if link is not None else None}
    return crash.model_copy(update={name: value for name, value in shown.items() if getattr(crash, name) is None})


def _find_all(observed: Observation) -> Iterator[Finding]:
    views = (*observed.pod_facts, *observed.primer_facts)
    ends = ((view, view.termination) for view in views if view.termination is not None)
    latest = sorted(((_credible(observed, end.finished_at), view.name, view.uid) for view, end in ends if end.message), reverse=True)
    with_messages = {uid for _, _, uid in latest[:MESSAGES_READ]}
    for view in views:
        crashes_at, ended = counts_as_crash_at(observed, view), view.termination
        if view.phase is Phase.FAILED:
            yield _failed(observed, view)
        elif view.state is not None and crashes_at is not None and crashes_at <= observed.now:
            end = Termination(restarts=view.restarts, exit_code=None, reason="", message="", finished_at=view.state.last_line_at)
            yield _crashed(observed, view, end, view.state.crash)
        elif ended is not None and view.phase not in (Phase.TERMINATING, Phase.CONTAINER_FAILED):
            yield _crashed(observed, view, ended if view.uid in with_messages else replace(ended, message=""))
        elif (known := _find_crash_of_gone_pod(observed, view)) is not None:
            yield known
    if (gone := _find_crash_of_gone_group(observed)) is not None:
        yield gone


def _failed(observed: Observation, view: PodFacts) -> Finding:
    status = _status(observed, view, match_pod(observed.knowledge.terminations, view), view.termination, restarts=view.restarts)
    time, is_missed = reading.moment(status.time), observed.serving < observed.wanted
    return Finding(view=view, restarts=view.restarts, time=time, in_force=is_missed, reportable_at=None, status=status)


def _crashed(observed: Observation, view: PodFacts, ended: Termination, known: Crash | None = None) -> Finding:
    """Return the crash with which a run has ended. `known`: the crash in the log of a container that still runs."""
    state = None if view.container else observed.startups.get((view.uid, ended.restarts))
    unread = observed.unread_logs.get((view.uid, ended.restarts)) if state is None and not view.container else None
    if state is not None and state.skipped_seconds:
        unread = UnreadLog(LogProblem.SKIPPED)
    of_group = view.group.root_cause_elsewhere if view.group is not None else None
    crash = of_group or known or _diagnose(observed, view, ended, state, unread)
    restarts = ended.restarts if view.group is None else _count_earlier_crashes(observed, view)
    found = _status(observed, view, crash, ended, restarts=restarts, unread=unread)
    previous = _read_last_crash(observed)
    if previous is not None and not _is_same(observed, found, previous):
        previous = None
    status = _better(observed, previous, found)
    return Finding(
        view=view,
        restarts=restarts,
        time=ended.finished_at,
        in_force=view.phase not in _HAS_SERVED,
        reportable_at=_reportable_at(observed, view, ended, state, found) if previous is None else None,
        status=status,
        captures=crash.captures if crash is not None and crash.signature == status.signature else (),
        during_start=state is not None and state.stage is not Stage.READY,
    )


def _reportable_at(
    observed: Observation, view: PodFacts, ended: Termination, state: StartupState | None, found: CrashStatus
) -> datetime | None:
    """Return when a new crash is reported even without a cause; None if it can be reported now."""
    is_read = state is not None and state.is_final and ended.exit_code not in _ENDS_BY_A_PROBE
    if _weigh(observed, found) >= Weight.STRONG or (is_read and view.group is None):  # in a group, the log of another node may say more
        return None
    if view.group is not None and reading.text(view.manifest, "metadata", "deletionTimestamp"):
        return None  # the group is created again within seconds of the crash: then its Pods are gone, and what they say
    if ended.finished_at is None or ended.finished_at > observed.now + CLOCK_SKEW:
        return None  # the time to wait is unknown
    settled_at = ended.finished_at + timedelta(seconds=SETTLING_SECONDS)
    return settled_at if settled_at > observed.now else None


def _status(
    observed: Observation, view: PodFacts, crash: Crash | None, ended: Termination | None, *, restarts: int, unread: UnreadLog | None = None
) -> CrashStatus:
    clause = _unread_clause(observed, unread)
    if crash is None:
        crash = Crash(UNKNOWN, observed.messages.say("crash.unexplained", unread=clause), remedy=None, reference=None, line="")
    cause, remedy = wording.clean(crash.cause, 1000), wording.clean(crash.remedy or "", 1000)
    if crash.signature == UNKNOWN and not crash.family:
        advice = f"unread_remedy.{unread.problem}" if unread is not None and clause in cause else "crash.unknown_remedy"
        remedy = observed.messages.say(advice, pod=view)
    if view.group is not None:
        cause = observed.messages.fit("crash.of_group", shrink=("cause",), limit=1000, cause=cause, pod=view, group=view.group)
    own_page = wording.clean(crash.reference or "", 500) if (crash.reference or "").startswith("https://") else ""
    lines = (wording.clean(line, 400) for line in reversed((crash.excerpt or crash.line).splitlines()[-30:]))
    return CrashStatus(
        signature=wording.clean(crash.signature, 128),
        cause=cause,
        remedy=_NODE.sub(view.node or "NODE", remedy) or None,
        reference=f"{PAGES}/{crash.signature}" if crash.signature in observed.knowledge.documented else own_page or None,
        pod=view.name,
        node=view.node or None,
        exit_code=ended.exit_code if ended is not None else None,
        restarts=restarts or None,
        time=reading.stamp(ended.finished_at if ended is not None else view.created_at),
        excerpt=next((line for line in lines if line), None),
    )


def is_caused_by_node(observed: Observation, crash: CrashStatus) -> bool:
    """Return whether the cause of a crash lies in its node."""
    signature = observed.knowledge.signatures.get(crash.signature)
    return signature is not None and signature.origin == "node" and crash.node is not None


def _better(observed: Observation, previous: CrashStatus | None, found: CrashStatus) -> CrashStatus:
    """Return the more informative description, else the earlier one. A user-defined signature may have changed, so it replaces itself."""
    if previous is None:
        return found
    before, now = _weigh(observed, previous), _weigh(observed, found)
    has_other_problem = now == Weight.UNREAD and _problem(observed, found.cause or "") is not _problem(observed, previous.cause or "")
    return found if now > before or (now == before and (has_other_problem or now == Weight.USER_DEFINED)) else previous


def _weigh(observed: Observation, crash: CrashStatus) -> Weight:
    """Return how much a description says."""
    if crash.signature == UNKNOWN:
        cause = crash.cause or ""
        problem = _problem(observed, cause)
        if problem is not None:
            return Weight.PENDING if problem is LogProblem.PENDING else Weight.UNREAD
        says_nothing = SAYS_NOTHING in cause or cause == observed.messages.say("crash.unexplained", unread="")
        return Weight.NOTHING if says_nothing else Weight.ERROR
    known = observed.knowledge.signatures.get(crash.signature)
    follows = known is not None and known.follows_others and bool(observed.followers)  # the cause may be in a log that is still being read
    if crash.signature in observed.knowledge.weak or follows:
        return Weight.WEAK
    return Weight.USER_DEFINED if known is not None and known.is_user_defined else Weight.STRONG


def _unread_clause(observed: Observation, unread: UnreadLog | None) -> str:
    return observed.messages.say(f"unread.{unread.problem}", detail=unread.detail) if unread is not None else ""


def _problem(observed: Observation, cause: str) -> LogProblem | None:
    """Return why the log could not be read, from the cause of a crash; None if it was read."""
    return next((problem for problem in LogProblem if f", {_unread_clause(observed, UnreadLog(problem))}" in cause), None)


def _diagnose(
    observed: Observation, view: PodFacts, ended: Termination, state: StartupState | None, unread: UnreadLog | None
) -> Crash | None:
    log_crash, stage = (state.crash, state.stage) if state is not None else (None, "")
    clause, probe = _unread_clause(observed, unread), killed_by_probe(view, observed.event_log) or ""
    plan = observed.plan
    ram = observed.messages.say("crash.ram", plan=plan) if plan is not None and plan.weights.size_bytes else ""
    return explain_end(observed.knowledge, view, ended, log_crash=log_crash, stage=stage, unread=clause, probe=probe, ram=ram)


def counts_as_crash_at(observed: Observation, view: PodFacts) -> datetime | None:
    """Return when a start counts as crashed because its log shows a crash, although its container still runs; None otherwise."""
    state = view.state
    if view.phase is not Phase.STARTING or state is None or state.crash is None or state.last_line_at is None:
        return None
    if view.started_at is not None and state.last_line_at < view.started_at:
        return None  # these lines are of the run before
    return state.last_line_at + timedelta(seconds=SETTLING_SECONDS) if state.last_line_at <= observed.now + CLOCK_SKEW else observed.now


def reason_of(signature: str) -> str:
    """Return the signature as a reason of a condition."""
    word = "".join(c for c in signature if c.isascii() and (c.isalnum() or c == "_"))[:128]
    return word if word[:1].isalpha() and word != UNKNOWN else Reason.UNKNOWN_CRASH


def shorten(crash: CrashStatus, signatures: Mapping[str, Signature], message: str) -> CrashStatus:
    """Omit what the message of a condition has: the exit code, and all texts if it has all of them and they can be restored."""
    omitted = ["exit_code"] if crash.pod in message and f"with exit code {crash.exit_code} " in message else []
    omitted += ["reference"] if crash.reference and f"(See {crash.reference})" in message else []
    if _restore(crash, signatures) == crash and all(wording.sentence(text) in message for text in (crash.cause, crash.remedy) if text):
        omitted += ["cause", "remedy", "reference"]
    return crash.model_copy(update=dict.fromkeys(omitted))


def _restore(crash: CrashStatus, signatures: Mapping[str, Signature]) -> CrashStatus | None:
    """Fill in the texts of the signature with the values in the line of the log; None if no signature of the catalog has them."""
    signature = signatures.get(crash.signature)
    if signature is None or signature.is_user_defined:
        return None
    # The line is bounded, and the patterns are the operator's own. The pattern with the most captures counts.
    found = (match.groupdict() for pattern in signature.patterns if (match := re.search(pattern.regex, crash.excerpt or "")))
    captures = max(({name: value for name, value in groups.items() if value is not None} for groups in found), key=len, default={})
    values = [(name, value) for name, value in captures.items() if value]
    cause, remedy = (wording.clean(fill_in(text, values), 1000) for text in (signature.cause, signature.remedy))
    known = {"remedy": _NODE.sub(crash.node or "NODE", remedy) or None, "reference": f"{PAGES}/{signature.id}"}
    return crash.model_copy(update={"cause": cause, **known})
