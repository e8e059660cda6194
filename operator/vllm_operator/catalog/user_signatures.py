"""User-defined crash signatures. They have the form of those that ship with the operator, with stricter limits.

An invalid signature is left out and reported. It never affects the others or the operator. The operator reports the cause and suggests
the remedy of a user-defined signature, but never acts on it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from packaging.specifiers import SpecifierSet
from pydantic import AfterValidator, Field

from vllm_operator.catalog.entry import SpecifierText, matching, parse_dataclass, quote
from vllm_operator.catalog.resources import EntryError
from vllm_operator.catalog.signatures import FACTS, Change, LinePattern, Signature
from vllm_operator.catalog.startup import StartupKnowledge
from vllm_operator.catalog.templates import TemplateError, check_template
from vllm_operator.catalog.user_texts import PatternError, collect, compile_linear, read_documents
from vllm_operator.catalog.versions import Versions, load_versions

UNNAMED = "Unknown"
"""Name of a crash without a signature."""
PATTERN_LIMIT, TEXT_LIMIT, LIST_LIMIT = 500, 600, 16
"""Maximum characters of an anchor or regular expression, and of other texts; maximum length of a list."""


def _check_anchor(anchor: str) -> str:
    if not re.search(r"[A-Za-z]{2}", anchor):
        raise ValueError(f"{quote(anchor)} must contain a word of two letters, by which its lines are found")
    return anchor


def _check_expression(regex: str) -> str:
    try:
        compile_linear(regex)
    except PatternError as error:
        raise ValueError(f"{quote(regex)} is not a regular expression of RE2: {str(error)[:120]}") from None
    return regex


Text = Annotated[str, Field(min_length=1, max_length=TEXT_LIMIT)]
Texts = Annotated[tuple[Annotated[str, Field(max_length=TEXT_LIMIT)], ...], Field(max_length=LIST_LIMIT)]
_PatternText = Annotated[str, Field(min_length=1, max_length=PATTERN_LIMIT)]
_Expression = Annotated[_PatternText, AfterValidator(_check_expression)]
_PLACEHOLDER = r"<[^<>]{1,80}>"
_Variable = Annotated[str, AfterValidator(matching(rf"[A-Za-z_][A-Za-z0-9_]{{0,127}}|{_PLACEHOLDER}", "is not the name of a variable"))]
_Flag = Annotated[str, AfterValidator(matching(rf"--[a-z0-9][-a-z0-9_.]{{0,125}}|{_PLACEHOLDER}", "is not the name of a flag"))]
_Name = Annotated[
    str, AfterValidator(matching(r"[A-Z][A-Za-z0-9]{2,62}", "is not a name like DriverTooOld, of at most 63 letters and digits"))
]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserPattern(LinePattern):
    """A pattern with limits."""

    anchor: Annotated[_PatternText, AfterValidator(_check_anchor)]
    regex: _Expression
    context: _Expression | None = None
    evidence: Literal["weak"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableChange(Change):
    """A change of a variable, with limits."""

    name: _Variable
    value: Text | None = None
    versions: SpecifierText | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagChange(VariableChange):
    """A change of a flag, with limits."""

    name: _Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSignature(Signature):
    """A signature with limits. Its texts use only what its patterns capture."""

    is_user_defined: ClassVar[bool] = True

    id: _Name
    priority: Annotated[int, Field(ge=1, le=100)]
    patterns: Annotated[tuple[UserPattern, ...], Field(min_length=1, max_length=LIST_LIMIT)]
    cause: Text
    remedy: Text
    stages: Texts = ()
    versions: Annotated[str, Field(max_length=TEXT_LIMIT)] = "all"
    architectures: Annotated[str, Field(max_length=TEXT_LIMIT)] = "any"
    environment: Annotated[tuple[VariableChange, ...], Field(max_length=LIST_LIMIT)] = ()
    arguments: Annotated[tuple[FlagChange, ...], Field(max_length=LIST_LIMIT)] = ()
    references: Texts = ()
    explains: Texts | None = None

    def __post_init__(self) -> None:
        """Check rules about several fields. Raises ValueError."""
        if self.id == UNNAMED:
            raise ValueError(f"{UNNAMED} is the name of a crash without a signature; choose another id")
        if self.auto_safe or self.remedy_action or self.cache_variable or any(pattern.overrules for pattern in self.patterns):
            raise ValueError(
                "the operator acts by itself only on signatures that ship with it: "
                "remove autoSafe, remedyAction, cacheVariable and overrules"
            )
        captured = {group for pattern in self.patterns for group in compile_linear(pattern.regex).groupindex}
        for where, text, alone in self._texts():
            try:
                unknown = sorted(check_template(text, alone=alone) - {*captured, *FACTS})
            except TemplateError as error:
                raise ValueError(f"{where} {error}") from None
            if unknown:
                raise ValueError(f"{where} uses {', '.join(unknown)[:80]}, which no pattern captures")

    def _texts(self) -> Iterator[tuple[str, str, bool]]:
        yield "cause", self.cause, True
        yield "remedy", self.remedy, True
        for change in (*self.environment, *self.arguments):
            if change.value is not None:
                yield f"the value of {change.name}", change.value, False


@dataclass(frozen=True, slots=True)
class UserSignatures:
    """All signatures, with the valid ones of the user.

    `added` has the ids of these. `problems` has a sentence about each invalid one.
    """

    signatures: tuple[Signature, ...]
    added: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def add_user_signatures(shipped: Sequence[Signature], texts: Mapping[str, str], versions: Versions) -> UserSignatures:
    """Add user-defined signatures to those that ship with the operator.

    Args:
        shipped: The signatures that ship with the operator.
        texts: YAML texts by name, each a list of signatures as in `catalog/data/signatures.yaml`.
        versions: The known versions. A remedy may set only what all versions that it applies to have.
    """

    def read(document: Any, _: Sequence[Signature]) -> Signature:
        signature = parse_dataclass(UserSignature, document)
        for change in (*signature.environment, *signature.arguments):
            _check_known(change, versions)
        return signature

    documents, unreadable = read_documents(texts, "signatures")
    collected = collect(
        documents,
        "signature",
        read,
        taken={signature.id for signature in shipped},
        count_expressions=lambda signature: sum(1 if each.context is None else 2 for each in signature.patterns),
    )
    return UserSignatures((*collected.entries, *shipped), tuple(collected.written), (*unreadable, *collected.problems))


def _check_known(change: Change, versions: Versions) -> None:
    """Check that every version to which the change applies has its flag or variable. Raises EntryError."""
    if not change.name.startswith(("--", "VLLM_")):
        return
    specifier = SpecifierSet(change.versions or "")
    for table in versions.tables:
        knows = table.knows_flag if change.name.startswith("--") else table.knows_variable
        if specifier.contains(table.version) and not knows(change.name):
            raise EntryError(f"vLLM {table.version} does not have {change.name}; limit the change with versions")


def with_user_signatures(knowledge: StartupKnowledge, texts: Mapping[str, str]) -> tuple[StartupKnowledge, UserSignatures]:
    """Add user-defined crash signatures.

    Args:
        knowledge: The knowledge that ships with the operator.
        texts: YAML texts by name, each a list of signatures. Invalid ones are left out and reported.
    """
    read = add_user_signatures(knowledge.signatures, texts, load_versions())
    return StartupKnowledge(knowledge.stages, read.signatures) if read.added else knowledge, read
