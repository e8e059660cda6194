"""Rules that the owner of the cluster adds to ours, in the same form.

They go before our own rules of the same kind. A broken one is left out and named; it never keeps the others,
or the operator, from working.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vllm_operator.catalog.rules import Rule, RuleError, Rules, build_rules, find_conflicts, parse_rule

USER_PRIORITY = 1000
"""Added to the priority of a user's rule, so that it beats ours of the same kind."""


def add_user_rules(rules: Rules, documents: Sequence[Any]) -> tuple[Rules, tuple[str, ...]]:
    """Add rules to those that ship with the operator.

    Returns:
        All rules that can be used, and one sentence about each that cannot.
    """
    taken = {rule.id for rule in rules.rules}
    added: list[Rule] = []
    problems: list[str] = []
    for document in documents:
        try:
            rule = parse_rule(document if isinstance(document, dict) else {})
        except RuleError as error:
            problems.append(f"{error}. The rule is ignored.")
            continue
        rule = replace(rule, priority=rule.priority + USER_PRIORITY)
        conflicts = find_conflicts([*added, rule])
        if rule.id in taken:
            problems.append(f"rule {rule.id}: there is another rule of this name. The rule is ignored.")
        elif conflicts:
            problems.append(f"rule {rule.id}: {conflicts[0]}. The rule is ignored.")
        else:
            taken.add(rule.id)
            added.append(rule)
    return build_rules([*added, *rules.rules], rules.invocations, rules.kernels), tuple(problems)
