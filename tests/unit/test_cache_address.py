"""Where a Pod keeps its caches, read from Pod specs of any shape."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_operator.api.resource import template_spec
from vllm_operator.caches.address import (
    CacheAddress,
    cache_address,
    claims_of,
    folders_of,
    is_read_only,
    mounts_whole,
    reported_cache_claim,
)
from vllm_operator.catalog.caches import CACHE_ROOT

CACHE = {"name": "cache", "persistentVolumeClaim": {"claimName": "caches"}}
MOUNT = {"name": "cache", "mountPath": CACHE_ROOT, "subPath": "v0.20.1/a"}


def pod_spec(volume: Any = CACHE, mount: Any = MOUNT) -> dict[str, Any]:
    return {"volumes": [volume], "containers": [{"name": "vllm", "volumeMounts": [mount]}]}


def test_a_pod_with_its_caches_on_a_claim() -> None:
    spec = pod_spec()
    assert cache_address(spec) == CacheAddress("caches", "v0.20.1/a")
    assert claims_of(spec) == {"caches"}
    assert folders_of(spec, "caches") == {"v0.20.1"}
    assert not mounts_whole(spec, "caches")
    assert not is_read_only(spec, CACHE_ROOT)


SHAPES: dict[str, Any] = {
    "no spec": None,
    "a text": "spec",
    "volumes are a number": {"volumes": 5, "containers": 7},
    "volumes are a text": {"volumes": "cache", "containers": "vllm"},
    "a claim is a text": pod_spec({"name": "cache", "persistentVolumeClaim": "caches"}),
    "a claim is a list": pod_spec({"name": "cache", "persistentVolumeClaim": ["caches"]}),
    "a volume has a list for a name": pod_spec({"name": ["cache"], "persistentVolumeClaim": {"claimName": "caches"}}),
    "a mount is a number": pod_spec(mount=3),
}


@pytest.mark.parametrize("spec", SHAPES.values(), ids=SHAPES)
def test_another_shape_has_no_caches(spec: Any) -> None:
    assert cache_address(spec) is None
    assert folders_of(spec, "caches") == frozenset()
    assert not mounts_whole(spec, "caches")


FIELDS = ["volumes", "containers", "name", "volumeMounts", "persistentVolumeClaim", "claimName", "subPath", "spec", "template"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["volumes", "containers", "name", "volumeMounts", "persistentVolumeClaim", "claimName", "subPath", "spec", "template"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(ANYTHING)
def test_no_shape_raises(value: Any) -> None:
    for spec in (value, template_spec(value)):
        cache_address(spec)
        claims_of(spec)
        folders_of(spec, "caches")
        mounts_whole(spec, "caches")
        is_read_only(spec, CACHE_ROOT)


@pytest.mark.parametrize(
    ("cache", "reported", "want"),
    [
        (None, {}, "llama-cache"),
        ({"claimName": "shared"}, {}, "shared"),
        ({"storage": "SharedClaim"}, {}, "llama-cache"),
        ({"storage": "EmptyDir"}, {}, ""),
        ({"storage": "ClaimPerReplica"}, {}, ""),
        ({"hostPath": {"path": "/var/caches"}}, {}, ""),
        ({"claimName": "next"}, {"claimName": "of-the-running-pods"}, "of-the-running-pods"),
        (None, {"claimName": ""}, ""),
        (None, {"claimName": "another"}, "another"),
        (5, [], "llama-cache"),
    ],
)
def test_the_claim_of_the_caches_is_the_one_of_the_spec_unless_the_status_names_another(cache: Any, reported: Any, want: str) -> None:
    resource = {"metadata": {"name": "llama"}, "spec": {"cache": cache}, "status": {"cache": reported}}
    assert reported_cache_claim(resource) == want
