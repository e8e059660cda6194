"""Shorten a crash for `status.lastCrash`, and restore it from there.

A crash that is in force is described by the condition `Crashed`. The record then omits the parts of that message that can be restored: the
exit code from the Pod, and the texts from the signature and the line of the log. A restarted operator therefore describes the crash as
before, even if the log is gone. Everything else is kept.
"""

import re
from collections.abc import Mapping

from vllm_operator.api.status import CrashStatus
from vllm_operator.catalog.signatures import Signature
from vllm_operator.catalog.templates import fill_in
from vllm_operator.text import wording

_TEXTS = ("cause", "remedy", "reference")


def shorten(crash: CrashStatus, signatures: Mapping[str, Signature], said: str) -> CrashStatus:
    """Omit texts that can be restored and that `said`, the message of the condition `Crashed`, contains."""
    if _restore(crash, signatures) != crash or not all(wording.sentence(text) in said for text in (crash.cause, crash.remedy) if text):
        return crash
    left_out: tuple[str, ...] = _TEXTS
    if crash.pod in said and f"with exit code {crash.exit_code} " in said:
        left_out = (*left_out, "exit_code")
    return crash.model_copy(update=dict.fromkeys(left_out))


def restore(crash: CrashStatus | None, signatures: Mapping[str, Signature]) -> CrashStatus | None:
    """Return a recorded crash with its texts filled in. The exit code stays absent."""
    return (_restore(crash, signatures) or crash) if crash is not None and crash.cause is None else crash


def _restore(crash: CrashStatus, signatures: Mapping[str, Signature]) -> CrashStatus | None:
    """Fill in the texts of the signature with the values in the line of the log; None if no signature of the catalog has them."""
    signature = signatures.get(crash.signature)
    if signature is None or signature.is_user_defined:
        return None
    captures = _captures(signature, crash.excerpt or "").items()
    cause, remedy = (wording.clean(fill_in(text, captures), 1000) for text in (signature.cause, signature.remedy))
    return crash.model_copy(update={"cause": cause, "remedy": remedy or None, "reference": signature.reference})


def _captures(signature: Signature, line: str) -> dict[str, str]:
    """Return the values of the pattern with the most captures. The line is bounded, and the patterns are the operator's own."""
    found = [match.groupdict() for pattern in signature.patterns if (match := re.search(pattern.regex, line))]
    return {name: value for name, value in max(found, key=_number_of_values, default={}).items() if value}


def _number_of_values(captures: Mapping[str, str | None]) -> int:
    return sum(value is not None for value in captures.values())
