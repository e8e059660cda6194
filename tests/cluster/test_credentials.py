"""Credentials that are revoked while the operator runs, and renewed: what it says meanwhile, and that it recovers."""

import asyncio
from pathlib import Path

import pytest

from support.account import ACCOUNT
from support.cluster import Cluster
from support.operator_process import OperatorProcess, has, llama

pytestmark = [pytest.mark.cluster, pytest.mark.extended]


async def until_readyz(operator: OperatorProcess, status: int, words: str) -> str:
    async with asyncio.timeout(60):
        while True:
            code, text = await operator.fetch("/readyz")
            if code == status and words in text:
                return text
            await asyncio.sleep(0.2)


async def test_revoked_credentials_are_named_and_renewed_ones_used(served: Cluster, operator: OperatorProcess, tmp_path: Path) -> None:
    assert (await operator.fetch("/readyz"))[0] == 200
    await served.delete("ServiceAccount", ACCOUNT)
    await served.create(llama(served.namespace))
    said = await until_readyz(operator, 503, "does not accept the credentials (HTTP 401)")
    # no permission is missing, and the CRD and the API server are there
    assert "may not" not in said
    assert "may not" not in operator.log
    assert (await operator.fetch("/healthz"))[0] == 200
    await served.act_as(ACCOUNT, tmp_path / "operator.kubeconfig")
    await until_readyz(operator, 200, "ok")
    await served.wait_for("VLLMDeployment", "llama", has("Ready", "True"))
    assert operator.process.returncode is None
