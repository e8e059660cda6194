"""A recorded log says the same whatever tool it was obtained with, and wherever it was pasted."""

import html
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from support.pasted import read_delivered, read_pasted
from vllm_operator.logs.parser import StartupParser

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
    crash = (state := read_pasted(log.replace("\n", "\r\n").encode("utf-16")).final_state).crash
    assert (crash.signature if crash else None, state.stage.value) == said
    assert crash is not None
    assert crash.line.startswith("max_model_len - Input should be greater than")


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
