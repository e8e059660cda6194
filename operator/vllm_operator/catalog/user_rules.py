"""Rules that the owner of the cluster adds to ours, in the same form.

They go before our own rules of the same kind: their choice beats our choices, but not our quirks. An invalid rule is left out and
reported; it never affects the others or the operator.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.catalog.entry import parse_entry
from vllm_operator.catalog.resources import EntryError
from vllm_operator.catalog.rules import Rule, Rules, build_rules, find_conflicts
from vllm_operator.catalog.user_texts import collect, compile_linear
from vllm_operator.catalog.versions import Versions

USER_PRIORITY = 1000
"""Added to the priority of a user's rule, so that it beats ours of the same kind."""


@dataclass(frozen=True, slots=True)
class UserRules:
    """All rules, with those of the user that can be used.

    `added` names these, `written` is how they were written; `problems` has a sentence about each of the others.
    """

    rules: Rules
    added: tuple[str, ...] = ()
    written: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def add_user_rules(rules: Rules, documents: Iterable[Any], versions: Versions | None = None) -> UserRules:
    """Add rules to those that ship with the operator.

    Args:
        rules: Our own rules.
        documents: The user's, as they were read from YAML.
        versions: The known versions: each must have what the rules set there.
    """

    def read(document: Any, before: Sequence[Rule]) -> Rule:
        rule = parse_entry(Rule, document, compile_pattern=compile_linear)
        _check_settings(rule, versions)
        rule = rule.model_copy(update={"priority": rule.priority + USER_PRIORITY})
        if conflict := next((found for other in before for found in find_conflicts([other, rule])), None):
            raise EntryError(conflict)
        return rule

    collected = collect(
        documents,
        "rule",
        read,
        taken={rule.id for rule in rules.rules},
        count_expressions=lambda rule: len(rule.when.environment) + len(rule.when.arguments),
    )
    everything = (
        build_rules([*collected.entries, *rules.rules], rules.invocations, rules.kernels, rules.selectors) if collected.entries else rules
    )
    return UserRules(everything, tuple(collected.written), collected.written, collected.problems)


def _check_settings(rule: Rule, versions: Versions | None) -> None:
    for table in versions.tables if versions else ():
        if not rule.when.versions.contains(table.release):
            continue
        unknown = [flag for flag in rule.arguments if not table.knows_flag(flag)]
        unknown += [name for name in rule.environment if name.startswith("VLLM_") and not table.knows_variable(name)]
        if unknown:
            raise EntryError(f"vLLM {table.version} does not have {', '.join(unknown)[:200]}; limit the rule with when.versions")
