"""What one reconciliation reads before it decides."""

from pathlib import Path

import pytest

from support.manifests import CASES, read_case
from vllm_operator.api.resource import template_spec
from vllm_operator.caches.address import cache_address, weights_claim
from vllm_operator.caches.claims import claims_of_others
from vllm_operator.controller.observe import claims_to_read
from vllm_operator.rendering.manifests import render


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_the_claims_that_a_decision_needs_are_read_before_it_is_known(folder: Path) -> None:
    resource, plan = read_case(folder)
    manifests = render(resource, plan)
    [pods] = [template_spec(manifest) for manifest in manifests if manifest["kind"] == "Deployment"]
    address, weights = cache_address(pods), weights_claim(pods)
    needed = {address.claim if address else None, weights, *claims_of_others(pods, resource.metadata.name)} - {None}
    needed |= {manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == "PersistentVolumeClaim"}
    assert needed <= claims_to_read(resource, resource.spec.to_json(), None)
