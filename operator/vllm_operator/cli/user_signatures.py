"""The user's own crash signatures for commands that read logs: `--signatures FILE`."""

from collections.abc import Sequence
from pathlib import Path

from vllm_operator.catalog.startup import StartupKnowledge, load_startup

USER_SIGNATURES_HELP = "YAML file with your own crash signatures, in the form of the built-in ones; can be repeated"


class UserSignaturesError(Exception):
    """A file cannot be used. The message says why."""


def known_crashes(files: Sequence[str]) -> StartupKnowledge:
    """Load what is known about starts and crashes, with the signatures in these files.

    The operator ignores an invalid signature. Here it is an error, because the user can correct it.

    Raises:
        UserSignaturesError: A file cannot be read, or a signature in it is invalid.
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
