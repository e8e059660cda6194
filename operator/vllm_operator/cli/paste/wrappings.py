"""What tools put around each line that they show: prefixes of kubectl, docker compose and syslog, JSON of log stores, Markdown.

The parser reads only what a container writes and what a kubelet or container runtime adds (`startup.lines.framing`). Both kinds can be
nested, so this module also looks behind the prefixes that the parser reads, and keeps them.
"""

import json
import re

from vllm_operator.startup.lines.framing import HEADER, JSON_LIMIT, LINE_LIMIT, TEXTS, WRAPPING, WRAPPINGS_LIMIT, locate

STORED_TEXTS = (*TEXTS, "line", "textPayload", "MESSAGE", "body", "_raw")
"""Members of a JSON entry that may contain its text, in order of precedence."""
_STORED_LOGS = ("output", "error", "logs", "stderr", "stdout", "traceback", "detail")
"""Members that may contain text of several lines."""
_STORED_ENTRIES = ("content", "jsonPayload", "fields", "attributes", "data")
"""Members that may contain the entry (Datadog, Google Cloud)."""
_PREFIX = re.compile(
    r"\[pod/[^\]\s]{1,200}\] "  # kubectl logs --prefix
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,80} [\w./-]{1,60}(?:\[\d{1,9}\])?: "  # syslog, journalctl
    r"|[\w.-]{1,80} {1,20}\| "  # docker compose
    r"|> |[-*] (?=\d{4}-)|`(?=\w)|[\"'`](?=\(\w)"  # Markdown, quotation marks
)
_CUT_HEADER = re.compile(r"([A-Z]{1,7})(?= \d\d-\d\d \d\d:\d\d(?::\d\d)?(?:\.\d{1,6})? \[?[^\]\s]{1,120}:\d{1,6}\] )")
"""A record that was copied from within its level."""
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def is_prefix(head: str) -> bool:
    """Whether a text consists only of prefixes that are known, to this module or to the parser."""
    for _ in range(WRAPPINGS_LIMIT):
        found = WRAPPING.match(head) or _PREFIX.match(head) or HEADER.match(head)
        if found is None or not found.end():
            break
        head = head[found.end() :]
    return not head


def unwrapped(line: str, depth: int = WRAPPINGS_LIMIT) -> str:
    """Return the line without what a tool put around it. `depth` limits how deep JSON and prefixes are nested."""
    if not line or (locate(line)[0] >= 0 and len(line) <= LINE_LIMIT and (line[0] in " (" or line.find("| ", 3, 104) < 0)):
        return line
    kept, rest = "", line
    for _ in range(depth):
        if rest[:1] == "{":
            return kept + _record(rest, depth - 1)
        found = WRAPPING.match(rest)
        if found is None:
            if (prefix := _PREFIX.match(rest)) is not None:
                rest = rest[prefix.end() :]
                continue
            found = HEADER.match(rest)
            if found is None or not found.end() or found["level"] or not _is_wrapped(rest[found.end() :]):
                return kept + _with_level(rest)
        kept, rest = kept + found[0], rest[found.end() :]
        if any(found.groupdict().get(name) for name in ("level", "severity", "first", "last", "letter")):
            break
    return kept + rest


def _is_wrapped(rest: str) -> bool:
    return rest[:1] == "{" or WRAPPING.match(rest) is not None or _PREFIX.match(rest) is not None


def _with_level(rest: str) -> str:
    found = _CUT_HEADER.match(rest)
    level = next((each for each in _LEVELS if each.endswith(found[1])), None) if found is not None else None
    return level + rest[found.end() :] if found is not None and level is not None else rest


def _record(text: str, depth: int) -> str:
    """Convert an entry of a log store to JSON as a logger writes it. Other text is returned as it is."""
    if len(text) > JSON_LIMIT:
        return text
    try:
        members = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(members, dict):
        return text
    if (said := _text(members)) is None:
        members = next((each for key in _STORED_ENTRIES if isinstance(each := members.get(key), dict)), members)
        said = _text(members)
    if said is None:
        return text
    scalars = {name: value for name, value in members.items() if isinstance(value, str | int | float)}
    return json.dumps({**scalars, "message": "\n".join(unwrapped(line, depth) for line in said.split("\n"))})


def _text(members: dict[str, object]) -> str | None:
    one = next((value for key in STORED_TEXTS if isinstance(value := members.get(key), str)), None)
    if one is not None:
        return one
    several = [value for key in _STORED_LOGS if isinstance(value := members.get(key), str)]
    return "\n".join(several) if any("\n" in each for each in several) else None
