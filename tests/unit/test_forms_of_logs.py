"""A recorded log says the same whatever tool it was obtained with, and wherever it was pasted."""

import html
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from support.pasted import read_delivered, read_pasted
from vllm_operator.cli.paste.layout import rejoined
from vllm_operator.startup.parser import StartupParser

CORPUS = Path(__file__).parent.parent / "corpus"
SAMPLE = [path for path in sorted((CORPUS / "induced").glob("*.log")) if "-v0" not in path.stem][::17]
CHOSEN = (
    *("vllm-root-nowhere", "cli-len-negative", "w-extra", "poison-aot-gone-index-half"),
    *("good-fi-attn-cold-v026", "mp-shm-dead-serving-v023", "torchlogs-v023", "endpoint-bad-v026"),
)
RECORDINGS = [*SAMPLE, *(CORPUS / "induced" / f"{name}.log" for name in CHOSEN)]
PROCESS = re.compile(r"^(\([\w.-]+ pid=\d+\)) ")


def each_line(form: Callable[[int, str], str]) -> Callable[[str], str]:
    return lambda log: "".join(f"{form(number, line)}\n" for number, line in enumerate(log.removesuffix("\n").split("\n"), 1))


def before(prefix: str) -> Callable[[str], str]:
    return each_line(lambda number, line: prefix.format(number=number, second=number % 60, minute=number // 60 % 60) + line)


def within(key: str, **others: object) -> Callable[[str], str]:
    return each_line(lambda _, line: json.dumps({**others, key: line}))


def document(
    entry: Callable[[int, str], object], around: Callable[[list[object]], object] = lambda entries: entries
) -> Callable[[str], str]:
    """One JSON document of a log: `around` is put around its entries."""
    return lambda log: json.dumps(around([entry(number, line) for number, line in enumerate(log.split("\n"))]), indent=2)


def nanoseconds(number: int) -> str:
    return str(1795251124000000000 + number)


def newest_above(prefix: str, heading: str) -> Callable[[str], str]:
    """With a time before each line, the last line of the log on top."""
    return lambda log: heading + "\n".join(before(prefix)(log).splitlines()[::-1]) + "\n"


def newest_first(entries: list[object]) -> list[object]:
    return entries[::-1]


def cut_at(width: int) -> Callable[[str], str]:
    return each_line(lambda _, line: "\n".join(line[at : at + width] for at in range(0, max(len(line), 1), width)))


FORMS: dict[str, Callable[[str], str]] = {
    "kubectl --prefix": before("[pod/llama-6bf9d-abcde/vllm] "),
    "kubectl --timestamps": before("2026-11-21T09:{minute:02d}:{second:02d}.123456789Z "),
    "kubectl --prefix --timestamps": before("[pod/llama-6bf9d-abcde/vllm] 2026-11-21T09:{minute:02d}:{second:02d}.123456789Z "),
    "CRI": before("2026-11-21T09:{minute:02d}:{second:02d}.123456789Z stderr F "),
    "docker compose": before("vllm-1  | "),
    "docker compose --timestamps": before("vllm-1  | 2026-11-21T09:{minute:02d}:{second:02d}.123456789Z "),
    "Docker's JSON": each_line(lambda _, line: json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026-11-21T09:00:00Z"})),
    "stern": before("llama-6bf9d-abcde vllm "),
    "logcli": before('2026-11-21T09:{minute:02d}:{second:02d}Z {{app="vllm", pod="llama-0"}} '),
    "Loki's JSON": within("line", fields={"pod": "llama-0"}),
    "Google's JSON": within("textPayload", severity="ERROR"),
    "Datadog's JSON": each_line(lambda _, line: json.dumps({"content": {"message": line}})),
    "Fluent Bit's JSON": within("log", date=1795251124.5),
    "what Loki answers": document(
        lambda number, line: [nanoseconds(number), line],
        lambda entries: {
            "status": "success",
            "data": {"resultType": "streams", "result": [{"stream": {"pod": "llama-0"}, "values": newest_first(entries)}], "stats": {}},
        },
    ),
    "what Loki answers of two streams": document(
        lambda number, line: [nanoseconds(number), line],
        lambda entries: {"data": {"result": [{"stream": {}, "values": newest_first(entries[part::2])} for part in (0, 1)]}},
    ),
    "what Grafana exports": document(lambda number, line: {"line": line, "timestamp": nanoseconds(number), "fields": {}}, newest_first),
    "what Grafana downloads": newest_above(
        "17952511{minute:02d}{second:02d}000\t2026-11-21T09:{minute:02d}:{second:02d}.000Z\t", "Common labels: {}\nLine limit: 5000\n\n"
    ),
    "what Kibana downloads": lambda log: newest_above('"2026-11-21T09:{minute:02d}:{second:02d}.123Z",', '"@timestamp",message\n')(
        each_line(lambda _, line: '"' + line.replace('"', '""') + '"')(log)
    ),
    "what Elasticsearch answers": document(
        lambda number, line: {
            "_id": f"{number}",
            "_source": {"message": line, "@timestamp": 1795251124000 + number, "log": {"offset": 1}},
            "sort": [number],
        },
        lambda entries: {"took": 3, "_shards": {"total": 1}, "hits": {"total": {"value": 3}, "hits": newest_first(entries)}},
    ),
    "what CloudWatch answers": document(
        lambda number, line: {"timestamp": 1795251124000 + number, "message": line},
        lambda entries: {"events": entries, "searchedLogStreams": [{"logStreamName": "vllm", "searchedCompletely": True}]},
    ),
    "what Datadog answers": document(
        lambda number, line: {"id": "A", "type": "log", "attributes": {"message": line, "timestamp": f"2026-11-21T09:06:{number:06d}"}},
        lambda entries: {"data": newest_first(entries), "meta": {"status": "done"}},
    ),
    "a list of strings": document(lambda _, line: line),
    "what Splunk exports": document(lambda _, line: {"_raw": line}, lambda entries: {"preview": False, "results": entries}),
    "journald's JSON": within("MESSAGE", _PID="77", __REALTIME_TIMESTAMP="1795251124000000"),
    "journald": before("Nov 21 09:{minute:02d}:{second:02d} gpu01 vllm[1234]: "),
    "journald, ISO times": before("2026-11-21T09:{minute:02d}:{second:02d}+0100 gpu01 vllm[1234]: "),
    "rsyslog": before("2026-11-21T09:{minute:02d}:{second:02d}.123456+01:00 gpu01 vllm[1234]: "),
    "Ray": before("(EngineCore pid=4242, ip=10.1.2.3) "),
    "Ray, coloured": before("\x1b[36m(RayWorkerWrapper pid=4242, ip=10.1.2.3)\x1b[0m "),
    "torchrun": before("[rank0]: "),
    "Slurm": before("0: "),
    "mpirun": before("[1,0]<stderr>:"),
    "pm2": before("0|vllm  | "),
    "GitHub Actions": before("test\tRun tests\t2026-11-21T09:{minute:02d}:{second:02d}.1234567Z "),
    "GitLab CI": before("2026-11-21T09:{minute:02d}:{second:02d}.123456Z 01O "),
    "a web server": before("2026-11-21T09:{minute:02d}:{second:02d}.123456+00:00 app[web.1]: "),
    "a chat": before("[9:{second:02d} AM] "),
    "colours": each_line(lambda _, line: PROCESS.sub("\x1b[0;36m\\1\x1b[0;0m ", line)),
    "colours without their escape character": each_line(lambda _, line: PROCESS.sub("[0;36m\\1[0;0m ", line)),
    "Windows line ends": lambda log: log.replace("\r\n", "\n").replace("\n", "\r\n"),
    "Windows line ends twice": lambda log: log.replace("\r\n", "\n").replace("\n", "\r\r\n"),
    "a byte order mark": lambda log: f"\ufeff{log}",
    "tabs": each_line(lambda _, line: line.replace("    ", "\t")),
    "no-break spaces": lambda log: log.replace(" ", "\u00a0"),
    "no indentation": each_line(lambda _, line: line.strip()),
    "a margin": before("    "),
    "line numbers": before("{number:6d}\t"),
    "line numbers with a colon": before("{number}:"),
    "a quotation": before("> "),
    "a tight quotation": before(">"),
    "a difference": before("+"),
    "a comment": before("# "),
    "a list": before("- "),
    "HTML": html.escape,
    "HTML with breaks": lambda log: html.escape(log).replace("\n", "<br/>\n"),
    "typographic quotes": lambda log: re.sub(r"'([^'\n]*)'", "\u2018\\1\u2019", log),
    "a fence": lambda log: f"What is wrong here?\n\n```bash\n{log}```\n\nThanks!\n",
    "empty lines between": lambda log: log.replace("\n", "\n\n"),
    "a terminal of 80 columns": cut_at(80),
    "a terminal of 120 columns": cut_at(120),
    "blanks at the ends of lines": each_line(lambda _, line: f"{line}   "),
    "no process names": each_line(lambda _, line: PROCESS.sub("", line)),
    "three restarts": lambda log: log * 3,
}


IN_CONTAINERS = {
    *("Docker's JSON", "Fluent Bit's JSON"),
    *("docker compose", "pm2", "Ray", "Ray, coloured", "torchrun", "Slurm", "mpirun", "a chat", "a web server"),
    *("kubectl --timestamps", "stern", "colours", "no process names", "typographic quotes", "tabs", "three restarts"),
    *("Windows line ends", "blanks at the ends of lines", "empty lines between", "no indentation"),
}
"""Forms that the command of a container can give to its output: a logger, a launcher, a supervisor, a locale."""


def read(log: str) -> tuple[str | None, str]:
    return said(read_pasted(log))


def said(parser: StartupParser) -> tuple[str | None, str]:
    state = parser.final_state
    return state.crash.signature if state.crash else None, state.stage.value


@cache
def recorded() -> dict[str, tuple[str, tuple[str | None, str]]]:
    logs = {path.stem: path.read_text("utf-8", "replace") for path in RECORDINGS}
    return {name: (log, read(log)) for name, log in logs.items()}


@pytest.mark.parametrize("form", [pytest.param(form, id=name) for name, form in FORMS.items()])
def test_a_log_says_the_same_in_each_form(form: Callable[[str], str]) -> None:
    assert {name: read(form(log)) for name, (log, _) in recorded().items()} == {name: said for name, (_, said) in recorded().items()}


@pytest.mark.parametrize("form", sorted(IN_CONTAINERS))
def test_the_operator_reads_what_a_container_writes(form: str) -> None:
    told = {name: said(read_delivered(*FORMS[form](log).splitlines(keepends=True))) for name, (log, _) in recorded().items()}
    assert told == {name: expected for name, (_, expected) in recorded().items()}


RAISED = '  File "/opt/vllm/config.py", line 1016, in __init__\n    raise RuntimeError("Failed to infer device type")\n'


@pytest.mark.parametrize("form", ["kubectl --timestamps", "kubectl --prefix --timestamps", "docker compose --timestamps"])
def test_a_time_leaves_the_indentation_of_what_follows(form: str) -> None:
    assert read(FORMS[form](RAISED)) == read(RAISED) == ("NoGpuVisible", "ProcessStart")


def test_what_powershell_redirects_is_read() -> None:
    log, said = recorded()["cli-len-negative"]
    encoded = log.replace("\n", "\r\n").encode("utf-16")
    parser = read_pasted(*(encoded[at : at + 999] for at in range(0, len(encoded), 999)))
    crash = parser.final_state.crash
    assert (crash.signature if crash else None, parser.final_state.stage.value) == said
    assert crash is not None
    assert crash.line.startswith("max_model_len - Input should be greater than")


BARS = "".join(f"Capturing CUDA graphs (PIECEWISE): {done:3d}%|####      | {done:3d}/99 [00:05<00:05, 9.8it/s]\n" for done in range(10, 40))
REPEATED = "(EngineCore pid=7) WARNING 11-21 09:33:11 [some.py:1] A warning that comes again and again for each layer\n"


@pytest.mark.parametrize("text", [BARS, REPEATED * 9 + "short\n", REPEATED * 3 + BARS])
def test_lines_of_one_length_are_no_cut_lines(text: str) -> None:
    assert rejoined(text.split("\n")) == text.split("\n")


@pytest.mark.parametrize("size", [1, 100, 4096])
def test_a_prefix_is_learned_however_the_log_is_cut(size: int) -> None:
    log, said = recorded()["vllm-root-nowhere"]
    text = FORMS["stern"](log)
    parser = read_pasted(*(text[at : at + size] for at in range(0, len(text), size)))
    crash = parser.final_state.crash
    assert (crash.signature if crash else None, parser.final_state.stage.value) == said


def test_replicas_with_prefixes_of_their_own_are_read_together() -> None:
    log, said = recorded()["cli-len-negative"]
    lines = log.splitlines()
    both = [f"llama-{replica}  vllm  {line}" for line in lines for replica in (0, 1)]
    assert read("\n".join(both)) == said


PIP = """\
Collecting flash-attn
  error: subprocess-exited-with-error
  Getting requirements to build wheel did not run successfully.
      Traceback (most recent call last):
        File "/usr/lib/python3.12/site-packages/pip/_vendor/pyproject_hooks/_in_process/_in_process.py", line 353, in <module>
          main()
        File "<string>", line 22, in <module>
      RuntimeError: the fabric sulks
"""


def test_what_stands_in_a_margin_of_something_else_is_not_taken_for_the_log() -> None:
    assert read(PIP)[0] is None


SEVERAL_IN_ONE = "ERROR: Loading weights: (EngineCore pid=7) INFO 11-21 09:33:11 [core.py:1] Starting\n"


def test_two_lines_that_lost_what_parted_them_are_no_prefix() -> None:
    log, said = recorded()["w-extra"]
    assert read(SEVERAL_IN_ONE.replace("ERROR: ", "") + log) == said
