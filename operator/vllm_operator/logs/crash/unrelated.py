"""Errors that do not belong to a start: of requests, of clients, and of other programs with output in the same text."""

import re
from collections.abc import Iterable, Sequence
from itertools import islice

ASIDE = "collect_env.py"
"""A program whose output people paste beside the log. Its errors are not vLLM's."""
_SURVEY = "Collecting environment information..."
"""Its output before it imports vLLM."""
_CUSTOMIZE = "customize; set PYTHONVERBOSE for traceback:"
"""Heading of an error in sitecustomize or usercustomize. The error is on the next line, and Python starts nevertheless."""
_ANSWERING = ("starlette/_exception_handler.py", "in run_endpoint_function", "in process_inputs", "in _validate_model_input")
_ANSWERS = re.compile(
    r'/entrypoints/(?:openai|serve|pooling|anthropic)/\S{0,80}(?:serving\w{0,30}|api_router)\.py", line \d{1,6}, '
    r"in _?(?:create|render|preprocess|handle|tokenize|detokenize|chat_completion|completion|responses|stream|generate|beam_search)"
    r'|/(?:starlette/middleware|prometheus_fastapi_instrumentator)/\w{1,40}\.py", line \d{1,6}, in (?:__call__|_?get_route_name)'
)
"""Frames of a server that answers a request. The same modules are imported when the server starts, and may fail then."""
CLIENTS = (
    'vllm/benchmarks/serve.py", line',
    'vllm/entrypoints/cli/benchmark/serve.py", line',
    'benchmark_serving.py", line',
    'endpoint_request_func.py", line',
)
"""Frames of programs that send requests to a server."""
_LIBRARIES = ("packages/openai/", "packages/litellm/", "packages/langchain_openai/")
"""Frames of libraries that such programs use and the engine does not."""
_MIDDLEWARE = ("starlette/middleware/", "prometheus_fastapi_instrumentator/")
_OF_REQUESTS = (*_ANSWERING, *CLIENTS, *_LIBRARIES)
BYSTANDERS = (ASIDE, *_OF_REQUESTS, "/serving", "_serving", "api_router.py", *_MIDDLEWARE)
"""If the lines contain none of these, an exception is neither of a request nor of another program."""
_REQUEST = re.compile(r"\[(?:serving|(?!abstract)\w{1,40}_(?:tool|reasoning)_parser\.py:)")
"""Modules that answer requests, in the header of a record."""
_HEADER = 200
_SOURCE = re.compile(
    r"\s*(?:raise \w{1,60}\(|assert |except[ :]|(?:from [\w.]{1,80} )?import \w|(?:class|def) \w{1,80}[(:]|return "
    r"|(?:if|elif|for|while|with) .{0,300}:$|logger\.\w{4,9}\(|[\w.]{1,60} = [\w.]{0,60}[(\[{\"']"
    r"|(?!\w{0,80}(?:Error|Exception)\()[\w.]{1,80}\([\"'].{0,400}[\"']\)$)|\s+(?:#|//) |\s{8,}[rbf]{0,2}\".{0,400}\"\){0,3}$"
)
"""A source line, or an indented text. In a log, source lines follow the frames of a traceback."""
_BULK = re.compile(r'NCCL INFO|UCX  DEBUG|DEBUG:|", line (?:\.\.\.|[NXx]{1,3})(?:,|$)')
"""Trace output of libraries, and frames without a number, as examples in a text have them."""
_NAME = re.compile(r"`[\w.]{0,120}(?:Error|Exception|NotFound|Timeout)`")
_ALTERNATIVES = re.compile(r"`[^`\n]{1,200}`(?:, `[^`\n]{1,200}`){0,8},? or `[^`\n]{1,200}`")
"""Messages in a text that lists what a log may contain."""
_TITLED = re.compile(r"\b[\w.]{1,120}(?:Error|Exception)\b(?!:)")
"""An exception that a sentence or heading mentions: it has no message."""
_RULE = re.compile(r"\|(?: {0,3}:?-{3,200}:? {0,3}\|){1,20}\s*")
"""Delimiter row of a table in Markdown. A table mentions errors."""
_ROWS = 40
_LINK = re.compile(r"\]\(https?://\S{1,200}/(?:issues|pull|discussions)/\d")
"""A link to a thread in Markdown. The text around it mentions errors."""


def is_of_a_request(frames: Iterable[str]) -> bool:
    """Whether a traceback belongs to an answered request or to a client."""
    return any(_ANSWERS.search(frame) or any(place in frame for place in _OF_REQUESTS) for frame in frames)


def is_headed_by_a_request(raw: str) -> bool:
    """Whether a module that answers requests wrote the record."""
    return _REQUEST.search(raw, 0, _HEADER) is not None


def is_no_report(text: str, recent: Sequence[str]) -> bool:
    """Whether raw output contains no error: trace output of libraries, and texts about logs. `recent`: the latest lines of the log."""
    if len(recent) > 1 and (recent[-2].startswith(_SURVEY) or recent[-2].rstrip().endswith(_CUSTOMIZE)):
        return True
    if text.startswith("|") and text.endswith("|") and _is_in_a_table(recent):
        return True
    return ("](http" in text and _LINK.search(text) is not None) or _BULK.search(text) is not None


def is_source(text: str) -> bool:
    """Whether raw output looks like a source line or an indented text, which explains something only below a frame."""
    return _SOURCE.match(text) is not None


def without_names(text: str) -> str:
    """Remove exceptions that a text in Markdown only mentions."""
    if "`" in text:
        text = _NAME.sub("``", text)
        text = _ALTERNATIVES.sub("``", text) if "` or `" in text else text
    return _TITLED.sub("", text) if text.startswith("#") else text


def _is_in_a_table(recent: Sequence[str]) -> bool:
    for line in islice(reversed(recent), _ROWS):
        if not line.startswith("|"):
            return False
        if _RULE.fullmatch(line):
            return True
    return False
