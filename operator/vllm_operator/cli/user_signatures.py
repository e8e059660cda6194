"""Crash signatures from files of the user, for the commands that read logs: `--signatures FILE`."""

from collections.abc import Sequence
from pathlib import Path

from vllm_operator.catalog.startup import StartupKnowledge, load_startup

USER_SIGNATURES_HELP = "also know the crash signatures in this YAML file, in the form of those that ship (may be given several times)"


class UserSignaturesError(Exception):
    """A file cannot be used; the message says what is wrong with it."""


def known_crashes(files: Sequence[str]) -> StartupKnowledge:
    """What is known of starts and crashes, with the signatures in these files.

    The operator ignores a broken signature and goes on; a person at a terminal wants to know first.

    Raises:
        UserSignaturesError: A file cannot be read, or a signature in it cannot be used.
    """
    shipped = load_startup()
    if not files:
        return shipped
    from vllm_operator.catalog.user_signatures import with_user_signatures

    try:
        texts = {file: Path(file).read_text("utf-8") for file in files}
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserSignaturesError(f"{getattr(error, 'filename', None) or 'a file'} cannot be read: {reason}") from error
    known, read = with_user_signatures(shipped, texts)
    if read.problems:
        raise UserSignaturesError("\n".join(problem.removesuffix(" The signature is ignored.") for problem in read.problems))
    return known
