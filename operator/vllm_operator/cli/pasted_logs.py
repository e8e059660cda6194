"""Convert logs from tools and posts to the lines that the container wrote.

The parser reads the output of a container and the prefixes of a kubelet or container runtime (`logs.lines`). It also learns unknown
prefixes. This module removes prefixes of kubectl, docker compose and syslog, JSON of log stores, colours without their escape character, a
margin, quotation marks, characters that web pages replace, and lines of Markdown that only mention an error. The logs of several containers
in one text (`kubectl logs --prefix`) are separated, because each is the log of a separate start. Only the command line reads such texts.
"""

import codecs
import html
import json
import posixpath
import re
from collections.abc import Callable

from vllm_operator.catalog.error_forms import load_error_forms
from vllm_operator.logs.lines import JSON_LIMIT, LEVELS, LINE_LIMIT, TEXTS, WRAPPINGS_LIMIT, cleaned
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Stage, StartupState

CONTAINERS_LIMIT = 64
"""Maximum number of containers whose logs are separated. The lines of further containers are added to the previous line's container."""
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_COLOURS = re.compile(r"(?m)(?:\^\[|#033)\[[0-9;]{0,8}m|(?<!\w)\[[0-9;]{1,8}m|#015$")
"""Colours with the escape character in the notation of less and rsyslog, or without it; and rsyslog's carriage return."""
_ENTITY = re.compile(r"&(?:quot|#34|#x27|#39|apos|lt|gt|nbsp|amp);|<br ?/?>(?=\r?(?:\n|\Z))")
_SPACES = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u200b": None, "\u2060": None, "\ufeff": None})
"""No-break spaces, zero-width characters, and the byte order mark."""
_FENCED = re.compile(r"(?m)^(?P<margin> {2,12})```[^\n`]{0,40}\n(?:[^\n]{0,4000}\n){1,2000}?(?P=margin)```")
"""A code block in a Markdown list: all its lines are indented."""
_QUOTED = re.compile(r"""[ \t]{0,16}(["'])((?:\(|[\w.]{1,120}(?:Error|Exception): ).{1,4000}?)\1[,)]{0,2}\r?""")
"""A line that consists of one string with a record or an error, in a list, a post or a program."""
_SPAN = re.compile(r"`{0,3}([^`]{1,4000})`{1,3}")
"""A line that is a code span, or ends a code span of an earlier line."""
_INDENTED = re.compile(r"[ \t]{1,16}(?=\((?:[\w.-]{1,60} )?(?:[\w=]{1,20} )?pid=\d|(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:)")
_MARGIN = re.compile(r"(?:[ \t]*[|│┃>#+*•·/-]{1,3})*[ \t]*")
"""Indentation, quotation marks or a frame before every line."""

_LINK = re.compile(r"\]\(https?://\S{1,200}/(?:issues|pull|discussions)/\d")
"""A link to a thread in Markdown. The text around it mentions errors."""
_RULE = re.compile(r"\|(?: {0,3}:?-{3,200}:? {0,3}\|){1,20}\s*")
"""Delimiter row of a table in Markdown. A table mentions errors."""
_MENTIONED = re.compile(r"`[\w.]{0,120}(?:Error|Exception|NotFound|Timeout)`")
_ALTERNATIVES = re.compile(r"`[^`\n]{1,200}`(?:, `[^`\n]{1,200}`){0,8},? or `[^`\n]{1,200}`")
"""Messages in a text that lists what a log may contain."""
_TITLED = re.compile(r"\b[\w.]{1,120}(?:Error|Exception)\b(?!:)")
"""An exception that a sentence or heading mentions: it has no message."""

_LINES_AT_ONCE = 10_000
_CONTAINER = re.compile(r"\[(pod/[^\]\s]{1,330})\]")
_PREFIX = load_error_forms().shown
_CUT_HEADER = re.compile(r"([A-Z]{1,7})(?= \d\d-\d\d \d\d:\d\d(?::\d\d)?(?:\.\d{1,6})? \[?[^\]\s]{1,120}:\d{1,6}\] )")
"""A record that was copied from within its level."""
_STORED_TEXTS = (*TEXTS, "line", "textPayload", "MESSAGE", "body", "_raw")
"""Members of a JSON entry that may contain the text, in order of precedence."""
_STORED_LOGS = ("output", "error", "logs", "stderr", "stdout", "traceback", "detail")
"""Members that may contain text of several lines."""
_STORED_ENTRIES = ("content", "jsonPayload", "fields", "attributes", "data")
"""Members that may contain the entry (Datadog, Google Cloud)."""


def read_logs(data: bytes, make: Callable[[], StartupParser]) -> list[tuple[str, StartupParser]]:
    """Return the name of each container (empty without `kubectl logs --prefix`) and the parser of its log, the most severe first."""
    lines = _lines(data)
    current = next((found[1] for line in lines if (found := _CONTAINER.match(line))), "")
    logs: dict[str, list[str]] = {current: []}
    for line in lines:
        found = _CONTAINER.match(line) if current else None
        if found is not None and (found[1] in logs or len(logs) < CONTAINERS_LIMIT):
            current = found[1]
        logs.setdefault(current, []).append(unwrapped(line))
    parsers = {name: make() for name in logs}
    for name, parser in parsers.items():
        lines = _without_mentions(logs.pop(name))
        for start in range(0, len(lines), _LINES_AT_ONCE):
            parser.feed(("\n" if start else "") + "\n".join(lines[start : start + _LINES_AT_ONCE]))
        parser.end()
    return sorted(parsers.items(), key=lambda each: severity(each[1].final_state))


def _without_mentions(lines: list[str]) -> list[str]:
    """Empty lines that only mention errors (links to threads, rows of a table), and remove exceptions that a text only mentions."""
    kept, is_table = [], False
    for line in lines:
        is_table = line.startswith("|") and (is_table or _RULE.fullmatch(line) is not None)
        found = load_error_forms().header.match(line)
        if found is None or not found["level"]:
            is_mention = (is_table and line.endswith("|")) or ("](http" in line and _LINK.search(line) is not None)
            line = "" if is_mention else _without_names(line)
        kept.append(line)
    return kept


def _without_names(line: str) -> str:
    if "`" in line:
        line = _MENTIONED.sub("``", line)
        line = _ALTERNATIVES.sub("``", line) if "` or `" in line else line
    return _TITLED.sub("", line) if line.startswith("#") else line


def _lines(data: bytes) -> list[str]:
    """Return the lines as they were logged, without additions of a page or an editor."""
    text = data.decode("utf-16" if data[:2] in _UTF16_MARKS else "utf-8", "replace")  # PowerShell writes redirected output in UTF-16
    text = _COLOURS.sub("", cleaned(text))
    text = _ENTITY.sub(lambda found: "" if found[0].startswith("<") else html.unescape(found[0]), text)
    text = _FENCED.sub(lambda fenced: fenced[0].replace("\n" + fenced["margin"], "\n"), text.translate(_SPACES))
    lines = [_unquoted(line) for line in text.split("\n")]
    margin = _margin_of([line for line in lines if line.strip()])
    return [line.removeprefix(margin) for line in lines] if margin else lines


def _unquoted(line: str) -> str:
    for pattern, end, group in ((_SPAN, "`", 1), (_QUOTED, "\"',)\r", 2)):
        if line[-1:] in end and (found := pattern.fullmatch(line)) is not None:
            line = found[group]
    indented = _INDENTED.match(line) if line[:1] in " \t" else None
    return line[indented.end() :] if indented is not None else line


def _margin_of(filled: list[str]) -> str:
    if len(filled) < 3 or _MARGIN.fullmatch(filled[0][0]) is None:
        return ""
    found = _MARGIN.match(posixpath.commonprefix(filled))
    margin = found[0] if found is not None else ""
    if margin.isspace():  # Python also indents frames and source lines
        return "" if any(line.lstrip().startswith('File "') for line in filled if line[len(margin)] != " ") else margin
    is_table = margin.startswith("|") and sum(line.rstrip().endswith("|") for line in filled) > len(filled) // 2
    return "" if is_table or margin.endswith(("-", "*", "/")) else margin


def unwrapped(line: str, depth: int = WRAPPINGS_LIMIT) -> str:
    """Remove prefixes of tools before and after those that the parser reads. `depth` limits the nesting of JSON and prefixes."""
    if not line or (len(line) <= LINE_LIMIT and line[0] == " "):
        return line
    kept, rest = "", line
    for _ in range(depth):
        if rest[:1] == "{":
            return kept + _entry(rest, depth - 1)
        found = load_error_forms().wrapping.match(rest)
        if found is None:
            if (prefix := _PREFIX.match(rest)) is not None:
                rest = rest[prefix.end() :]
                continue
            found = load_error_forms().header.match(rest)
            after = rest[found.end() :] if found is not None and found.end() and not found["level"] else ""
            if found is None or not (after[:1] == "{" or load_error_forms().wrapping.match(after) or _PREFIX.match(after)):
                return kept + _with_level(rest)
        kept, rest = kept + found[0], rest[found.end() :]
        if any(found.groupdict().get(name) for name in ("level", "severity", "first", "last", "letter")):
            break
    return kept + rest


def _with_level(rest: str) -> str:
    found = _CUT_HEADER.match(rest)
    level = next((name for name in LEVELS if name.endswith(found[1])), None) if found is not None else None
    return level + rest[found.end() :] if found is not None and level is not None else rest


def _entry(text: str, depth: int) -> str:
    """Convert an entry of a log store to a JSON record of a logger. Other text is returned unchanged."""
    try:
        members = json.loads(text) if len(text) <= JSON_LIMIT else None
    except (ValueError, RecursionError):
        return text
    if not isinstance(members, dict):
        return text
    for entry in (members, *(inner for name in _STORED_ENTRIES if isinstance(inner := members.get(name), dict))):
        said = next((value for name in _STORED_TEXTS if isinstance(value := entry.get(name), str)), None)
        if said is None:
            several = [value for name in _STORED_LOGS if isinstance(value := entry.get(name), str)]
            said = "\n".join(several) if any("\n" in each for each in several) else None
        if said is not None:
            scalars = {name: value for name, value in entry.items() if isinstance(value, str | int | float)}
            return json.dumps({**scalars, "message": "\n".join(unwrapped(line, depth) for line in said.split("\n"))})
    return text


def severity(state: StartupState) -> int:
    """Return a sort key: the log of a crash first."""
    if state.crash is not None and (state.has_start or state.crash.signature != "Unknown"):
        return 0
    if state.cut_off_at is not None:
        return 1
    if state.has_start:
        return 3 if state.stage is Stage.READY else 2
    # An error without a start comes from another program, such as a proxy or a metrics collector.
    return 4 if state.crash is not None else 5
