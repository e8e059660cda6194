"""Regular expressions of the cluster's owner: matched by RE2, whose time grows with the line and with nothing else.

Python's `re` takes for ever on some innocent-looking patterns. Ours are tested against that; those that come from
outside need an engine in which it cannot happen. RE2 knows no look-around and no back-references; the rest is the same.
"""

import re
from functools import lru_cache
from typing import cast

MEMORY_BYTES = 1 << 18
"""A pattern that needs more is refused. All of ours need less, and so does a text of eighty characters of any kind between two words."""


class PatternError(ValueError):
    """The pattern cannot be used; the message says why."""


@lru_cache(maxsize=1024)
def compile_linear(regex: str) -> re.Pattern[str]:
    """Compile a regular expression with RE2.

    Raises:
        PatternError: It is none, or uses what RE2 does not know.
    """
    import re2  # only paid for where there are such patterns

    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY_BYTES
    try:
        # RE2's patterns have the methods of Python's that are used here, and no type information.
        return cast("re.Pattern[str]", re2.compile(regex, options))
    except re2.error as error:
        reason = error.args[0] if error.args else "it cannot be read"
        raise PatternError(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from None
