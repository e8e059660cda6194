"""The cache key: equal where caches can be shared, different where they cannot, readable, and a valid name."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.gpus import real_node
from support.plans import deployment, made
from vllm_operator.api.plan import Plan
from vllm_operator.api.spec import Distribution
from vllm_operator.caches.key import key_with_image, with_cache_key
from vllm_operator.catalog.caches import WEIGHTS_SUBPATH
from vllm_operator.sizing.parallelism import ParallelShape

PLAN = Plan(
    catalog_version="1",
    model="meta-llama/Llama-3.1-8B-Instruct",
    image="vllm/vllm-openai:v0.20.1",
    tools_image="registry.example/vllm-operator:1",
    engine_version="0.20.1",
    distribution=Distribution.VLLM,
    architecture="sm_90",
    product="NVIDIA-H200",
    resource="nvidia.com/gpu",
    count=8,
    cache_key="",
    deadline_seconds=3600,
)


def plan(*, parallel: str = "tp8", mig_profile: str | None = None, user: int | None = None, generation: int = 0, **changes: object) -> Plan:
    made = PLAN.model_copy(update=changes)
    return with_cache_key(made, parallel=parallel, mig_profile=mig_profile, user=user, generation=generation)


def test_a_key_can_be_read_and_does_not_change_between_releases_of_the_operator() -> None:
    # Changing how keys are made throws away every cache of every user: do it knowingly.
    assert plan().cache_key == "v0.20.1-sm90-h200-tp8-4b6b5034"


@pytest.mark.parametrize(
    ("changes", "want_start"),
    [
        ({"product": "NVIDIA-H100-80GB-HBM3"}, "v0.20.1-sm90-h100-80gb-hbm3-tp8-"),
        (
            {"product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "mig_profile": "1g.10gb", "parallel": str(ParallelShape())},
            "v0.20.1-sm90-h100-80gb-hbm3-1g.10gb-tp1-",
        ),
        ({"product": "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"}, "v0.20.1-sm90-rtx-pro-6000-tp8-"),
        ({"product": "Tesla-T4-SHARED"}, "v0.20.1-sm90-t4-tp8-"),
        ({"product": None, "architecture": None}, "v0.20.1-tp8-"),
        ({"engine_version": None}, "unknown-sm90-h200-tp8-"),
        ({"distribution": Distribution.NVLLM}, "nvllm-v0.20.1-sm90-h200-tp8-"),
        ({"parallel": str(ParallelShape(tensor=4, pipeline=2, data=2, expert=True))}, "v0.20.1-sm90-h200-tp4-pp2-dp2-ep-"),
        ({"user": 1000}, "v0.20.1-sm90-h200-tp8-u1000-"),
        ({"generation": 2}, "v0.20.1-sm90-h200-tp8-g2-"),
        ({"engine_version": "0.20.2rc1.dev3+g1a2b3c"}, "v0.20.2rc1.dev3-g1a2b3c-sm90-h200-tp8-"),
    ],
)
def test_the_readable_part_says_what_a_person_asks_for(changes: dict[str, Any], want_start: str) -> None:
    assert re.fullmatch(re.escape(want_start) + "[0-9a-f]{8}", plan(**changes).cache_key)


@pytest.mark.parametrize(
    "changes",
    [
        {"engine_version": "0.20.2"},
        {"distribution": Distribution.NVLLM},
        {"image": "mirror.local/vllm-openai:v0.20.1"},
        {"image": "vllm/vllm-openai@sha256:1111"},
        {"architecture": "sm_100"},
        {"product": "NVIDIA-H100-80GB-HBM3"},
        {"mig_profile": "1g.18gb"},
        {"parallel": str(ParallelShape(tensor=4))},
        {"parallel": str(ParallelShape(tensor=8, expert=True))},
        {"user": 0},
        {"generation": 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_makes_a_cache_unusable_changes_the_key(changes: dict[str, Any]) -> None:
    assert plan(**changes).cache_key != plan().cache_key


@pytest.mark.parametrize(
    "changes",
    [{}, {"engine_version": "v0.20.1"}],
)
def test_the_same_start_finds_the_same_caches(changes: dict[str, Any]) -> None:
    assert plan(**changes).cache_key == plan().cache_key


def test_an_image_pinned_by_digest_is_the_same_wherever_it_is_pulled_from() -> None:
    digest = "sha256:" + "1f" * 32
    keys = {
        plan(image=f"vllm/vllm-openai:v0.20.1@{digest}").cache_key,
        plan(image=f"mirror.local/vllm-openai@{digest}").cache_key,
    }
    assert len(keys) == 1


def test_every_part_of_the_key_is_explained() -> None:
    parts = plan().cache_key_parts
    assert {part.name: part.value for part in parts} == {
        "distribution": "vLLM",
        "version": "0.20.1",
        "image": "vllm/vllm-openai:v0.20.1",
        "architecture": "sm_90",
        "product": "NVIDIA-H200",
        "migProfile": "none",
        "parallelism": "tp8",
        "generation": "0",
    }
    assert all(part.reason for part in parts)


@given(
    version=st.none() | st.text(max_size=80),
    image=st.text(min_size=1, max_size=200),
    product=st.none() | st.text(max_size=128),
    mig_profile=st.none() | st.text(max_size=32),
    sizes=st.tuples(*[st.integers(1, 64)] * 3),
    generation=st.integers(0, 10**6),
)
def test_a_key_is_always_a_valid_label_value_and_folder(
    version: str | None, image: str, product: str | None, mig_profile: str | None, sizes: tuple[int, int, int], generation: int
) -> None:
    key = plan(
        engine_version=version,
        image=image,
        product=product,
        mig_profile=mig_profile,
        parallel=str(ParallelShape(*sizes)),
        generation=generation,
    ).cache_key
    assert len(key) <= 63
    assert re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", key)
    assert key != WEIGHTS_SUBPATH


COLLIDING = {
    "the number of speculative tokens": (
        {"speculative-config": '{"num_speculative_tokens": 7}'},
        {"speculative-config": '{"num_speculative_tokens": 9}'},
    ),
    "a part of a flag": ({"speculative-config.num_speculative_tokens": "7"}, {"speculative_config.num_speculative_tokens": "9"}),
    "images or none": ({}, {"limit-mm-per-prompt": '{"image": 0}'}),
    "a long value": ({"limit-mm-per-prompt": "x" * 5000}, {"limit-mm-per-prompt": "x" * 5001}),
}


@pytest.mark.parametrize(("one", "other"), COLLIDING.values(), ids=COLLIDING)
def test_what_vllm_leaves_out_of_its_own_keys_is_in_ours(one: dict[str, str], other: dict[str, str]) -> None:
    first, second = (made(deployment(engine=engine(args)), real_node("h100-sxm")) for args in (one, other))
    assert first.cache_key != second.cache_key
    generation = made(deployment(engine=engine(other)), real_node("h100-sxm"), pinned=second, cache_generation=1)
    assert key_with_image(generation, second.image) == generation.cache_key
    assert {part.name for part in generation.cache_key_parts} == {part.name for part in second.cache_key_parts}


def test_other_flags_leave_the_key_alone() -> None:
    with_flag = made(deployment(engine=engine({"max-model-len": "4096"})), real_node("h100-sxm"))
    assert with_flag.cache_key == made(deployment(), real_node("h100-sxm")).cache_key


def engine(args: dict[str, str]) -> dict[str, Any]:
    return {"version": "0.20.1", "args": [{"name": name, "value": value} for name, value in args.items()]}
