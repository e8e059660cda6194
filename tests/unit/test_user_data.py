"""Rules from a ConfigMap in a running operator: noticed, said where broken, never fatal."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.operators import Bench, llama
from support.own_knowledge import ATTENTION_RULE, config_map
from support.plans import known
from vllm_operator.api.labels import REPLAN_ANNOTATION
from vllm_operator.controller import user_data
from vllm_operator.controller.user_data import EVENTS_LIMIT, KnownCatalog, UserData, qualified_name
from vllm_operator.kube.client import CONFIG_MAP, EVENT, VLLM_DEPLOYMENT, Forbidden, Unavailable

PLACE = ("rules", "operators")


class Operator(Bench):
    """The operator's inside with rules from `operators/rules`."""

    def restart(self) -> None:
        self.catalog = KnownCatalog.of(known())
        super().restart()
        self.reconciler = self.make_reconciler(self.catalog)
        self.changed = asyncio.Event()
        self.source = UserData(
            self.cluster,
            self.catalog.use,
            what="rules",
            config_map="operators/rules",
            metrics=self.metrics,
            changed=self._changed,
            poll_seconds=0,
        )

    async def _changed(self) -> None:
        self.changed.set()

    def attention(self) -> tuple[str, str]:
        plan = self.plan()
        return next((choice.backend, choice.chosen_by) for choice in plan.backends if choice.component == "Attention")


async def eventually(check: Callable[[], object]) -> None:
    """Let the operator work until it holds."""
    async with asyncio.timeout(10):
        while not check():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)


@asynccontextmanager
async def running(operator: Operator) -> AsyncIterator[None]:
    """Keep the rules up to date meanwhile."""
    task = asyncio.create_task(operator.source.run())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()


@pytest.fixture
def operator() -> Operator:
    return Operator()


async def test_a_rule_is_followed_by_new_plans_and_only_reported_to_old_ones(operator: Operator) -> None:
    operator.cluster.put(llama())
    await operator.settle()
    before = operator.deployment()
    operator.cluster.put(config_map(*PLACE, ATTENTION_RULE))
    assert await operator.source.load()
    await operator.settle()
    assert operator.deployment() == before
    assert operator.attention() == ("FLASH_ATTN", "Engine")
    assert operator.plan_verdict().reason == "PlanDrifted"
    assert "The backend of Attention would change from FLASH_ATTN to FLASHINFER." in operator.plan_verdict().message
    operator.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"metadata": {"annotations": {REPLAN_ANNOTATION: "now"}}})
    await operator.settle()
    assert operator.attention() == ("FLASHINFER", "Rule")
    assert operator.plan_verdict().reason == "Planned"
    plan = operator.plan()
    assert plan.catalog_version == operator.catalog.current.version != known().version


async def test_a_broken_rule_is_a_log_line_an_event_and_a_metric(operator: Operator, caplog: pytest.LogCaptureFixture) -> None:
    operator.cluster.put(config_map(*PLACE, ATTENTION_RULE, {"id": "half"}, other="a: b: c"))
    with caplog.at_level(logging.WARNING):
        assert await operator.source.load()
    assert "rule half: component is missing" in caplog.text
    events = operator.cluster.all(EVENT)
    assert {(event["involvedObject"]["kind"], event["involvedObject"]["name"], event["reason"]) for event in events} == {
        ("ConfigMap", "rules", "RuleIgnored")
    }
    assert len(events) == 2
    page = operator.metrics.render().decode()
    assert 'vllm_operator_user_rules{state="used"} 1.0' in page
    assert 'vllm_operator_user_rules{state="ignored"} 2.0' in page
    assert operator.catalog.current.version != known().version


async def test_whatever_goes_wrong_with_it_what_was_known_stays_in_use(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    operator.cluster.put(config_map(*PLACE, ATTENTION_RULE))
    await operator.source.load()
    version = operator.catalog.current.version
    monkeypatch.setattr(user_data, "with_user_rules", fails)
    async with running(operator):
        operator.cluster.put(config_map(*PLACE, {"id": "worse"}))
        await eventually(lambda: operator.cluster.all(EVENT))
        assert operator.catalog.current.version == version
        [event] = operator.cluster.all(EVENT)
        assert event["message"].startswith("The rules in it cannot be used (IndexError); the previous ones stay in use.")
        page = operator.metrics.render().decode()
        assert 'vllm_operator_user_rules{state="used"} 1.0' in page
        assert 'vllm_operator_user_rules{state="ignored"} 1.0' in page
        monkeypatch.undo()
        operator.cluster.put(config_map(*PLACE, {**ATTENTION_RULE, "id": "again"}))
        await eventually(lambda: operator.catalog.current.custom_rules.keys() == {"again"})


def fails(*_: object) -> Any:
    raise IndexError("unforeseen")


async def test_what_follows_from_a_change_is_tried_until_it_succeeds(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    async def changed() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise RuntimeError("unforeseen")

    monkeypatch.setattr(operator.source, "changed", changed)
    operator.cluster.put(config_map(*PLACE, ATTENTION_RULE))
    async with running(operator):
        await eventually(lambda: tries == 3)


async def test_many_broken_rules_are_a_few_events_and_each_a_line_of_the_log(operator: Operator, caplog: pytest.LogCaptureFixture) -> None:
    operator.cluster.put(config_map(*PLACE, *({"id": f"rule-{number}"} for number in range(100))))
    await operator.source.load()
    messages = [event["message"] for event in operator.cluster.all(EVENT)]
    assert len(messages) == EVENTS_LIMIT + 1
    assert "80 more rules or texts are ignored; the operator's log names them." in messages
    assert sum("component is missing" in record.message for record in caplog.records) == 100


async def test_events_that_could_not_be_written_are_written_later(operator: Operator) -> None:
    operator.cluster.put(config_map(*PLACE, ATTENTION_RULE, {"id": "half"}))
    operator.cluster.fail("create", EVENT, Unavailable("away"))
    assert await operator.source.load()
    assert operator.cluster.all(EVENT) == []
    assert not await operator.source.load()
    assert [event["reason"] for event in operator.cluster.all(EVENT)] == ["RuleIgnored"]


async def test_the_same_rules_are_read_once(operator: Operator) -> None:
    operator.cluster.put(config_map(*PLACE, ATTENTION_RULE, {"id": "half"}))
    assert await operator.source.load()
    before = list(operator.cluster.writes)
    assert not await operator.source.load()
    assert operator.cluster.writes == before


async def test_rules_that_are_taken_away_are_gone(operator: Operator) -> None:
    operator.cluster.put(config_map(*PLACE, ATTENTION_RULE))
    await operator.source.load()
    await operator.cluster.delete(CONFIG_MAP, "rules", "operators")
    assert await operator.source.load()
    assert operator.catalog.current == known()


async def test_an_api_server_that_does_not_answer_leaves_the_rules_as_they_are(operator: Operator) -> None:
    operator.cluster.put(config_map(*PLACE, ATTENTION_RULE))
    await operator.source.load()
    version = operator.catalog.current.version
    operator.cluster.fail("get", CONFIG_MAP, Unavailable("away"))
    with pytest.raises(Unavailable):
        await operator.source.load()
    assert operator.catalog.current.version == version


async def test_a_missing_permission_is_said_once_and_waits_for_nobody(operator: Operator, caplog: pytest.LogCaptureFixture) -> None:
    operator.cluster.fail("get", CONFIG_MAP, Forbidden("no", verb="get", resource="configmaps"), times=2)
    with caplog.at_level(logging.WARNING):
        assert not await operator.source.load()
        assert not await operator.source.load()
    assert caplog.text.count("may not get the ConfigMap operators/rules") == 1


async def noticed(operator: Operator) -> None:
    """Wait until the running operator uses other rules than before."""
    async with asyncio.timeout(5):
        await operator.changed.wait()
    operator.changed.clear()


async def test_each_change_is_noticed_while_running(operator: Operator) -> None:
    async with running(operator):
        operator.cluster.put(config_map(*PLACE, ATTENTION_RULE))
        await noticed(operator)
        assert operator.catalog.current.version != known().version
        operator.cluster.remove(CONFIG_MAP, "operators", "rules")
        await noticed(operator)
        assert operator.catalog.current == known()


async def test_what_was_read_before_the_start_is_no_change(operator: Operator) -> None:
    operator.cluster.put(config_map(*PLACE, ATTENTION_RULE))
    await operator.source.load()
    async with running(operator):
        await eventually(lambda: operator.cluster.calls["get"] > 3)
    assert not operator.changed.is_set()


async def test_a_change_that_could_not_be_read_is_read_again(operator: Operator) -> None:
    async with running(operator):
        operator.cluster.fail("get", CONFIG_MAP, Unavailable("away"), times=2)
        operator.cluster.put(config_map(*PLACE, ATTENTION_RULE))
        await noticed(operator)
    assert operator.catalog.current.version != known().version


async def test_an_api_server_that_does_not_know_the_roles_yet_is_asked_again_in_silence(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    operator.cluster.fail("get", CONFIG_MAP, Forbidden("no", verb="get", resource="configmaps"), times=1)
    operator.cluster.put(config_map(*PLACE, ATTENTION_RULE))
    with caplog.at_level(logging.WARNING):
        async with running(operator):
            await noticed(operator)
    assert "may not" not in caplog.text


def test_a_name_alone_is_in_the_namespace_of_the_operator(tmp_path: Path) -> None:
    file = tmp_path / "namespace"
    file.write_text("vllm-system\n", "utf-8")
    assert [qualified_name(name, file) for name in ("rules", "other/rules", "")] == ["vllm-system/rules", "other/rules", ""]
    with pytest.raises(ValueError, match="NAMESPACE/NAME"):
        qualified_name("rules", tmp_path / "none")
