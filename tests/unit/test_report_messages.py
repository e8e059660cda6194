"""Messages as data: every one can be said, and foreign text in them is tamed."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import meta

import vllm_operator
from support import observations as o
from support.crash_messages import POD, said, says_the_whole_remedy
from vllm_operator.api.conditions import Change
from vllm_operator.api.plan import PlannedWeights
from vllm_operator.api.resource import Metadata
from vllm_operator.api.status import AvoidedNode, CrashStatus, RollbackStatus
from vllm_operator.caches.context import HeldRollout
from vllm_operator.caches.measurement import Entrant, GateRecord, RaceRecord
from vllm_operator.catalog.entry import read_data
from vllm_operator.inventory.pools import Taint
from vllm_operator.logs.ranks import GroupDiagnosis, GroupState
from vllm_operator.logs.state import Crash, Stage
from vllm_operator.planning.outcome import FreeGPUs
from vllm_operator.status.knowledge import Messages, load_knowledge
from vllm_operator.status.observation import GroupFacts, Rollout
from vllm_operator.status.progressing import UntoleratedTaints
from vllm_operator.status.starts import StageEstimate
from vllm_operator.text import wording

DATA = read_data("messages.yaml")
SOURCES = "\n".join(path.read_text() for path in Path(vllm_operator.__file__).parent.rglob("*.py"))
NODE = AvoidedNode(name="gpu-1", boot_id="")
RACE = RaceRecord(
    key="1",
    load="prompts",
    optimize_for="Throughput",
    when={},
    started=o.NOW,
    entrants=(Entrant(), Entrant(component="Attention", backend="FLASHINFER", failure="It broke.")),
)
FACTS: dict[str, Any] = {
    "pod": o.observe(o.crashed_pod()).pod_facts[0],
    "crash": CrashStatus(signature="SomeCrash", cause="It broke.", pod="vllm-a-x1", node="gpu-1", exit_code=1),
    "rollback": RollbackStatus(failed="vllm-a-1", failed_number=2, number=1, time=o.stamp(0), back_seconds=40),
    "nodes": [NODE],
    "changes": ("engine.version 0.20.1 → 0.24.0",),
    "avoided": NODE,
    "since": o.NOW,
    "time": o.NOW,
    "until": o.NOW,
    "usual": StageEstimate(35, "with a small model", o.NOW),
    "change": Change("spec.replicas", "kubectl-edit", o.stamp(0)),
    "held": HeldRollout(needed=2, count=8, device="B200", room=1, most_free=3),
    "free": FreeGPUs(0, ("NVIDIA-B200",), is_open=True, is_better=True),
    "plan": o.plan(weights=PlannedWeights(size_bytes=2**37)),
    "metadata": Metadata(name="vllm-a", namespace="models"),
    "group": GroupFacts((), 2, 1, GroupDiagnosis(state=GroupState.WAITING, rank=1, crash=o.DEEP_GEMM_CRASH, gives_up_at=o.NOW)),
    "record": RACE,
    "measured": GateRecord(against="vllm-a-1", load="prompts", failure="It broke."),
    "rollout": Rollout(1, is_complete=False, paused="vllm-a", failure=None, template=None),
    "requests": {"cpu": "2", "memory": "6Gi"},
    "results": [(RACE.entrants[1], None)],
    "untolerated": UntoleratedTaints("gpu-1", 1, (Taint("a", "b", "NoSchedule"),)),
}
NUMBERS = (
    "completed",
    "total",
    "eta",
    "limit_seconds",
    "others",
    "attempts",
    "serving",
    "wanted",
    "updated",
    "cold",
    "warm",
    "failures",
    "needed",
    "taken",
)
FACTS |= dict.fromkeys(
    (
        *NUMBERS,
        "room",
        "size",
        "requested",
        "seconds",
        "times",
        "code",
        "removed",
        "freed_gibibytes",
        "others",
        "retained",
        "retained_gibibytes",
    ),
    3,
)

MESSAGES = load_knowledge().messages
GROUPS = ("pod", "part", "publishing", "cleaning", "done", "rollback", "unread", "unread_remedy")
"""Groups of messages with names that the code completes."""


def facts(name: str) -> dict[str, Any]:
    """A value for each fact that a message names."""
    environment = jinja2.Environment()
    environment.globals.clear()  # `namespace` is a variable of messages
    environment.filters.update(
        dict.fromkeys(("duration", "clock", "time", "minute", "count", "quote", "sentence", "scheduler", "pull", "refusal"), str)
    )
    known = {} if name == "cache.terminating" else FACTS  # there `others` and `removed` are names of Pods
    return {fact: known.get(fact, "some text") for fact in meta.find_undeclared_variables(environment.parse(DATA["messages"][name]))}


@pytest.mark.parametrize("name", DATA["messages"])
def test_every_message_can_be_said(name: str) -> None:
    said = MESSAGES.say(name, **facts(name))
    assert said
    assert "{{" not in said
    assert "None" not in said
    assert "  " not in said


@pytest.mark.parametrize("name", DATA["messages"])
def test_every_message_is_used(name: str) -> None:
    group, _, rest = name.partition(".")
    assert (
        f'"{name}"' in SOURCES
        or name in {*MESSAGES.misfits.values(), *MESSAGES.refusals.values()}
        or (group in GROUPS and f'f"{group}.{{' in SOURCES and rest)
    )


@pytest.mark.parametrize("name", [name for name in DATA["messages"] if facts(name)])
def test_a_message_that_is_given_too_little_fails(name: str) -> None:
    with pytest.raises((jinja2.UndefinedError, TypeError)):
        MESSAGES.say(name)


def test_each_stage_has_words() -> None:
    assert set(MESSAGES.stages) == set(Stage)


def test_words_for_a_phase_that_does_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="Napping"):
        Messages(**{**DATA, "phases": {"Napping": "napping"}})


def test_a_long_plan_is_cut_after_a_sentence() -> None:
    text = "Planned for 8 GPUs. Attention FLASH_ATTN. Note: a long one follows."
    assert wording.whole_sentences(text, 60, at_least=10) == "Planned for 8 GPUs. Attention FLASH_ATTN."
    assert wording.whole_sentences(text, 60, at_least=50) == "Planned for 8 GPUs. Attention FLASH_ATTN. Note: a long one…"
    assert wording.whole_sentences(text, 100, at_least=10) == text


ENDED = {
    "said": o.HANG.removeprefix("Engine hangs: "),
    "in_kubectl": f"{POD} -n models",
    "node": "ip-10-0-131-27.eu-west-1.compute.internal",
    "reason": "Error",
    "message": "The node was low on resource: ephemeral-storage. Threshold quantity: 12Gi, available: 8Gi. Container vllm was using 34Gi.",
    "limit": " (3 h)",
    "deadline": " (now 10800)",
    "stage": ", in stage WeightLoad",
}


def test_every_rule_about_an_end_says_what_to_do() -> None:
    rules = load_knowledge().terminations
    for rule in (*rules.containers, *rules.pods):
        assert rule.cause[0].isupper()
        assert rule.remedy[0].isupper()
        assert not rule.cause.endswith(".")
        cause, remedy = (wording.sentence(text.format_map(ENDED)) for text in (rule.cause, rule.remedy))
        crash = Crash(rule.id, cause, remedy, reference=None, line="")
        assert says_the_whole_remedy(crash), said(crash)
    assert not rules.pods[-1].reason, "the last rule must match any Pod"


QUOTES = {
    "control characters": ("a\x00b\x1b[31mred\x1b[0m\nnext\u202e", "a bred next"),
    "a token": ("denied for hf_abcdefghijklmnopqrstuvwxyz0123", "denied for ***"),
    "credentials in a URL": ("pull https://bob:hunter22@registry.example/x", "pull https://***@registry.example/x"),
    "a bearer token": ("Authorization: Bearer abcdef0123456789", "Authorization: Bearer ***"),
    "spaces": ("  a \t b  ", "a b"),
}


@pytest.mark.parametrize(("text", "want"), QUOTES.values(), ids=QUOTES)
def test_foreign_text_is_tamed(text: str, want: str) -> None:
    assert wording.clean(text) == want


@given(st.text(max_size=3000), st.integers(2, 600))
def test_clean_text_is_one_printable_line_within_its_limit(text: str, limit: int) -> None:
    said = wording.clean(text, limit)
    assert len(said) <= limit
    assert said.isprintable()


DURATIONS = {0: "0 s", 45: "45 s", 60: "1 min", 150: "2 min 30 s", 3600: "1 h", 3900: "1 h 5 min"}
ESTIMATES = {0: 0, 1: 5, 52: 50, 58: 60, 94: 90, 596: 600, 640: 660}


@pytest.mark.parametrize(("seconds", "want"), DURATIONS.items())
def test_durations_are_said_as_people_say_them(seconds: int, want: str) -> None:
    assert wording.duration(seconds) == want


@pytest.mark.parametrize(("seconds", "want"), ESTIMATES.items())
def test_estimates_are_rounded(seconds: int, want: int) -> None:
    assert wording.rounded(seconds) == want


def test_a_long_message_loses_words_of_its_cause_and_not_its_remedy() -> None:
    crash = CrashStatus(signature="SomeCrash", cause="x", pod="vllm-a-x1", exit_code=1)
    facts: dict[str, Any] = {
        "crash": crash,
        "times": 3,
        "others": 0,
        "place": "",
        "alike": 0,
        "node": "",
        "done": "",
        "suggested": "",
    }
    said = MESSAGES.fit("crash.one", shrink=("cause", "remedy"), cause="very long " * 200, remedy="Do this.", **facts)
    assert len(said) <= 500
    assert said.endswith("What to do: Do this.")


CLUSTER_SCOPED = ("node", "nodes", "storageclass")
WITHOUT_AN_OBJECT = ("apply", "cordon", "drain", "gpus", "catalog")
"""Verbs that get a file, which has the namespace, or a node, or are about the whole cluster."""
COMMAND = re.compile(r"kubectl (?:vllm )?(\w+) ?((?:\{\{.*?\}\}|\{\w+\}|[-\w/=.+]| (?!and |for |from |if |in |of |or |to ))*)")


@pytest.mark.parametrize("name", ["messages.yaml", "notes.yaml", "terminations.yaml", "signatures.yaml", "remedies.yaml", "failures.yaml"])
def test_a_command_about_a_namespaced_object_names_the_namespace(name: str) -> None:
    """The reader's context may have another one."""
    text = "\n".join(_texts(read_data(name)))
    for verb, words in COMMAND.findall(text):
        if verb not in WITHOUT_AN_OBJECT and words.partition(" ")[0] not in CLUSTER_SCOPED:
            assert re.search(r"-n \{+ ?(metadata\.)?namespace|in_kubectl", words), f"kubectl {verb} {words}"


def _texts(data: object) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list):
        for value in data.values() if isinstance(data, dict) else data:
            yield from _texts(value)
