"""What reports draw on beside the observation: the messages, and what is known of starts and crashes."""

from dataclasses import dataclass
from functools import cache

from vllm_operator.catalog.signatures import RemedyAction
from vllm_operator.catalog.startup import StartupKnowledge, load_startup
from vllm_operator.reporting.messages import Messages, load_messages
from vllm_operator.reporting.terminations import Rules, load_rules


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """Loaded once, shared by all reports."""

    messages: Messages
    startup: StartupKnowledge
    terminations: Rules
    weak: frozenset[str]
    quarantining: frozenset[str] = frozenset()
    cleaning: frozenset[str] = frozenset()
    """Signatures that say little: what comes later may say more.

    `quarantining` are those of damaged caches, `cleaning` those of a full volume.
    """


@cache
def load_knowledge(startup: StartupKnowledge | None = None) -> Knowledge:
    """Read what ships with the package. `startup`: what was loaded already for the parsers of logs."""
    known = startup or load_startup()
    rules = load_rules()
    echoes = {signature.id for signature in known.signatures if signature.is_echo}
    weak = echoes | {rule.id for rule in rules.containers if rule.is_weak}
    return Knowledge(messages=load_messages(), startup=known, terminations=rules, weak=frozenset(weak), **_actions(known))


def _actions(known: StartupKnowledge) -> dict[str, frozenset[str]]:
    by_action = {action: frozenset(s.id for s in known.signatures if s.action is action) for action in RemedyAction}
    return {"quarantining": by_action[RemedyAction.QUARANTINE_CACHE], "cleaning": by_action[RemedyAction.CLEAN_CACHE]}
