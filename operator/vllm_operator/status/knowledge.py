"""The catalog data for reports: messages, and rules for starts, crashes and terminated Pods.

Each text of a condition or an event is a jinja2 template in `catalog/data/messages.yaml`. Code chooses a template and passes the values. A
template fails if it uses a value that it was not given; the tests render all of them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, timedelta
from functools import cache, cached_property
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vllm_operator.catalog.backends import LoggedNames, load_logged_names
from vllm_operator.catalog.entry import Entry, load_file, loader
from vllm_operator.catalog.startup import Remedy, Signature, StartupKnowledge, load_remedies, load_startup
from vllm_operator.catalog.versions import Versions, load_versions
from vllm_operator.logs.state import Stage
from vllm_operator.pods.view import Phase
from vllm_operator.text import wording
from vllm_operator.text.wording import clean, sentence

_PREEMPTION = re.compile(r"[.,;] (?:no new claims to deallocate|still not schedulable|preemption:|not found\.?$)")
_FORBIDDEN_POD = re.compile(r'^pods "[^"]*" is forbidden: ')
_PULLING = re.compile(
    r'^(?:Back-off pulling image "[^"]*": \w+: |rpc error: code = \w+ desc = |Error response from daemon: |'
    r'failed to pull and unpack image "[^"]*": |failed to resolve (?:reference|image) "[^"]*": )+'
)
_FILTERS = {
    "duration": wording.duration,
    "clock": wording.clock,
    "time": lambda when, later=0: (when.astimezone(UTC) + timedelta(seconds=later)).strftime("%H:%M:%S UTC"),
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
    def damaged_caches(self) -> frozenset[str]:
        """Signatures of damaged caches."""
        return self._with_action("quarantine-cache")

    @cached_property
    def full_volume(self) -> frozenset[str]:
        """Signatures of a full volume."""
        return self._with_action("clean-cache")

    def _with_action(self, action: str) -> frozenset[str]:
        return frozenset(signature.id for signature in self.startup.signatures if signature.remedy_action == action)


load_messages = loader(Messages, "messages.yaml")
"""Reads the messages that ship with the operator."""


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
