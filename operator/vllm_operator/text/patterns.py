"""Regular expressions that take linear time, with RE2. Python's `re` takes exponential time for some patterns.

RE2 has no look-around and no back-references.
"""

import re
from functools import lru_cache
from typing import cast

import re2

PATTERN_BYTES = 1 << 18
"""Maximum memory of a compiled pattern in bytes. The patterns that ship with the operator need less."""


@lru_cache(maxsize=1024)
def compile_linear(regex: str) -> re.Pattern[str]:
    """Compile a regular expression with RE2.

    Raises:
        ValueError: It is malformed, uses a feature that RE2 lacks, or needs too much memory.
    """
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES
    try:
        # RE2's patterns have the required methods, but no type information.
        return cast("re.Pattern[str]", re2.compile(regex, options))
    except re2.error as error:
        reason = error.args[0] if error.args else "it cannot be read"
        raise ValueError(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from None
