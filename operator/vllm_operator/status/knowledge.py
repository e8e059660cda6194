"""The catalog data for reports: messages, and rules for starts, crashes and terminated Pods.

Each text of a condition or an event is a jinja2 template in `catalog/data/messages.yaml`. Code chooses a template and passes the values. A
template fails if it uses a value that it was not given; the tests render all of them.

The rules for terminated containers and Pods (`terminations.yaml`) use only the status of a Pod and its events: a failed probe, an eviction,
a refusal by the kubelet. `vllm_operator.logs.termination` evaluates the log, the exit code and the kernel's OOM kills.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vllm_operator.catalog.backends import LoggedNames, load_logged_names
from vllm_operator.catalog.entry import Entry, load_file
from vllm_operator.catalog.startup import RemedyAction, Signature, StartupKnowledge, load_startup
from vllm_operator.logs.state import Crash, Stage
from vllm_operator.pods.view import Phase, PodView, Termination
from vllm_operator.text import wording
from vllm_operator.text.wording import clean, sentence


class MessageTexts(Entry):
    """The content of `messages.yaml`: templates by name, and words for the stages of a start and for phases of a Pod, in a sentence."""

    stages: Mapping[str, str]
    phases: Mapping[str, str]
    messages: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Messages:
    """The templates, and the words for the stages of a start and for phases of a Pod."""

    environment: jinja2.Environment
    texts: Mapping[str, str]
    stages: Mapping[Stage, str]
    phases: Mapping[Phase, str]
    compiled: dict[str, jinja2.Template] = field(default_factory=dict)
    """Those that were used. An operator uses a few of them, and all together take a tenth of its start."""

    def say(self, name: str, *, limit: int = wording.MESSAGE_LIMIT, **facts: Any) -> str:
        """Render a message: one line, free of control characters, at most `limit` characters.

        Raises:
            KeyError: There is no such message.
            jinja2.TemplateSyntaxError: It is malformed; the tests render all messages.
            jinja2.UndefinedError: The message names a fact that is not given.
        """
        return wording.clean(self._template(name).render(**facts), limit)

    def fit(self, name: str, *, shrink: tuple[str, ...], limit: int = wording.MESSAGE_LIMIT, **facts: Any) -> str:
        """Render a message; where it is too long, shorten the facts in `shrink`, the longest first, not its end."""
        shrunk = dict(facts)
        for _ in range(8):
            excess = len(wording.clean(self._template(name).render(**shrunk), 16 * limit)) - limit
            longest = max(shrink, key=lambda key: len(shrunk[key] or ""))
            if excess <= 0 or len(shrunk[longest] or "") < 60:
                break
            shrunk[longest] = wording.shorten(shrunk[longest], max(40, len(shrunk[longest]) - excess))
        return self.say(name, limit=limit, **shrunk)

    def _template(self, name: str) -> jinja2.Template:
        if name not in self.compiled:
            self.compiled[name] = self.environment.from_string(self.texts[name])
        return self.compiled[name]

    def stage(self, stage: str) -> str:
        """Say a stage in words."""
        return self.stages[Stage(stage)] if stage in Stage.__members__.values() else stage


@cache
def load_messages() -> Messages:
    """Read the messages that ship with the package."""
    return prepare_messages(load_file(MessageTexts, "messages.yaml"))


def prepare_messages(texts: MessageTexts) -> Messages:
    """Prepare messages; each is compiled when it is used first.

    Raises:
        ValueError: A stage or phase is unknown, or a stage has no words.
    """
    # Plain text needs no escaping. In the sandbox, a template cannot call anything.
    environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True)
    environment.globals.clear()  # no template uses these functions, and each message would get a copy of the list of them
    environment.filters |= {
        "duration": wording.duration,
        "clock": wording.clock,
        "time": wording.time_of_day,
        "minute": wording.minute,
        "count": wording.count,
        "quote": lambda text, limit=200: wording.clean(text, limit),
        "sentence": wording.sentence,
        "scheduler": wording.without_preemption,
        "pull": wording.without_pull,
        "refusal": wording.without_pod_name,
    }
    stages = {Stage(name): words for name, words in texts.stages.items()}
    if missing := set(Stage) - set(stages):
        raise ValueError(f"stages without words: {sorted(missing)}")
    phases = {Phase(name): words for name, words in texts.phases.items()}
    return Messages(environment, texts.messages, stages, phases)


class TerminationRule(Entry):
    """A known cause of the end of a container or Pod. Empty criteria match anything; `reason` may end in `*`.

    `is_weak`: a later event may be more informative.
    """

    id: str
    cause: str
    remedy: str
    reason: str = ""
    exit_codes: tuple[int, ...] = ()
    probe: str = ""
    is_weak: bool = False


class TerminationRules(Entry):
    """Rules for containers that were running, and for Pods that will not run again. The first match wins."""

    containers: tuple[TerminationRule, ...]
    pods: tuple[TerminationRule, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """Loaded once and shared by all reports.

    Attributes:
        messages: The messages.
        startup: Stages and crash signatures.
        terminations: Rules for terminated containers and Pods.
        logged_names: Names of backends in logs.
        weak: Signatures with little information, which a later finding replaces.
        signatures: Crash signatures by name.
        quarantining: Signatures of damaged caches.
        cleaning: Signatures of a full volume.
    """

    messages: Messages
    startup: StartupKnowledge
    terminations: TerminationRules
    logged_names: LoggedNames
    weak: frozenset[str]
    signatures: Mapping[str, Signature]
    quarantining: frozenset[str] = frozenset()
    cleaning: frozenset[str] = frozenset()

    def with_startup(self, startup: StartupKnowledge) -> "Knowledge":
        """Return a copy with other crash signatures."""
        return replace(self, startup=startup, **_by_signature(startup, self.terminations))


@cache
def load_knowledge(startup: StartupKnowledge | None = None) -> Knowledge:
    """Load the shipped data. `startup` is used instead of loading it again."""
    known = startup or load_startup()
    rules = load_termination_rules()
    return Knowledge(
        messages=load_messages(),
        startup=known,
        terminations=rules,
        logged_names=load_logged_names(),
        **_by_signature(known, rules),
    )


def load_termination_rules() -> TerminationRules:
    """Load the shipped rules."""
    return load_file(TerminationRules, "terminations.yaml")


def match_container(rules: TerminationRules, view: PodView, ended: Termination, probe: str) -> Crash | None:
    """Name the cause of a container's end from its status and the kubelet's message about a probe; None if no rule matches."""
    rule = next((rule for rule in rules.containers if _matches(rule, ended, probe)), None)
    return _crash(rule, view, ended) if rule is not None else None


def match_pod(rules: TerminationRules, view: PodView) -> Crash:
    """Name the cause of the end of a Pod that will not run again. The last rule matches any Pod."""
    rule = next(rule for rule in rules.pods if _matches_reason(rule, view.reason))
    return _crash(rule, view, view.termination)


def _by_signature(known: StartupKnowledge, rules: TerminationRules) -> dict[str, Any]:
    echoes = {signature.id for signature in known.signatures if signature.is_echo}
    by_action = {action: frozenset(s.id for s in known.signatures if s.remedy_action is action) for action in RemedyAction}
    return {
        "weak": frozenset(echoes | {rule.id for rule in rules.containers if rule.is_weak}),
        "signatures": {signature.id: signature for signature in known.signatures},
        "quarantining": by_action[RemedyAction.QUARANTINE_CACHE],
        "cleaning": by_action[RemedyAction.CLEAN_CACHE],
    }


def _matches(rule: TerminationRule, ended: Termination, probe: str) -> bool:
    if rule.exit_codes and ended.exit_code not in rule.exit_codes:
        return False
    return _matches_reason(rule, ended.reason) and (not rule.probe or f"{rule.probe} probe" in probe)


def _matches_reason(rule: TerminationRule, reason: str) -> bool:
    return not rule.reason or reason == rule.reason or (rule.reason.endswith("*") and reason.startswith(rule.reason[:-1]))


def _crash(rule: TerminationRule, pod: PodView, ended: Termination | None) -> Crash:
    values = {
        "pod": pod.name,
        "node": pod.node or "its node",
        "reason": pod.reason or (ended.reason if ended else ""),
        "message": clean(pod.message, 250),
    }
    # The values are untrusted: insert them, never parse them as a template.
    cause, remedy = (sentence(template.format_map(values)) for template in (rule.cause, rule.remedy))
    return Crash(signature=rule.id, cause=cause, remedy=remedy, reference=None, line="")
