"""Facts from the hub in a running operator: waited for a moment, kept in the plan, never asked for without need."""

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

import pytest

from support.fake_cluster import FakeCluster
from support.operators import KEY, Bench, llama
from vllm_operator.api.labels import REPLAN_ANNOTATION
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.controller.model_configs import FAILURES, READERS, TROUBLE_SECONDS, ModelConfigs
from vllm_operator.controller.observe import HUB_SECONDS
from vllm_operator.controller.report import Result
from vllm_operator.hub.client import HttpHub, HubAnswer
from vllm_operator.kube.client import DEPLOYMENT, SECRET, VLLM_DEPLOYMENT, Forbidden, Kind

MLA = {
    "model_type": "brand_new",
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "n_routed_experts": 64,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}


def unknown(name: str = "llama", **model: Any) -> dict[str, Any]:
    return llama(name, model={"uri": "hf://someone/unheard-of", **model})


class FakeHub(HttpHub):
    """A hub in memory: `answers` by repository. `asked` are all calls of `read`; `wait` delays them."""

    def __init__(self, **configs: Mapping[str, Any]) -> None:
        """`configs` by the name of the repository, with two underscores for `/`."""
        super().__init__("https://hub.invalid")
        self.answers = {name.replace("__", "/"): HubAnswer(config) for name, config in configs.items()}
        self.asked: list[tuple[str, str, str | None]] = []
        self.wait: asyncio.Event | None = None

    async def read(self, repository: str, revision: str, token: str | None) -> HubAnswer:
        """Return what `answers` has."""
        self.asked.append((repository, revision, token))
        if self.wait is not None:
            await self.wait.wait()
        return self.answers.get(repository, HubAnswer(trouble=f"The hub has no {repository}."))

    async def read_adapter(self, repository: str, revision: str, token: str | None) -> HubAnswer:
        """Return what `answers` has."""
        return await self.read(repository, revision, token)

    async def close(self) -> None:
        """Nothing to close."""


class Operator(Bench):
    """The operator's inside with a hub in memory."""

    def __init__(self) -> None:
        self.hub = FakeHub(someone__unheard_of=MLA)
        self.hub.answers["someone/unheard-of"] = HubAnswer(MLA)
        self.time = 0.0
        self.wait_seconds = 5.0
        super().__init__()

    def restart(self) -> None:
        super().restart()
        self.woken: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.configs = ModelConfigs(
            self.cluster, self.hub, wait_seconds=self.wait_seconds, changed=self.woken.put_nowait, clock=lambda: self.time
        )
        self.reconciler = self.make_reconciler(configs=self.configs)

    def hang(self) -> None:
        """The hub takes a question and does not answer."""
        self.hub.wait = asyncio.Event()
        self.wait_seconds = 0.05
        self.restart()

    async def plan_it(self, key: tuple[str, str] = KEY) -> Result:
        """Reconcile, wait for the hub if that is asked, and reconcile until nothing changes."""
        result = await self.reconciler.reconcile(key)
        if result == Result("waiting", HUB_SECONDS):
            async with asyncio.timeout(5):
                while await self.woken.get() != key:
                    pass  # an answer about another object may come late; it costs that object one more look
        return await self.settle(key)

    def facts(self) -> dict[str, tuple[str, str]]:
        plan = self.plan()
        return {fact.name: (fact.value, fact.source) for fact in plan.model_facts}


@pytest.fixture
def operator() -> Operator:
    return Operator()


async def test_a_new_plan_is_made_from_the_answer_of_the_hub(operator: Operator) -> None:
    operator.cluster.put(unknown())
    first = await operator.reconciler.reconcile(KEY)
    assert (first.name, operator.cluster.writes) == ("waiting", [])
    await operator.plan_it()
    assert operator.facts() == {
        "modelType": ("brand_new", "config.json"),
        "attention": ("MLA", "config.json"),
        "experts": ("64", "config.json"),
        "quantization": ("FP8Block", "config.json"),
        "routingGroups": ("0", "config.json"),
        "attentionHeads": ("128", "config.json"),
        "mlaDims": ("128,64,128", "config.json"),
    }
    plan = operator.plan()
    assert "MLADecode" in {choice.component for choice in plan.backends}


async def test_what_the_user_says_beats_the_hub(operator: Operator) -> None:
    operator.cluster.put(unknown(facts={"attention": "GQA", "experts": 8}))
    await operator.plan_it()
    assert operator.facts()["attention"] == ("GQA", "spec.model.facts")
    assert operator.facts()["quantization"] == ("FP8Block", "config.json")


async def test_a_plan_in_force_asks_nothing_and_stays_as_it_is_without_the_hub(operator: Operator) -> None:
    operator.cluster.put(unknown())
    await operator.plan_it()
    operator.hub.asked.clear()
    operator.hub.answers.clear()
    before = list(operator.cluster.writes)
    operator.restart()
    assert (await operator.settle()).name == "success"
    assert operator.hub.asked == []
    assert operator.cluster.writes == before
    assert operator.plan_verdict().reason == "Planned"


async def test_a_hub_that_does_not_answer_holds_a_plan_up_only_so_long(operator: Operator) -> None:
    operator.hang()
    operator.cluster.put(unknown())
    await operator.plan_it()
    assert operator.facts() == {}
    plan = operator.plan()
    said = "did not answer within 0.05 s. The kind of attention, the number of experts and the quantization are unknown"
    assert any(said in note for note in plan.notes)


async def test_facts_that_arrive_before_the_engine_has_started_lead_to_a_new_plan(operator: Operator) -> None:
    operator.hang()
    operator.cluster.put(unknown())
    await operator.plan_it()
    assert operator.plan().awaits_facts
    operator.hub.wait = None
    operator.time += TROUBLE_SECONDS + 1
    await operator.reconciler.reconcile(KEY)
    async with asyncio.timeout(5):
        assert await operator.woken.get() == KEY
    await operator.settle()
    assert operator.facts()["attention"] == ("MLA", "config.json")
    assert operator.plan().awaits_facts is None
    operator.hub.asked.clear()
    operator.time += 3600
    await operator.settle()
    assert operator.hub.asked == []


@pytest.mark.parametrize(
    "status", [{"readyReplicas": 1}, {"conditions": [{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]}]
)
async def test_facts_that_arrive_later_change_nothing_until_a_new_plan_is_requested(operator: Operator, status: dict[str, Any]) -> None:
    operator.hang()
    operator.cluster.put(unknown())
    await operator.plan_it()
    operator.cluster.edit(DEPLOYMENT, "default", "llama", {"status": status})
    if "readyReplicas" in status:
        operator.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"status": {**operator.resource()["status"], **status}})
    before = operator.deployment()
    operator.hub.wait = None
    operator.time += TROUBLE_SECONDS + 1
    await operator.reconciler.reconcile(KEY)  # once: without Pods, it writes that no replica is ready
    await asyncio.sleep(0.01)
    assert (operator.deployment()["spec"], operator.facts(), len(operator.hub.asked)) == (before["spec"], {}, 1)
    assert operator.plan_verdict().reason == "Planned"
    operator.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"metadata": {"annotations": {REPLAN_ANNOTATION: "1"}}})
    await operator.plan_it()
    assert operator.facts()["attention"] == ("MLA", "config.json")


async def test_a_new_plan_without_the_hub_uses_its_last_answer(operator: Operator) -> None:
    operator.cluster.put(unknown())
    await operator.plan_it()
    told = operator.facts()
    operator.hub.answers.clear()
    operator.restart()
    operator.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"spec": {"replicas": 2}})
    await operator.plan_it()
    assert operator.facts() == told


async def test_a_hub_that_is_away_is_left_alone_for_a_minute(operator: Operator) -> None:
    operator.hub.answers["someone/unheard-of"] = HubAnswer(trouble="It cannot be read.", unreachable=True)
    operator.cluster.put(unknown())
    await operator.plan_it()
    operator.cluster.put(llama("other", model={"uri": "hf://someone/else"}))
    assert (await operator.settle(("default", "other"))).name != "waiting"
    assert len(operator.hub.asked) == 1


@pytest.mark.parametrize("refused", [True, False])
async def test_a_model_that_the_hub_refuses_is_noted_also_where_its_family_is_known(operator: Operator, refused: bool) -> None:
    name = "meta-llama/Llama-3.1-8B-Instrukt"
    operator.hub.answers[name] = HubAnswer(trouble="There is no such model.", refused=refused)
    operator.cluster.put(llama(model={"uri": f"hf://{name}"}))
    await operator.plan_it()
    plan = operator.plan()
    assert ("There is no such model. The engine will probably get the same answer." in plan.notes) is refused


async def test_many_objects_with_one_model_ask_once(operator: Operator) -> None:
    keys = [("default", f"m{number}") for number in range(5)]
    operator.hub.wait = asyncio.Event()
    for _, name in keys:
        operator.cluster.put(unknown(name))
    for key in keys:
        assert (await operator.reconciler.reconcile(key)).name == "waiting"
    operator.hub.wait.set()
    async with asyncio.timeout(5):
        woken = {await operator.woken.get() for _ in keys}
    assert woken == set(keys)
    assert len(operator.hub.asked) == 1


def of_models(number: int) -> list[VLLMDeployment]:
    """Objects with a model each, all of which the hub knows."""
    return [VLLMDeployment.parse(unknown(f"model-{each}", uri=f"hf://someone/model-{each}")) for each in range(number)]


async def test_a_question_that_waits_for_others_has_its_full_time(operator: Operator) -> None:
    objects = of_models(READERS + 1)
    operator.wait_seconds = 1.0
    operator.restart()

    async def slow(repository: str, revision: str, token: str | None) -> HubAnswer:
        await asyncio.sleep(0.6)  # the hub's time, not a wait of the test
        return HubAnswer(MLA)

    operator.hub.read = slow  # type: ignore[method-assign]
    assert [operator.configs.ask(each) for each in objects] == [None] * len(objects)
    async with asyncio.timeout(5):
        for _ in objects:
            await operator.woken.get()
    answers = [operator.configs.ask(each) for each in objects]
    assert all(answer is not None and answer.config == MLA for answer in answers), answers


async def test_one_slow_model_does_not_take_the_hub_down_for_others(operator: Operator) -> None:
    operator.wait_seconds = 0.05
    operator.restart()
    read = operator.hub.read

    async def slow_for_one(repository: str, revision: str, token: str | None) -> HubAnswer:
        if repository == "team-a/slow":
            await asyncio.Event().wait()
        return await read(repository, revision, token)

    operator.hub.read = slow_for_one  # type: ignore[method-assign]
    for _ in range(FAILURES):  # the same model again does not count as another one
        operator.time += TROUBLE_SECONDS + 1
        operator.cluster.put(llama("slow", model={"uri": "hf://team-a/slow"}))
        await operator.plan_it(("default", "slow"))
    operator.cluster.put(unknown())
    await operator.plan_it()
    assert operator.facts()["attention"] == ("MLA", "config.json")


@pytest.mark.parametrize("answers_in_between", [False, True])
async def test_a_hub_that_fails_for_several_models_and_answers_for_none_is_left_alone(operator: Operator, answers_in_between: bool) -> None:
    async def ask(name: str) -> HubAnswer | None:
        question = VLLMDeployment.parse(unknown(name, uri=f"hf://someone/{name}"))
        if operator.configs.ask(question) is None:
            await operator.woken.get()
        return operator.configs.ask(question)

    for number in range(FAILURES):
        operator.hub.answers[f"someone/broken-{number}"] = HubAnswer(trouble="HTTP status 503.", failed=True)
    for number in range(FAILURES):
        await ask(f"broken-{number}")
        if answers_in_between:
            await ask("unheard-of")
    other = await ask("other")
    assert other is not None
    assert (other.trouble == "The model hub does not answer.") is not answers_in_between


async def test_questions_that_wait_for_a_hub_that_is_away_are_not_asked(operator: Operator) -> None:
    objects = of_models(READERS + 3)
    operator.hang()
    for each in objects:
        operator.configs.ask(each)
    async with asyncio.timeout(5):
        for _ in objects:
            await operator.woken.get()
    assert len(operator.hub.asked) == READERS
    last = operator.configs.ask(objects[-1])
    assert last is not None
    assert last.trouble == "The model hub does not answer."


async def test_a_model_on_a_claim_asks_nobody(operator: Operator) -> None:
    operator.cluster.put(llama(model={"uri": "pvc://models/llama"}))
    assert (await operator.settle()).name == "success"
    assert operator.hub.asked == []


def secret(value: str, namespace: str = "default") -> dict[str, Any]:
    data = {"token": base64.b64encode(value.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub", "namespace": namespace}, "data": data}


async def test_the_token_is_that_of_the_same_namespace(operator: Operator, caplog: pytest.LogCaptureFixture) -> None:
    operator.cluster.put(secret("hf_mine\n"))
    operator.cluster.put(secret("hf_theirs", "elsewhere"))
    operator.cluster.put(unknown(tokenSecretRef={"name": "hub"}))
    with caplog.at_level("DEBUG"):
        await operator.plan_it()
    assert operator.hub.asked == [("someone/unheard-of", "main", "hf_mine")]
    assert "hf_mine" not in caplog.text
    assert "hf_mine" not in str(operator.resource())


async def test_a_secret_that_cannot_be_read_in_time_says_nothing_of_the_hub(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    read = FakeCluster.get

    async def get(cluster: FakeCluster, kind: Kind, name: str, namespace: str | None = None) -> dict[str, Any]:
        if kind == SECRET:
            await asyncio.Event().wait()
        return dict(await read(cluster, kind, name, namespace))

    monkeypatch.setattr(FakeCluster, "get", get)
    operator.wait_seconds = 0.05
    operator.restart()
    operator.cluster.put(unknown(tokenSecretRef={"name": "hub"}))
    await operator.plan_it()
    operator.cluster.put(llama("other", model={"uri": "hf://someone/else"}))
    await operator.plan_it(("default", "other"))
    assert [repository for repository, _, _ in operator.hub.asked] == ["someone/else"]


async def test_what_a_token_opened_is_not_shown_to_others(operator: Operator) -> None:
    operator.cluster.put(secret("hf_mine"))
    operator.cluster.put(unknown(tokenSecretRef={"name": "hub"}))
    await operator.plan_it()
    operator.cluster.put(unknown("other"))
    await operator.plan_it(("default", "other"))
    assert [token for _, _, token in operator.hub.asked] == ["hf_mine", None]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "There is no Secret hub in default"),
        ("two words", "The Secret hub has no usable key token"),
        ("line\nbreak", "The Secret hub has no usable key token"),
        ("", "The Secret hub has no usable key token"),
    ],
)
async def test_a_secret_that_cannot_be_used_is_said(operator: Operator, content: str | None, said: str) -> None:
    if content is not None:
        operator.cluster.put(secret(content))
    operator.cluster.put(unknown(tokenSecretRef={"name": "hub"}))
    await operator.plan_it()
    plan = operator.plan()
    assert any(said in note for note in plan.notes)
    assert operator.hub.asked == []


async def test_a_permission_that_is_missing_is_said_and_stops_nothing(operator: Operator) -> None:
    operator.cluster.fail("get", SECRET, Forbidden("no", verb="get", resource="secrets"))
    operator.cluster.put(unknown(tokenSecretRef={"name": "hub"}))
    await operator.plan_it()
    plan = operator.plan()
    assert any("may not get the Secret hub in default" in note for note in plan.notes)


async def test_a_bug_in_the_reader_costs_no_plan_and_is_logged(operator: Operator, caplog: pytest.LogCaptureFixture) -> None:
    del operator.hub.answers  # it forgot to make them
    operator.cluster.put(unknown())
    await operator.plan_it()
    plan = operator.plan()
    assert any("could not be asked (AttributeError)" in note for note in plan.notes)
    assert "cannot read the config.json of someone/unheard-of" in caplog.text
    assert "Traceback" in caplog.text


async def test_closing_ends_what_is_asked(operator: Operator) -> None:
    operator.hub.wait = asyncio.Event()
    assert operator.configs.ask(VLLMDeployment.parse(unknown())) is None
    await operator.configs.close()
    assert operator.woken.empty()
