"""A status that was worked out for one object is never written to another one of the same name."""

import pytest

from support.cluster import Cluster
from support.operator_process import llama
from vllm_operator.api import labels
from vllm_operator.kube.api_client import KubeClient
from vllm_operator.kube.client import VLLM_DEPLOYMENT, Conflict
from vllm_operator.kube.connection import load_configuration

pytestmark = pytest.mark.cluster


async def test_the_status_of_an_object_that_was_deleted_is_not_given_to_the_next_one_of_its_name(served: Cluster) -> None:
    first = await served.create(llama(served.namespace))
    await served.delete("VLLMDeployment", "llama")
    await served.create(llama(served.namespace))
    client = KubeClient(await load_configuration())
    try:
        metadata = {name: first["metadata"][name] for name in ("name", "namespace", "resourceVersion")}
        seen = {**first, "metadata": metadata, "status": {"observedGeneration": 1, "readyReplicas": 7}}
        with pytest.raises(Conflict):
            await client.apply_status(seen, manager=labels.STATUS_FIELD_MANAGER)
        assert (await client.get(VLLM_DEPLOYMENT, "llama", served.namespace))["status"] == {"observedGeneration": -1}
    finally:
        await client.close()
