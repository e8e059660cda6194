"""Nothing in the ConfigMaps with rules and signatures ends the operator, at its start or while it runs, or hides what else is in them."""

import asyncio

import pytest

from support.cluster import Cluster, Simulator
from support.operator_process import OperatorProcess, has, llama
from support.own_knowledge import ATTENTION_RULE, LICENCE_SIGNATURE, config_map

pytestmark = pytest.mark.cluster

LAUGHS = "- &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(f"- &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
HOSTILE = {
    "deep.yaml": "[" * 200_000,
    "laughs.yaml": LAUGHS,
    "numbers.yaml": "- a: " + "1:" * 100_000 + "1\n",
    "bytes.yaml": '- {id: "\\0"}\n- !!binary aGk=\n- {1: .nan, [a]: 2024-01-01}\n',
}
SIGNATURES = (
    {**LICENCE_SIGNATURE, "id": "RaisesAtOnce", "cause": "{{ '{0}'.format() }}"},
    {**LICENCE_SIGNATURE, "id": "Loops", "cause": "{% for i in range(10**9) %}x{% endfor %}"},
    {**LICENCE_SIGNATURE, "id": "Grows", "remedy": "{{ 'a' * 10**9 }}"},
)
RULES = ({**ATTENTION_RULE, "id": "slow", "when": {"environment": {"A": "(?=(a+)+$)"}}},)


async def told(operator: OperatorProcess, line: str) -> None:
    """Wait for a line of the metrics."""
    async with asyncio.timeout(60):
        while line not in (await operator.fetch("/metrics"))[1]:  # noqa: ASYNC110 - a page has no event
            await asyncio.sleep(0.2)


async def reported(served: Cluster, name: str, words: str) -> None:
    """Wait for an Event about a ConfigMap."""
    async with asyncio.timeout(60):
        while not any(words in event["message"] for event in await served.events(name=name)):  # noqa: ASYNC110 - it is in the API server
            await asyncio.sleep(0.2)


async def harmless(served: Cluster, operator: OperatorProcess) -> None:
    """What is good in them is in use, what is not is told, and objects are served."""
    await told(operator, 'vllm_operator_user_signatures{state="used"} 1.0')
    await told(operator, 'vllm_operator_user_rules{state="used"} 1.0')
    for name, reason, words in (
        ("signatures", "SignatureIgnored", "signature RaisesAtOnce: cause uses a call"),
        ("rules", "RuleIgnored", "rule slow: when.environment"),
    ):
        # The entries are reported one after another, after the good ones are in use.
        await reported(served, name, words)
        assert {event["reason"] for event in await served.events(name=name)} == {reason}
    assert (await operator.fetch("/readyz"))[0] == 200
    await served.create(llama(served.namespace))
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"), within=60)
    assert operator.process.returncode is None
    assert "Traceback" not in operator.log, operator.log


def hostile(namespace: str) -> tuple[dict[str, object], dict[str, object]]:
    return (
        config_map("signatures", namespace, *SIGNATURES, LICENCE_SIGNATURE, **HOSTILE),
        config_map("rules", namespace, *RULES, ATTENTION_RULE, **HOSTILE),
    )


@pytest.mark.parametrize("when", ["before it starts", "while it runs"])
async def test_hostile_rules_and_signatures_harm_nothing(served: Cluster, sim: Simulator, when: str) -> None:
    await sim.script(path="ok", pull="0")
    maps = hostile(served.namespace)
    if when == "before it starts":
        for each in maps:
            await served.create(each)
    settings = {"rules_config_map": f"{served.namespace}/rules", "signatures_config_map": f"{served.namespace}/signatures"}
    async with OperatorProcess(served.kubeconfig, served.namespace, **settings) as operator:
        await operator.until_ready(within=60)
        if when == "while it runs":
            for each in maps:
                await served.create(each)
        await harmless(served, operator)
