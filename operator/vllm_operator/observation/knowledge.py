"""What reports draw on beside the observation: the messages, and what is known of starts and crashes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from vllm_operator.catalog.backends import LoggedNames, load_logged_names
from vllm_operator.catalog.signatures import RemedyAction, Signature
from vllm_operator.catalog.startup import StartupKnowledge, load_startup
from vllm_operator.messages import Messages, load_messages
from vllm_operator.observation.terminations import Rules, load_rules


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """Loaded once, shared by all reports."""

    messages: Messages
    startup: StartupKnowledge
    terminations: Rules
    logged_names: LoggedNames
    weak: frozenset[str]
    """Signatures that say little: what comes later may say more."""
    signatures: Mapping[str, Signature]
    """Known crashes by name."""
    quarantining: frozenset[str] = frozenset()
    """Signatures of damaged caches."""
    cleaning: frozenset[str] = frozenset()
    """Signatures of a full volume."""
    remounting: frozenset[str] = frozenset()
    """Signatures of a volume that has become read-only."""

    def with_startup(self, startup: StartupKnowledge) -> "Knowledge":
        """The same with other crashes that are known by name."""
        return replace(self, startup=startup, **_of_signatures(startup, self.terminations))


@cache
def load_knowledge(startup: StartupKnowledge | None = None) -> Knowledge:
    """Read what ships with the package. `startup`: what was loaded already for the parsers of logs."""
    known = startup or load_startup()
    rules = load_rules()
    return Knowledge(
        messages=load_messages(),
        startup=known,
        terminations=rules,
        logged_names=load_logged_names(),
        **_of_signatures(known, rules),
    )


def _of_signatures(known: StartupKnowledge, rules: Rules) -> dict[str, Any]:
    echoes = {signature.id for signature in known.signatures if signature.is_echo}
    by_action = {action: frozenset(s.id for s in known.signatures if s.remedy_action is action) for action in RemedyAction}
    return {
        "weak": frozenset(echoes | {rule.id for rule in rules.containers if rule.is_weak}),
        "signatures": {signature.id: signature for signature in known.signatures},
        "quarantining": by_action[RemedyAction.QUARANTINE_CACHE],
        "cleaning": by_action[RemedyAction.CLEAN_CACHE],
        "remounting": by_action[RemedyAction.REMOUNT_VOLUME],
    }
