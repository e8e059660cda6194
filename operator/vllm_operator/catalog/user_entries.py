"""Rules, crash signatures and node pools from ConfigMaps of the cluster's administrator.

Rules and signatures have the form of those that ship with the operator, with stricter limits. User-defined rules take precedence over
built-in rules of the same kind: over choices, but not over quirks. The operator reports the cause and suggests the remedy of a user-defined
signature, but never acts on it.

The texts are untrusted. Limits of size and depth, and the refusal of aliases, bound the time and memory of PyYAML. Regular expressions are
matched in linear time. An invalid entry is skipped and reported; it affects neither the others nor the operator.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import yaml
from packaging.specifiers import SpecifierSet
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from vllm_operator.catalog.entry import SHOWN, EntryError, matching, parse_entry, quote
from vllm_operator.catalog.gpus import GPUs, InstanceType
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.rules import Rule, build_rules, find_conflicts
from vllm_operator.catalog.startup import FACTS, LIST_LIMIT, TEXT_LIMIT, LinePattern, Signature, StartupKnowledge
from vllm_operator.catalog.templates import TemplateError, check_template, join
from vllm_operator.catalog.versions import VersionTable, load_versions
from vllm_operator.text.patterns import compile_linear

SIZE_LIMIT = 64 * 1024
"""Maximum size of a text in bytes."""
DEPTH_LIMIT = 20
"""Maximum nesting depth of a text. PyYAML reads nested values recursively, and its time per level grows with the level."""
ENTRIES_LIMIT = 256
"""Maximum number of rules, or of signatures. Each plan evaluates all rules, and many log lines are matched with all signatures."""
EXPRESSIONS_LIMIT = 512
"""Maximum number of regular expressions of all rules, or of all signatures, because each uses memory."""
USER_PRIORITY = 1000
"""Added to the priority of a user's rule, so that it precedes built-in rules of the same kind."""
UNNAMED = "Unknown"
"""Name of a crash without a signature."""
PATTERN_LIMIT = 500
"""Maximum characters of an anchor or regular expression."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


Item = TypeVar("Item")
Named = TypeVar("Named", Rule, Signature)


@dataclass(frozen=True, slots=True)
class UserEntries(Generic[Item]):
    """The valid entries, their YAML values by id, and a sentence about each invalid entry or text."""

    entries: tuple[Item, ...] = ()
    written: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def added(self) -> tuple[str, ...]:
        """The ids of the valid entries."""
        return tuple(self.written)


def check_yaml(text: str, *, depth: int, values: int = 0) -> None:
    """Raise ValueError for an untrusted text that would take excessively long to parse, or crash the parser.

    `depth` is the maximum nesting, `values` the maximum number of values after the expansion of aliases; without it, there may be none.
    """
    sizes: dict[str, int] = {}
    within: list[tuple[str | None, int]] = [(None, 0)]  # anchor and number of values of each level
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        size, line = 0, f"line {event.start_mark.line + 1}: " if event.start_mark else ""
        if isinstance(event, yaml.CollectionStartEvent):
            within.append((event.anchor, 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = within.pop()
            sizes |= {anchor: size} if anchor else {}
        elif isinstance(event, yaml.AliasEvent):
            if not values:
                raise ValueError(f"{line}the alias *{str(event.anchor)[:SHOWN]} is not allowed; write the value again")
            if any(anchor == event.anchor for anchor, _ in within):
                raise ValueError(f"{line}*{event.anchor} is within the value that it repeats")
            size = sizes.get(str(event.anchor), 1)
        elif isinstance(event, yaml.ScalarEvent):
            size = 1
            sizes |= {event.anchor: 1} if event.anchor else {}
        within[-1] = within[-1][0], within[-1][1] + size
        if len(within) > depth + 1:
            raise ValueError(f"{line}it is nested deeper than {depth} levels")
        if within[-1][1] > values > 0:
            raise ValueError(f"it has more than {values} values after the expansion of aliases")


def read_yaml(text: str) -> Any:
    """Parse untrusted YAML into plain values. Raises ValueError if the text is not YAML, or exceeds a limit."""
    if len(text) > SIZE_LIMIT or len(text.encode("utf-8", "replace")) > SIZE_LIMIT:
        raise ValueError(f"it is larger than {SIZE_LIMIT // 1024} KiB")
    try:
        check_yaml(text, depth=DEPTH_LIMIT)
        return yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def read_documents(texts: Mapping[str, str], what: str) -> tuple[list[Any], list[str]]:
    """Read `what` (rules or signatures) from YAML texts by name. Each text is a list, or a mapping whose only key is `what`.

    Return the entries, and a sentence about each unreadable text.
    """
    documents: list[Any] = []
    problems: list[str] = []
    for name in sorted(texts):
        try:
            found = read_yaml(texts[name])
        except ValueError as error:
            problems.append(f"{name}: this is not valid YAML: {' '.join(str(error).split())[:200]}. All {what} in it are ignored.")
            continue
        if isinstance(found, dict) and found.keys() == {what}:
            found = found[what]
        if isinstance(found, list | None):
            documents += found or []
        else:
            problems.append(f"{name}: this is not a list of {what}. It is ignored.")
    if len(documents) > ENTRIES_LIMIT:
        problems.append(f"there are {len(documents)} {what}; only the first {ENTRIES_LIMIT} are used.")
    return documents[:ENTRIES_LIMIT], problems


def collect(
    texts: Mapping[str, str],
    what: str,
    read: Callable[[Any, Sequence[Named]], Named],
    *,
    taken: Iterable[Named],
    count_expressions: Callable[[Named], int],
) -> UserEntries[Named]:
    """Read entries from YAML texts by name. An invalid entry does not affect the others.

    `what` is `rule` or `signature`, `read` reads an entry, given the previous ones, or raises EntryError. The names of
    `taken` already exist.
    """
    documents, problems = read_documents(texts, f"{what}s")
    names = {one.id for one in taken}
    written: dict[str, Any] = {}
    entries: list[Named] = []
    expressions = 0
    for document in documents:
        if not isinstance(document, dict):
            problems.append(f"{str(document)[:50]!r} is not a {what}. It is ignored.")
            continue
        try:
            if control := next((found[0] for text in _texts_in(document) if (found := _CONTROL.search(text))), None):
                raise EntryError(f"it contains the control character {control!r}")
            entry = read(document, entries)
            if entry.id in names:
                raise EntryError(f"another {what} has this name")
            expressions += count_expressions(entry)
            if expressions > EXPRESSIONS_LIMIT:
                raise EntryError(f"the {what}s up to this one have more than {EXPRESSIONS_LIMIT} regular expressions")
        except Exception as error:  # an invalid entry must not affect the others
            reason = error if isinstance(error, EntryError) else f"it cannot be read ({type(error).__name__})"
            problems.append(f"{what} {_name_of(document)}: {reason}. The {what} is ignored.")
            continue
        names.add(entry.id)
        entries.append(entry)
        written[entry.id] = document
    return UserEntries(tuple(entries), written, tuple(problems))


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts_in([*value, *value.values()])
    elif isinstance(value, list):
        yield from (text for inner in value for text in _texts_in(inner))


def _name_of(document: Mapping[Any, Any]) -> str:
    name = document.get("id")
    shown = str(name)[:63]
    return "without an id" if name is None else shown if shown.isprintable() else repr(shown)


def with_user_rules(catalog: Catalog, texts: Mapping[str, str]) -> tuple[Catalog, UserEntries[Rule]]:
    """Add custom rules to a catalog, from YAML texts by name. Invalid rules are skipped and reported.

    A rule may set only variables and flags that exist in all known versions to which it applies.
    """
    known = catalog.rules

    def read(document: Any, before: Sequence[Rule]) -> Rule:
        rule = parse_entry(Rule, document, compile_pattern=compile_linear)
        tables = (table for table in catalog.versions.tables if rule.when.versions.contains(table.release))
        _check_known((*rule.arguments, *rule.environment), tables, "limit the rule with when.versions")
        rule = rule.model_copy(update={"priority": rule.priority + USER_PRIORITY})
        if conflict := next((found for other in before for found in find_conflicts([other, rule])), None):
            raise EntryError(conflict)
        return rule

    found = collect(
        texts, "rule", read, taken=known.rules, count_expressions=lambda rule: len(rule.when.environment) + len(rule.when.arguments)
    )
    if not found.entries:
        return catalog, found
    digest = hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:8]
    rules = build_rules([*found.entries, *known.rules], known.invocations, known.kernels, known.selectors)
    return replace(catalog, version=f"{catalog.version}.{digest}", rules=rules, custom_rules=found.written), found


def _check_known(names: Collection[str], tables: Iterable[VersionTable], advice: str) -> None:
    for table in tables:
        unknown = [name for name in names if name.startswith("--") and not table.knows_flag(name)]
        unknown += [name for name in names if name.startswith("VLLM_") and not table.knows_variable(name)]
        if unknown:
            raise EntryError(f"vLLM {table.version} does not have {', '.join(unknown)[:200]}; {advice}")


def _check_expression(regex: str) -> str:
    try:
        compile_linear(regex)
    except ValueError as error:
        raise ValueError(f"{quote(regex)} is not a regular expression of RE2: {str(error)[:120]}") from None
    return regex


_has_word = matching(r"(?s).*[A-Za-z]{2}.*", "must contain a word of two letters, by which its lines are found")
_Text = Annotated[str, Field(min_length=1, max_length=TEXT_LIMIT), BeforeValidator(join)]
_PatternText = Annotated[str, Field(min_length=1, max_length=PATTERN_LIMIT)]
_Expression = Annotated[_PatternText, AfterValidator(_check_expression)]


class UserPattern(LinePattern):
    """A pattern with limits."""

    anchor: Annotated[_PatternText, AfterValidator(_has_word)]
    regex: _Expression
    context: _Expression | None = None
    evidence: Literal["weak"] | None = None


class UserSignature(Signature):
    """A signature with limits. Its texts use only captures of its patterns."""

    is_user_defined: ClassVar[bool] = True

    patterns: Annotated[tuple[UserPattern, ...], Field(min_length=1, max_length=LIST_LIMIT)]
    cause: _Text
    remedy: _Text
    facts: Annotated[Mapping[str, str], Field(max_length=0)] = {}

    @model_validator(mode="after")
    def _check(self) -> "UserSignature":
        if self.id == UNNAMED:
            raise ValueError(f"{UNNAMED} is the name of a crash without a signature; choose another id")
        if self.auto_safe or self.remedy_action or self.cache_variable or any(pattern.overrules for pattern in self.patterns):
            acts = "the operator acts by itself only on signatures that ship with it"
            raise ValueError(f"{acts}: remove autoSafe, remedyAction, cacheVariable and overrules")
        captured = {group for pattern in self.patterns for group in compile_linear(pattern.regex).groupindex}
        texts = [("cause", self.cause, True), ("remedy", self.remedy, True)]
        changes = (*self.environment, *self.arguments)
        texts += [(f"the value of {change.name}", change.value, False) for change in changes if change.value is not None]
        for where, text, alone in texts:
            try:
                unknown = sorted(check_template(text, alone=alone) - {*captured, *FACTS})
            except TemplateError as error:
                raise ValueError(f"{where} {error}") from None
            if unknown:
                raise ValueError(f"{where} uses {', '.join(unknown)[:80]}, which no pattern captures")
        return self


def with_user_signatures(knowledge: StartupKnowledge, texts: Mapping[str, str]) -> tuple[StartupKnowledge, UserEntries[Signature]]:
    """Add custom crash signatures, from YAML texts by name. Invalid signatures are skipped and reported."""
    versions = load_versions()

    def read(document: Any, _: Sequence[Signature]) -> Signature:
        signature = parse_entry(UserSignature, document)
        for change in (*signature.environment, *signature.arguments):
            tables = [table for table in versions.tables if SpecifierSet(change.versions or "").contains(table.version)]
            _check_known((change.name,), tables, "limit the change with versions")
        return signature

    found = collect(
        texts,
        "signature",
        read,
        taken=knowledge.signatures,
        count_expressions=lambda signature: sum(1 if each.context is None else 2 for each in signature.patterns),
    )
    if not found.entries:
        return knowledge, found
    return replace(knowledge, signatures=(*found.entries, *knowledge.signatures)), found


POOLS_LIMIT, POOL_LENGTH, LABELS_LIMIT = 64, 1024, 8
"""Maximum number of node pools, characters of one, and labels of one."""
POOL_FORM = "write the GPUs and the labels of a node, such as `4 x NVIDIA-L40S node.kubernetes.io/instance-type=g6e.12xlarge`"
_POOL = re.compile(r"([1-9][0-9]?)\s*x\s*([A-Za-z0-9][-A-Za-z0-9_.]{0,62})((?:\s+\S+)*)", re.ASCII)
_LABEL = re.compile(r"((?:[a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9][-A-Za-z0-9_.]{0,62})=([A-Za-z0-9][-A-Za-z0-9_.]{0,62})", re.ASCII)


def read_instance_types(texts: Mapping[str, str], gpus: GPUs) -> UserEntries[InstanceType]:
    """Read the node pools that a cluster autoscaler can extend, by name. Each is one line in the form of `POOL_FORM`."""
    found: dict[str, InstanceType] = {}
    problems: list[str] = []
    for name in sorted(texts):
        if len(found) >= POOLS_LIMIT:
            problems.append(f"there are more than {POOLS_LIMIT} node pools; the others are ignored.")
            break
        try:
            found[name] = _read_pool(name, texts[name], gpus)
        except EntryError as error:
            problems.append(f"node pool {name[:SHOWN]}: {error}. The entry is ignored.")
    return UserEntries(tuple(found.values()), {name: texts[name] for name in found}, tuple(problems))


def _read_pool(name: str, text: str, gpus: GPUs) -> InstanceType:
    match = _POOL.fullmatch(text.strip()) if len(text) <= POOL_LENGTH else None
    labels = [_LABEL.fullmatch(word) for word in match[3].split()] if match else []
    if match is None or not 0 < len(labels) <= LABELS_LIMIT or not all(labels):
        raise EntryError(POOL_FORM)
    if gpus.product(match[2]) is None:
        raise EntryError(f"{match[2]} is not a known GPU; write a name that `vllm-operator catalog gpus` lists")
    return InstanceType(name, match[2], int(match[1]), tuple(sorted({label[1]: label[2] for label in labels if label}.items())))
