"""Crash signatures that the owner of the cluster adds to ours, in the same form.

A broken one is left out and named; it never keeps the others, or the operator, from working. The operator says what they
say and suggests what they suggest; it does nothing by itself because of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_operator.catalog.signature_checks import complaint
from vllm_operator.catalog.signatures import Signature, parse_signature
from vllm_operator.catalog.startup import StartupKnowledge
from vllm_operator.catalog.user_rules import EXPRESSIONS_LIMIT, name_of, read_documents
from vllm_operator.catalog.user_texts import Broken
from vllm_operator.catalog.versions import Versions, load_versions

_DEFAULTS: Mapping[str, Any] = {"stages": [], "versions": "all", "architectures": "any", "retryable": False, "autoSafe": False}


@dataclass(frozen=True, slots=True)
class UserSignatures:
    """All signatures with those of the user that can be used; `added` names these, `problems` says what is wrong with the others."""

    signatures: tuple[Signature, ...]
    added: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def add_user_signatures(shipped: Sequence[Signature], texts: Mapping[str, str], versions: Versions) -> UserSignatures:
    """Add signatures to those that ship with the operator.

    Args:
        shipped: Our own.
        texts: YAML texts by name, each a list of signatures as in `catalog/data/signatures.yaml`.
        versions: The known versions: each must know what a remedy sets there.
    """
    documents, unreadable = read_documents(texts, "signatures")
    problems = list(unreadable)
    taken = {signature.id for signature in shipped}
    added: list[Signature] = []
    expressions = 0
    for document in documents:
        if not isinstance(document, dict | Broken):
            problems.append(f"{str(document)[:50]!r} is not a signature. It is ignored.")
            continue
        name = name_of(document)
        try:
            signature, wrong = _read(document, name in taken, versions)
        except Exception as error:  # one signature must not cost the others, whatever was not thought of
            signature, wrong = None, f"it cannot be read ({type(error).__name__})"
        expressions += 0 if signature is None else sum(1 if each.context is None else 2 for each in signature.patterns)
        if signature is not None and expressions > EXPRESSIONS_LIMIT:
            wrong, signature = f"with it there are more than {EXPRESSIONS_LIMIT} regular expressions", None
        if signature is None:
            problems.append(f"signature {name}: {wrong}. The signature is ignored.")
            continue
        taken.add(name)
        added.append(signature)
    return UserSignatures((*added, *shipped), tuple(signature.id for signature in added), tuple(problems))


def _read(document: Any, is_taken: bool, versions: Versions) -> tuple[Signature | None, str | None]:
    """A signature, or what is wrong with it."""
    if isinstance(document, Broken):
        return None, document.reason
    wrong = "there is another signature of this name" if is_taken else complaint(document, versions)
    return (None, wrong) if wrong else (parse_signature({**_DEFAULTS, **document}, is_user_defined=True), None)


def with_user_signatures(knowledge: StartupKnowledge, texts: Mapping[str, str]) -> tuple[StartupKnowledge, UserSignatures]:
    """Add crash signatures of the cluster's owner.

    Args:
        knowledge: What ships with the operator.
        texts: YAML texts by name, each a list of signatures. What is broken in them is left out and named.
    """
    read = add_user_signatures(knowledge.signatures, texts, load_versions())
    return StartupKnowledge(knowledge.stages, read.signatures) if read.added else knowledge, read
