"""The catalog data for reports: messages, and rules for starts, crashes and terminated Pods.

Each text of a condition or an event is a jinja2 template in `catalog/data/messages.yaml`. Code chooses a template and passes the values. A
template fails if it uses a value that it was not given; the tests render all of them.

The rules for terminated containers and Pods (`terminations.yaml`) use only the status of a Pod and its events: a failed probe, an eviction,
a refusal by the kubelet. `diagnose_termination` evaluates the log, the exit code and the kernel's OOM kills.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, timedelta
from functools import cache, cached_property
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vllm_operator.api import reading
from vllm_operator.api.labels import CONTAINER
from vllm_operator.catalog.backends import LoggedNames, load_logged_names
from vllm_operator.catalog.entry import Entry, load_file
from vllm_operator.catalog.startup import Remedy, Signature, StartupKnowledge, load_remedies, load_startup
from vllm_operator.catalog.versions import Versions, load_versions
from vllm_operator.logs.crash import TERMINATED, UNKNOWN, describe
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Crash, Stage
from vllm_operator.pods.tools import HANG_PREFIX
from vllm_operator.pods.view import Phase, PodView, Termination
from vllm_operator.text import wording
from vllm_operator.text.wording import clean, present, sentence

_PREEMPTION = re.compile(r"[.,;] (?:no new claims to deallocate|still not schedulable|preemption:|not found\.?$)")
_FORBIDDEN_POD = re.compile(r'^pods "[^"]*" is forbidden: ')
_PULLING = re.compile(
    r'^(?:Back-off pulling image "[^"]*": \w+: |rpc error: code = \w+ desc = |Error response from daemon: |'
    r'failed to pull and unpack image "[^"]*": |failed to resolve (?:reference|image) "[^"]*": )+'
)
_FILTERS = {
    "duration": wording.duration,
    "clock": wording.clock,
    "time": lambda when: when.astimezone(UTC).strftime("%H:%M:%S UTC"),
    "minute": lambda when: (when.astimezone(UTC) + timedelta(seconds=30)).strftime("%H:%M UTC"),
    "count": wording.count,
    "quote": lambda text, limit=200: clean(text, limit),
    "sentence": sentence,
    "first": lambda text: clean(text.partition(". ")[0], 250),
    "scheduler": lambda text: _PREEMPTION.split(text, maxsplit=1)[0],
    "pull": lambda text: _PULLING.sub("", text),  # the cause comes last, after nested prefixes
    "refusal": lambda text: _FORBIDDEN_POD.sub("", text),  # the name of a refused Pod differs in each attempt
}


class Messages(Entry):
    """The content of `messages.yaml`: templates by name, and words for the stages of a start and for phases of a Pod, in a sentence.

    `misfits` and `refusals` are names of templates by a part of the message of the scheduler or an admission plugin, `restored` are fields
    of the spec by a part of a field of the Deployment.
    """

    stages: Mapping[Stage, str]
    phases: Mapping[Phase, str]
    reasons: Mapping[Phase, str]
    misfits: Mapping[str, str]
    refusals: Mapping[str, str]
    restored: Mapping[str, str]
    publications: Mapping[str, str]
    published: Mapping[str, str]
    messages: Mapping[str, str]

    @cached_property
    def _environment(self) -> jinja2.Environment:
        # Each template is compiled when it is used first. Plain text needs no escaping. In the sandbox, a template cannot call anything.
        environment = ImmutableSandboxedEnvironment(
            undefined=jinja2.StrictUndefined,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            loader=jinja2.DictLoader(self.messages),
            auto_reload=False,
        )
        environment.globals.clear()  # no template uses these functions, and each message would get a copy of the list of them
        environment.filters |= _FILTERS
        return environment

    def say(self, name: str, *, limit: int = wording.MESSAGE_LIMIT, **facts: Any) -> str:
        """Render a message: one line, free of control characters, at most `limit` characters.

        Raises jinja2.TemplateError if it does not exist, is malformed, or names a fact that is not given. The tests render all messages.
        """
        return clean(self._environment.get_template(name).render(**facts), limit)

    def fit(self, name: str, *, shrink: tuple[str, ...], limit: int = wording.MESSAGE_LIMIT, **facts: Any) -> str:
        """Render a message; where it is too long, shorten the facts in `shrink`, the longest first, not its end."""
        shrunk = dict(facts)
        for _ in range(8):
            excess = len(self.say(name, limit=16 * limit, **shrunk)) - limit
            longest = max(shrink, key=lambda key: len(shrunk[key] or ""))
            if excess <= 0 or len(shrunk[longest] or "") < 60:
                break
            shrunk[longest] = wording.shorten(shrunk[longest], max(40, len(shrunk[longest]) - excess))
        return self.say(name, limit=limit, **shrunk)


class TerminationRule(Entry):
    """A known cause of the end of a container or Pod. Empty criteria match anything; `reason` may end in `*`."""

    id: str
    cause: str
    remedy: str
    reason: str = ""
    exit_codes: tuple[int, ...] = ()
    probe: str = ""
    message: str = ""  # beginning of the termination message
    is_weak: bool = False  # a later event may be more informative

    def has_reason(self, reason: str) -> bool:
        """Return whether the rule is for this reason."""
        return self.reason in ("", reason) or (self.reason.endswith("*") and reason.startswith(self.reason[:-1]))


class TerminationRules(Entry):
    """Rules for containers that were running, and for Pods that will not run again; the first match wins. Signals by number, in words."""

    containers: tuple[TerminationRule, ...]
    pods: tuple[TerminationRule, ...]
    signals: Mapping[int, str]
    signatures_of_signals: Mapping[int, str]
    signals_of_native_code: frozenset[int]  # errors in native code without a signature


@dataclass(frozen=True, eq=False)
class Knowledge:
    """The catalog data, loaded once and shared by all reports."""

    startup: StartupKnowledge  # stages and crash signatures, also those of the administrator
    messages: Messages
    terminations: TerminationRules
    logged_names: LoggedNames
    versions: Versions
    remedies: Mapping[str, Remedy]  # those that the operator may apply by itself, by signature

    @cached_property
    def signatures(self) -> Mapping[str, Signature]:
        """Crash signatures by name."""
        return {signature.id: signature for signature in self.startup.signatures}

    @cached_property
    def weak(self) -> frozenset[str]:
        """Signatures with little information, which a later finding replaces."""
        echoes = {signature.id for signature in self.startup.signatures if signature.is_echo}
        return frozenset(echoes | {rule.id for rule in self.terminations.containers if rule.is_weak})

    @cached_property
    def documented(self) -> frozenset[str]:
        """Names of crashes about which the documentation has a page."""
        shipped = {signature.id for signature in self.startup.signatures if not signature.is_user_defined}
        return frozenset(shipped | {rule.id for rule in (*self.terminations.containers, *self.terminations.pods)})

    @cached_property
    def quarantining(self) -> frozenset[str]:
        """Signatures of damaged caches."""
        return self._with_action("quarantine-cache")

    @cached_property
    def cleaning(self) -> frozenset[str]:
        """Signatures of a full volume."""
        return self._with_action("clean-cache")

    def _with_action(self, action: str) -> frozenset[str]:
        return frozenset(signature.id for signature in self.startup.signatures if signature.remedy_action == action)


@cache
def load_messages() -> Messages:
    """Load the shipped messages."""
    return load_file(Messages, "messages.yaml")


@cache
def load_knowledge(startup: StartupKnowledge | None = None) -> Knowledge:
    """Load the shipped data. `startup` is used instead of loading it again."""
    return Knowledge(
        startup=startup or load_startup(),
        messages=load_messages(),
        terminations=load_file(TerminationRules, "terminations.yaml"),
        logged_names=load_logged_names(),
        versions=load_versions(),
        remedies=load_remedies(),
    )


def explain_end(
    knowledge: Knowledge, view: PodView, ended: Termination, *, log_crash: Crash | None, stage: str, unread: str, probe: str, ram: str = ""
) -> Crash | None:
    """Return why a container that should run for ever has ended, from its log, its status and the kubelet's message about a probe.

    `log_crash`, `stage`, `unread` and `ram` as in `diagnose_termination`. None if nothing explains it, for example an unknown exit code.
    """
    if ended.message.startswith(HANG_PREFIX) and (hung := match_container(knowledge.terminations, view, ended, probe, stage)) is not None:
        return replace(hung, excerpt=log_crash.excerpt) if log_crash is not None else hung
    container = reading.named(view.manifest, view.container or CONTAINER, "spec", "containers", key="name")
    limit = reading.text(container, "resources", "limits", "memory") or "none"
    found = diagnose_termination(knowledge, ended, log_crash=log_crash, stage=stage, unread=unread, limit=limit, ram=ram)
    if found is not None and found.signature != UNKNOWN and found.signature not in knowledge.weak:
        return found
    return match_container(knowledge.terminations, view, ended, probe, stage) or found


_OOM = "OOMKilled"
_NATIVE = "NativeCodeCrash"
_LINE_LIMIT = 400
SAYS_NOTHING = "and its log does not say why"
"""End of the cause of a crash without an error in the log."""


def diagnose_termination(
    knowledge: Knowledge, ended: Termination, *, log_crash: Crash | None, stage: str = "", unread: str = "", limit: str = "", ram: str = ""
) -> Crash | None:
    """Return why a container ended, from its status and its log, or None if it ended without an error.

    If the log explains the crash, it is more precise than the status, with one exception: when the kernel kills processes of a container
    for its memory use, the log shows the ends of other processes, which look like crashes.

    `log_crash` and `stage` are what the log shows; `unread` is a clause with the reason why it could not be read. `limit` is the
    memory limit of the container; `ram` says what a start takes and why.
    """
    exit_code, reason = ended.exit_code, ended.reason
    number = ended.signal or ((exit_code - 128) if exit_code is not None and 128 < exit_code < 160 else 0)
    said = f"exit code {exit_code}" + (f", {reason}" if reason not in ("", "Error") else "")
    if reason == "OOMKilled" and (log_crash is None or not _is_specific(knowledge, log_crash) or log_crash.signature == TERMINATED):
        return describe(knowledge.signatures[_OOM], said, (("stage", stage), ("limit", limit), ("ram", ram)))
    if log_crash is not None and _is_specific(knowledge, log_crash):
        return log_crash
    parser = StartupParser(knowledge.startup)
    parser.feed(ended.message)
    parser.end()
    from_message = parser.final_state.crash
    if from_message is not None and (_is_specific(knowledge, from_message) or log_crash is None):
        return from_message
    signals = knowledge.terminations.signals
    named = knowledge.signatures.get(knowledge.terminations.signatures_of_signals.get(number, ""))
    if named is not None:
        return describe(named, said, ())
    if log_crash is not None:
        return log_crash
    if (exit_code in (0, None) and not number) or number == 15:
        return None
    if number in knowledge.terminations.signals_of_native_code:
        return describe(knowledge.signatures[_NATIVE], said, (("problem", f"signal {number}, {signals[number]}"),))
    how = f"was ended by signal {number} ({signals[number]})" if number in signals else "ended with an error"
    text = present(ended.message.strip().rpartition("\n")[2], _LINE_LIMIT)
    remedy = "Read the last lines of the log and the events of the Pod, and check the memory of the node."
    return Crash(UNKNOWN, f"The engine {how} ({said}), {unread or SAYS_NOTHING}.", remedy, None, line=text or said, excerpt=text)


def _is_specific(knowledge: Knowledge, crash: Crash) -> bool:
    signature = knowledge.signatures.get(crash.signature)
    return signature is not None and not signature.is_echo


def match_container(rules: TerminationRules, view: PodView, ended: Termination, probe: str, stage: str = "") -> Crash | None:
    """Name the cause of a container's end from its status and the kubelet's message about a probe; None if no rule matches."""
    for rule in rules.containers:
        fits = not rule.exit_codes or ended.exit_code in rule.exit_codes
        fits = fits and ended.message.startswith(rule.message)
        if fits and rule.has_reason(ended.reason) and (not rule.probe or f"{rule.probe} probe" in probe):
            return _crash(rule, view, ended, stage)
    return None


def match_pod(rules: TerminationRules, view: PodView) -> Crash:
    """Name the cause of the end of a Pod that will not run again. The last rule matches any Pod."""
    return _crash(next(rule for rule in rules.pods if rule.has_reason(view.reason)), view, view.termination)


def _crash(rule: TerminationRule, pod: PodView, ended: Termination | None, stage: str = "") -> Crash:
    probe = reading.mapping(reading.named(pod.manifest, CONTAINER, "spec", "containers", key="name"), "startupProbe")
    limit = (reading.integer(probe, "failureThreshold") or 0) * (reading.integer(probe, "periodSeconds") or 0)
    values = {
        "said": clean(ended.message.removeprefix(rule.message), 600) if ended is not None else "",
        "pod": pod.name,
        "in_kubectl": pod.in_kubectl,
        "node": pod.node or "its node",
        "reason": pod.reason or (ended.reason if ended else ""),
        "message": clean(pod.message, 250),
        "limit": f" ({wording.duration(limit)})" if limit else "",
        "deadline": f" (now {limit})" if limit else "",
        "stage": f", in stage {stage}" if stage else "",
    }
    # The values are untrusted: insert them, never parse them as a template.
    cause, remedy = (sentence(template.format_map(values).rstrip(": ")) for template in (rule.cause, rule.remedy))
    return Crash(signature=rule.id, cause=cause, remedy=remedy, reference=None, line="")
