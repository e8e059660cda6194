"""Rules that the owner of the cluster adds to ours, in the same form.

They go before our own rules of the same kind: a choice of the cluster's owner beats our choices, not our quirks. A
broken one is left out and named; it never keeps the others, or the operator, from working.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.catalog.entry import EntryError, parse_entry
from vllm_operator.catalog.linear_patterns import compile_linear
from vllm_operator.catalog.rules import Rule, Rules, build_rules, find_conflicts
from vllm_operator.catalog.user_texts import Broken, TextError, read_entries
from vllm_operator.catalog.versions import Versions

USER_PRIORITY = 1000
"""Added to the priority of a user's rule, so that it beats ours of the same kind."""
RULES_LIMIT = 256
"""More rules, or signatures, than this are not read: each is asked for every plan, or many lines."""

EXPRESSIONS_LIMIT = 512
"""Of all rules, or all signatures, of users together: each takes memory of its own."""


@dataclass(frozen=True, slots=True)
class UserRules:
    """All rules with those of the user that can be used.

    `added` names these, `written` is how they were written; `problems` says what is wrong with the others.
    """

    rules: Rules
    added: tuple[str, ...] = ()
    written: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def read_documents(texts: Mapping[str, str], what: str = "rules") -> tuple[list[Any], list[str]]:
    """Read rules, or what else users add, from YAML texts by name; each text is a list, as in the files of `catalog/data`.

    Returns:
        What is written there, a Broken for each entry that cannot be read, and one sentence about each text that cannot.
    """
    documents: list[Any] = []
    problems: list[str] = []
    for name in sorted(texts):
        try:
            entries = read_entries(texts[name], what)
        except TextError as error:
            problems.append(f"{name}: this is not valid YAML: {error}. All {what} in it are ignored.")
            continue
        if entries is None:
            problems.append(f"{name}: this is not a list of {what}. It is ignored.")
        else:
            documents += entries
    if len(documents) > RULES_LIMIT:
        problems.append(f"there are {len(documents)} {what}; only the first {RULES_LIMIT} are read.")
    return documents[:RULES_LIMIT], problems


def add_user_rules(rules: Rules, documents: Sequence[Any], versions: Versions | None = None) -> UserRules:
    """Add rules to those that ship with the operator.

    Args:
        rules: Our own rules.
        documents: The user's, as they were read.
        versions: The known versions; with them it is checked that each knows what the rules set there.
    """
    taken = {rule.id for rule in rules.rules}
    added: list[Rule] = []
    written: dict[str, Any] = {}
    problems: list[str] = []
    expressions = 0
    for document in documents:
        try:
            rule = _read(document, versions)
            if rule.id in taken:
                raise EntryError("another rule has this name")
            if conflict := _conflict(rule, added):
                raise EntryError(conflict)
            expressions += len(rule.when.environment) + len(rule.when.arguments)
            if expressions > EXPRESSIONS_LIMIT:
                raise EntryError(f"the rules up to this one have more than {EXPRESSIONS_LIMIT} regular expressions")
        except Exception as error:  # one rule must not cost the others, whatever is wrong with it
            reason = error if isinstance(error, EntryError) else f"it cannot be read ({type(error).__name__})"
            problems.append(f"rule {name_of(document)}: {reason}. The rule is ignored.")
            continue
        taken.add(rule.id)
        added.append(rule)
        written[rule.id] = document
    everything = build_rules([*added, *rules.rules], rules.invocations, rules.kernels) if added else rules
    return UserRules(everything, tuple(written), written, tuple(problems))


def _read(document: Any, versions: Versions | None) -> Rule:
    if isinstance(document, Broken):
        raise EntryError(document.reason)
    rule = parse_entry(Rule, document, compile_pattern=compile_linear)
    for table in versions.tables if versions else ():
        if not rule.when.versions.contains(table.release):
            continue
        unknown = [flag for flag in rule.arguments if not table.knows_flag(flag)]
        unknown += [name for name in rule.environment if name.startswith("VLLM_") and not table.knows_variable(name)]
        if unknown:
            raise EntryError(f"vLLM {table.version} does not have {', '.join(unknown)}; limit the rule with when.versions")
    return rule.model_copy(update={"priority": rule.priority + USER_PRIORITY})


def name_of(document: Any) -> str:
    """What to call an entry of a user in a sentence about it."""
    name = document.name if isinstance(document, Broken) else document.get("id") if isinstance(document, dict) else None
    return "without an id" if name is None else str(name)[:63]


def _conflict(rule: Rule, others: Iterable[Rule]) -> str | None:
    return next((conflicts[0] for other in others if (conflicts := find_conflicts([other, rule]))), None)
