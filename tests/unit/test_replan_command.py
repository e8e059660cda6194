"""`kubectl vllm replan`: which objects, in waves, and when it stops."""

import asyncio
from typing import Any

import pytest

from support.fake_cluster import FakeCluster
from support.operators import llama
from vllm_operator.__main__ import kubectl_plugin
from vllm_operator.api.labels import REPLAN_ANNOTATION
from vllm_operator.cli.inputs import InputError
from vllm_operator.cli.requests import judge, read_selector, replan, would_differ
from vllm_operator.kube.client import VLLM_DEPLOYMENT, Unavailable

TOKEN = "5"


def condition(name: str, status: str, reason: str = "R", message: str = "m") -> dict[str, str]:
    return {"type": name, "status": status, "reason": reason, "message": message}


def resource(name: str = "llama", *conditions: dict[str, str], token: str = "", crash: str = "") -> dict[str, Any]:
    status: dict[str, Any] = {"conditions": list(conditions)}
    status |= {"revision": "r", "replanToken": token} if token else {}
    status |= {"lastCrash": {"time": crash}} if crash else {}
    return {**llama(name), "status": status}


SERVING = (condition("Ready", "True"),)
STARTING = (condition("Ready", "False"),)
REFUSED = condition("Ready", "False", "NoMatchingGPU")
BEFORE = resource("llama", *SERVING)


@pytest.mark.parametrize(
    ("now", "serves"),
    [
        (resource("llama", *SERVING), None),
        (resource("llama", *SERVING, token="4"), None),
        (resource("llama", *SERVING, token=TOKEN), True),
        (resource("llama", *STARTING, token=TOKEN), None),
        (resource("llama", REFUSED, token="4"), False),
        (resource("llama", *STARTING, condition("Crashed", "True"), token=TOKEN, crash="2026-01-01T00:00:00Z"), False),
        (resource("llama", *STARTING, condition("Stalled", "True"), token=TOKEN), False),
        (resource("llama", *SERVING, token=TOKEN, crash="2026-01-01T00:00:00Z"), True),
    ],
    ids=["not seen", "an older plan", "serves", "starts", "refused", "crashed", "stalled", "recovered"],
)
def test_an_object_is_judged_by_its_new_plan(now: dict[str, Any], serves: bool | None) -> None:
    assert judge(BEFORE, now, TOKEN) is serves


def test_a_problem_from_before_the_request_is_no_failure() -> None:
    crashed = (*STARTING, condition("Crashed", "True"), condition("Stalled", "True"))
    before = resource("llama", *crashed, crash="2026-01-01T00:00:00Z")
    assert judge(before, resource("llama", *crashed, token=TOKEN, crash="2026-01-01T00:00:00Z"), TOKEN) is None
    assert judge(before, resource("llama", *crashed, token=TOKEN, crash="2026-02-02T00:00:00Z"), TOKEN) is False
    refused = resource("llama", REFUSED)
    assert judge(refused, refused, TOKEN) is None


def test_only_objects_whose_plan_would_differ_are_chosen() -> None:
    assert would_differ(resource("llama", condition("PlanDrifted", "True", "PlanDrifted")))
    assert not would_differ(resource("llama", condition("PlanDrifted", "True", "RolledBack")))
    assert not would_differ(llama())


def test_a_selector_has_the_form_of_kubectl() -> None:
    assert read_selector("team=a,tier==b") == {"team": "a", "tier": "b"}
    assert read_selector("") == {}
    for written in ("team", "team!=a", "team in (a)"):
        with pytest.raises(InputError, match="key=value"):
            read_selector(written)


class Fleet:
    """Objects that serve with each new plan once they have been asked for it; `broken` ones never do."""

    def __init__(self, *names: str, broken: str = "") -> None:
        self.cluster = FakeCluster()
        self.broken = broken
        self.found = [self.cluster.put(resource(name, *SERVING)) for name in names]

    def requested(self) -> dict[str, str]:
        annotations = ((each["metadata"]["name"], each["metadata"].get("annotations", {})) for each in self.cluster.all(VLLM_DEPLOYMENT))
        return {name: found[REPLAN_ANNOTATION] for name, found in annotations if REPLAN_ANNOTATION in found}

    async def operate(self) -> None:
        while True:
            for name, token in self.requested().items():
                conditions = (*STARTING[:2], condition("Ready", "False"), condition("Stalled", "True")) if name == self.broken else SERVING
                status = resource(name, *conditions, token=token)["status"]
                self.cluster.set_status(VLLM_DEPLOYMENT, "default", name, status)
            await asyncio.sleep(0)

    async def replan(self, wave: int | None) -> int:
        operating = asyncio.create_task(self.operate())
        try:
            return await asyncio.wait_for(replan(self.cluster, self.found, wave=wave, timeout_seconds=20, look_seconds=0), 10)
        finally:
            operating.cancel()


async def test_without_waves_all_are_requested_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet("a", "b", "c")
    assert await fleet.replan(None) == 0
    assert set(fleet.requested()) == {"a", "b", "c"}
    assert "serves" not in capsys.readouterr().out


async def test_a_wave_is_requested_when_the_one_before_serves(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet("a", "b", "c")
    assert await fleet.replan(2) == 0
    lines = [line.removeprefix("default/") for line in capsys.readouterr().out.splitlines()]
    requested = "a new plan is requested"
    assert lines == [f"a: {requested}", f"b: {requested}", "a: serves", "b: serves", f"c: {requested}", "c: serves"]


async def test_the_first_that_does_not_serve_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet("a", "b", "c", "d", broken="b")
    assert await fleet.replan(1) == 1
    assert set(fleet.requested()) == {"a", "b"}
    said = capsys.readouterr().out
    assert "default/b does not serve with the new plan" in said
    assert "2 more are as they were" in said
    assert "kubectl vllm rollback b -n default" in said


async def test_a_wave_has_a_time_limit() -> None:
    fleet = Fleet("a", "b")
    assert await replan(fleet.cluster, fleet.found, wave=1, timeout_seconds=0.02, look_seconds=0) == 1
    assert set(fleet.requested()) == {"a"}


async def test_an_outage_only_delays_a_wave() -> None:
    fleet = Fleet("a")
    fleet.cluster.fail("get", VLLM_DEPLOYMENT, Unavailable("it restarts"), times=3)
    assert await fleet.replan(1) == 0


@pytest.mark.parametrize("arguments", [["a", "-l", "team=x"], ["a", "-A"], ["-A", "--wave", "0"]])
def test_contradictions_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert kubectl_plugin(["replan", *arguments]) == 2
    assert "give names, or choose with -l and -A" in capsys.readouterr().err
