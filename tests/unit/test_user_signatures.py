"""Crash signatures of the cluster's owner: used beside ours, harmless where they are broken, slow or malicious."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import observations as o
from support.operators import Bench
from support.own_knowledge import LICENCE_SIGNATURE, config_map, written
from vllm_operator.__main__ import main
from vllm_operator.catalog.startup import Signature, StartupKnowledge, load_startup
from vllm_operator.catalog.user_entries import UserEntries, with_user_signatures
from vllm_operator.controller.metrics import Metrics
from vllm_operator.controller.user_data import KnownStarts, UserData
from vllm_operator.kube.client import EVENT
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Stage, StartupState
from vllm_operator.status.report import report

SHIPPED = load_startup()
LICENCE = {**LICENCE_SIGNATURE, "environment": [{"name": "OUR_LICENCE_HOST", "value": "<host>"}]}
LINE = "RuntimeError: licence server lic-7.example.com did not answer\n"
FAILED = "(EngineCore pid=7) ERROR 11-21 12:00:09 [core.py:1] EngineCore failed to start.\n"


def added(*documents: Any, **texts: str) -> tuple[StartupKnowledge, UserEntries[Signature]]:
    return with_user_signatures(SHIPPED, {"signatures.yaml": written(list(documents)), **texts})


def crash(knowledge: StartupKnowledge, text: str) -> str | None:
    parser = StartupParser(knowledge)
    parser.feed(FAILED + text)
    parser.end()
    found = parser.final_state.crash
    return found.signature if found else None


def test_a_signature_of_the_user_names_a_crash_that_was_unknown() -> None:
    knowledge, read = added(LICENCE)

    assert (read.added, read.problems) == (("LicenceServerAway",), ())
    assert (crash(SHIPPED, LINE), crash(knowledge, LINE)) == ("Unknown", "LicenceServerAway")
    assert crash(knowledge, "ValueError: No available memory for the cache blocks.\n") == "NoKvCacheMemory"


def test_a_text_of_a_user_may_be_a_list_of_pieces() -> None:
    cause = ["The licence server", {"if": "host == 'lic-7.example.com'", "then": " (the old one)"}, {"else": " {{ host }}"}, " is away."]
    knowledge, read = added({**LICENCE, "cause": cause})
    assert read.problems == ()
    parser = StartupParser(knowledge)
    parser.feed(FAILED + LINE)
    parser.end()
    assert parser.final_state.crash is not None
    assert parser.final_state.crash.cause == "The licence server (the old one) is away."


def test_a_file_may_look_like_the_one_that_ships() -> None:
    _, read = with_user_signatures(SHIPPED, {"a": yaml.safe_dump({"signatures": [LICENCE]})})
    assert read.added == ("LicenceServerAway",)


def test_broken_signatures_are_named_and_left_out_and_the_rest_is_used() -> None:
    _, read = added(LICENCE, LICENCE, "words", {"id": "Half"}, {**LICENCE, "id": "NoKvCacheMemory"}, more="a: b: c", none="words")

    assert read.added == ("LicenceServerAway",)
    assert [problem.split(": ")[0] for problem in read.problems] == [
        "more",
        "none",
        "signature LicenceServerAway",
        "'words' is not a signature. It is ignored.",
        "signature Half",
        "signature NoKvCacheMemory",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "licence-server"}, "id: 'licence-server' is not a name like DriverTooOld"),
        ({"severity": "fatale"}, "severity: 'fatale' does not exist (did you mean fatal?)"),
        ({"priority": 5000}, "priority must be at most 100"),
        ({"priority": 0}, "priority must be at least 1"),
        ({"patterns": []}, "patterns must have at least 1 entry"),
        ({"patterns": [{"anchor": "licence", "regex": "x"}] * 17}, "patterns must have at most 16 entries"),
        ({"patterns": [{"anchor": "licence"}]}, "patterns[0].regex is missing"),
        ({"patterns": [{"anchor": "licence", "regex": "x" * 501}]}, "patterns[0].regex must be at most 500 characters long"),
        ({"patterns": [{"anchor": "!!", "regex": "x"}]}, "must contain a word of two letters"),
        ({"patterns": [{"anchor": "licence", "regex": "("}]}, "is not a regular expression of RE2: missing )"),
        ({"patterns": [{"anchor": "licence", "regex": "(?=a)"}]}, "is not a regular expression of RE2: invalid perl operator"),
        (
            {"patterns": [{"anchor": "licence", "regex": "x", "wight": 3}]},
            "patterns[0]: 'wight' is not a field; use one of anchor",
        ),
        ({"patterns": [{"anchor": "licence", "regex": "x", "evidence": "error"}]}, "evidence: 'error' does not exist; use one of weak"),
        ({"cause": "{{ host"}, "cause is not a template: unexpected end of template"),
        ({"cause": "{{ 1 < (host or 'a') }}"}, "cause cannot be rendered without captures"),
        ({"cause": "{{ '{0}'.format() }}"}, "cause uses a call; a template has values and conditions"),
        ({"id": "Unknown"}, "Unknown is the name of a crash without a signature; choose another id"),
        ({"cause": "{{ hots }}."}, "cause uses hots, which no pattern captures"),
        ({"remedy": ""}, "remedy must not be empty"),
        ({"remedy": "x" * 601}, "remedy must be at most 600 characters long"),
        ({"remedy": [{"if": "host", "then": "x" * 590}]}, "remedy must be at most 600 characters long"),
        ({"remedy": [{"when": "host", "then": "x"}]}, "remedy: \"{'then': 'x', 'when': 'host'}\" is neither text nor a case: write if"),
        ({"remedy": [{"if": "hots", "then": "x"}]}, "remedy uses hots, which no pattern captures"),
        (
            {"remedy": [{"if": "1 %}{% set a = 1 %}{% if 1", "then": "x{% endif %}"}]},
            "remedy uses set; a template has values and conditions",
        ),
        ({"facts": {"near": "host"}}, "facts must have at most 0 entries"),
        ({"facts": ["host"]}, "facts must be a mapping, not a list"),
        ({"arguments": [{"name": "--no-such-flag"}]}, "vLLM 0.11.0 does not have --no-such-flag; limit the change with versions"),
        ({"environment": [{"name": "VLLM_USE_TRTLLM_ATTENTION", "versions": "=>1"}]}, "versions: '=>1' is not a range of versions"),
        ({"environment": [{"name": "A", "versions": 0.20}]}, "environment[0].versions: 0.2 is not text; put it in quotes"),
        ({"environment": [{"name": "A", "versions": ">=0," * 60}]}, "a range of versions must be at most 200 characters long"),
        ({"environment": [{"name": "A B"}]}, "'A B' is not the name of a variable"),
        ({"environment": {"A": "1"}}, "environment must be a list, not a mapping"),
        ({"autoSafe": True}, "the operator acts by itself only on signatures that ship with it"),
        ({"remedyAction": "clean-cache"}, "the operator acts by itself only on signatures that ship with it"),
        ({"remedy_action": "clean-cache"}, "'remedy_action' is not a field (did you mean remedyAction?)"),
        ({"speed": "high"}, "'speed' is not a field; use one of architectures, arguments"),
        ({"references": "https://x"}, "references must be a list, not 'https://x'"),
    ],
)
def test_what_is_wrong_with_a_signature_is_said_in_one_sentence(change: dict[str, Any], said: str) -> None:
    knowledge, read = added({**LICENCE, **change})

    assert knowledge is SHIPPED
    assert said in read.problems[0]
    assert read.problems[0].endswith("The signature is ignored.")


def test_a_pattern_of_a_user_takes_linear_time_whatever_it_is() -> None:
    knowledge, read = added({**LICENCE, "patterns": [{"anchor": "licence", "regex": "licence (a+)+$"}], "cause": "x.", "remedy": "y."})
    assert read.problems == ()
    begun = time.perf_counter()
    assert crash(knowledge, f"RuntimeError: licence {'a' * 4000}!\n") == "Unknown"
    assert time.perf_counter() - begun < 1.0


def test_more_patterns_than_memory_is_given_for_are_not_read() -> None:
    patterns = [{"anchor": "licence", "regex": f"licence x{{1,{number + 1}}}"} for number in range(16)]
    _, read = added(*({**LICENCE, "id": f"Licence{number}", "patterns": patterns, "cause": "x."} for number in range(40)))
    assert len(read.added) == 32
    assert all("the signatures up to this one have more than 512 regular expressions" in problem for problem in read.problems)


def test_a_template_that_fails_with_what_the_log_says_is_shown_without_it() -> None:
    pattern = {"anchor": "licence", "regex": r"licence (?P<count>\S+)"}
    knowledge, read = added({**LICENCE, "patterns": [pattern], "cause": "Missing{% if 12 < (count or 13) %} {{ count }}{% endif %}."})
    assert read.problems == ()
    assert crash(knowledge, "RuntimeError: licence none\n") == "LicenceServerAway"


PIECES = ["{{", "}}", "{%", "%}", "host", "'{0}'", ".format()", "|", "int", "*", "10**9", "for x in", " ", "("]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=9),
    field=st.sampled_from(["cause", "remedy", "value"]),
)
def test_whatever_a_text_is_the_other_signatures_are_used(pieces: list[str], field: str) -> None:
    text = "".join(pieces)
    broken = (
        {**LICENCE, "id": "Mine", "environment": [{"name": "A", "value": text}]}
        if field == "value"
        else {**LICENCE, "id": "Mine", field: text}
    )
    knowledge, read = added(broken, LICENCE)
    assert "LicenceServerAway" in read.added
    assert crash(knowledge, LINE) in ("LicenceServerAway", "Mine")


WORDS = ["fatal", "LicenceServerAway", "--max-model-len", "", "(", "{{", "{% for", "x" * 2000, "\x00", "licence"]
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3), max_leaves=6)
FIELDS = [*LICENCE, "stages", "versions", "architectures", "arguments", "followsOthers", "retryable", "autoSafe", "remedyAction"]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(change=st.dictionaries(st.sampled_from(FIELDS), values, max_size=4))
def test_whatever_is_written_there_logs_are_read(change: dict[str, Any]) -> None:
    knowledge, read = added({**LICENCE, **change})

    assert len(read.added) + len(read.problems) == 1
    crash(knowledge, LINE)


async def test_a_running_operator_uses_what_the_config_map_says() -> None:
    crashes = KnownStarts.of(load_startup())
    bench, metrics, changed = Bench(), Metrics(), asyncio.Event()
    data = UserData(
        bench.cluster,
        crashes.use,
        what="signatures",
        config_map="operators/crashes",
        metrics=metrics,
        changed=_set(changed),
        poll_seconds=0,
    )
    assert await data.load() is False
    bench.cluster.put(config_map("crashes", "operators", LICENCE, {"id": "Half"}))
    reading = asyncio.create_task(data.run())
    async with asyncio.timeout(5):
        await changed.wait()
    reading.cancel()

    parser = crashes.make_parser()
    parser.feed((FAILED + LINE).encode())
    parser.end()
    reported = report(o.observe(o.crashed_pod(), states={("vllm-a-x1", 0): parser.final_state}, knowledge=crashes.reporting))
    assert reported.status.last_crash is not None
    assert reported.status.last_crash.signature == "LicenceServerAway"
    assert "lic-7.example.com did not answer" in str(reported.status.last_crash.cause)
    assert [event.reason for event in reported.events if event.type == "Warning"] == ["LicenceServerAway"]
    assert reported.status.remediation is None  # a person fills in which host
    assert [event["reason"] for event in bench.cluster.all(EVENT)] == ["SignatureIgnored"]
    page = metrics.render().decode()
    assert 'vllm_operator_user_signatures{state="used"} 1.0' in page
    assert 'vllm_operator_user_signatures{state="ignored"} 1.0' in page


def test_what_it_suggests_is_a_command_and_never_done_without_asking() -> None:
    named = {**LICENCE, "environment": [{"name": "OUR_LICENCE_HOST", "value": "{{ host }}"}]}
    crashes = KnownStarts.of(load_startup())
    crashes.use({"a": yaml.safe_dump([named])})
    parser = crashes.make_parser()
    parser.feed(FAILED + LINE)
    parser.end()
    states, resource = {("vllm-a-x1", 0): parser.final_state}, o.resource(remediation={"mode": "Auto"})
    reported = report(o.observe(o.crashed_pod(), states=states, resource=resource, knowledge=crashes.reporting))
    assert reported.status.remediation is None
    assert reported.status.last_crash is not None
    assert '"name":"OUR_LICENCE_HOST","value":"lic-7.example.com"' in (reported.status.last_crash.command or "")


def _set(event: asyncio.Event) -> Any:
    async def changed() -> None:
        event.set()

    return changed


def test_the_commands_know_them_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, log = tmp_path / "ours.yaml", tmp_path / "engine.log"
    file.write_text(yaml.safe_dump([LICENCE]), "utf-8")
    log.write_text(FAILED + LINE, "utf-8")
    assert main(["diagnose", str(log), "--signatures", str(file), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["crash"]["signature"] == "LicenceServerAway"
    assert main(["catalog", "signatures", "licenceserveraway", "--signatures", str(file)]) == 0
    assert "OUR_LICENCE_HOST=<host>" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["diagnose", "engine.log"], ["catalog", "signatures"]])
def test_a_file_that_cannot_be_used_is_said_to_a_person_at_once(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ours.yaml"
    assert main([*command, "--signatures", str(file)]) == 2
    assert "ours.yaml cannot be read: No such file or directory" in capsys.readouterr().err
    file.write_text(yaml.safe_dump([{"id": "Half"}]), "utf-8")
    assert main([*command, "--signatures", str(file)]) == 2
    assert capsys.readouterr().err.endswith("signature Half: severity is missing.\n")


def test_a_log_of_a_start_reads_the_same_with_them() -> None:
    knowledge, _ = added(LICENCE)
    states: list[StartupState] = []
    for known in (SHIPPED, knowledge):
        parser = StartupParser(known)
        parser.feed(Path("tests/corpus/h200/llama-bf16-warm.log").read_bytes())
        parser.end()
        states.append(parser.final_state)
    assert states[0] == states[1]
    assert states[0].stage is Stage.READY
