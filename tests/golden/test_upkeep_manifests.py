"""The primer and the cleaning Job of some situations, as recorded: what runs beside the replicas is as much reviewed as they are."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from support.manifests import CASES, MAX_TEMPLATE_BYTES, read_case
from support.observations import NOW
from vllm_operator.api.labels import USED_ANNOTATION_PREFIX
from vllm_operator.api.operation import SecretReference, WeightsSpec
from vllm_operator.api.resource import template_spec
from vllm_operator.caches.address import cache_address, weights_claim
from vllm_operator.caches.artifacts import add_publisher, is_published_by_primer
from vllm_operator.caches.cleaning import CleaningNeed, render_cleaning
from vllm_operator.caches.context import CacheContext
from vllm_operator.caches.prefetching import render_fetching
from vllm_operator.caches.priming import render_primer
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.rendering.image_reading import render_reading
from vllm_operator.rendering.manifests import render

CHOSEN = ("read-write-many", "smallest", "any-user-read-only", "dra-whole-gpus")
FOLDERS = [folder for folder in CASES if folder.name in CHOSEN]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_primer_and_cleaning_are_as_recorded(folder: Path, golden: Callable[[Path, str], None]) -> None:
    resource, plan = read_case(folder)
    deployment = next(manifest for manifest in render(resource, plan) if manifest["kind"] == "Deployment")
    address = cache_address(template_spec(deployment))
    assert address is not None
    one_node = not (resource.spec.cache and resource.spec.cache.volume and resource.spec.cache.volume.access_mode == "ReadWriteMany")
    primer = render_primer(deployment, beside_replicas=one_node)
    old = "v0.20.1-sm90-h200-tp1-00000000"
    claim = {"metadata": {"annotations": {f"{USED_ANNOTATION_PREFIX}{key}": "" for key in (address.key, old)}}}
    context = CacheContext(resource=resource, plan=plan, desired=deployment, claim=claim, now=NOW)
    job = render_cleaning(context, CleaningNeed("pod-a/0", is_full=True, node="gpu-1", doomed=(old,)), frozenset({address.key}))
    golden(Path(__file__).parent / "upkeep" / f"{folder.name}.yaml", yaml.safe_dump_all([primer, job], sort_keys=False, width=120))


def test_a_primer_that_publishes_is_as_recorded(golden: Callable[[Path, str], None]) -> None:
    resource, plan = read_case(next(folder for folder in CASES if folder.name == "cache-artifact"))
    spec = resource.spec
    assert spec.cache is not None
    assert spec.cache.artifact is not None
    artifact = spec.cache.artifact.model_copy(
        update={"reference": None, "policy": None, "publish": "WhenPrimed", "push_secret_ref": SecretReference(name="caches-write")}
    )
    cache = spec.cache.model_copy(update={"storage": "EmptyDir", "claim_name": None, "volume": None, "artifact": artifact})
    resource = resource.model_copy(update={"spec": spec.model_copy(update={"cache": cache})})
    deployment = next(manifest for manifest in render(resource, plan) if manifest["kind"] == "Deployment")
    context = CacheContext(resource=resource, plan=plan, desired=deployment, now=NOW)
    assert is_published_by_primer(context)
    primer = add_publisher(render_primer(deployment, beside_replicas=False), context, load_catalog().caches)
    golden(Path(__file__).parent / "upkeep" / "primer-that-publishes.yaml", yaml.safe_dump(primer, sort_keys=False, width=120))


@pytest.mark.parametrize("name", ["weights-apart", "read-write-many", "smallest"])
def test_the_job_that_fetches_weights_is_as_recorded(name: str, golden: Callable[[Path, str], None]) -> None:
    resource, plan = read_case(next(folder for folder in CASES if folder.name == name))
    weights = (resource.spec.weights or WeightsSpec()).model_copy(update={"prefetch": "BeforeStart"})
    resource = resource.model_copy(update={"spec": resource.spec.model_copy(update={"weights": weights})})
    manifests = render(resource, plan)
    deployment = next(manifest for manifest in manifests if manifest["kind"] == "Deployment")
    claim_name = weights_claim(template_spec(deployment))
    claim = next((it for it in manifests if it["metadata"]["name"] == claim_name), {"spec": {"accessModes": ["ReadWriteMany"]}})
    job = render_fetching(CacheContext(resource=resource, plan=plan, desired=deployment, now=NOW), claim)
    golden(Path(__file__).parent / "upkeep" / f"fetch-{name}.yaml", yaml.safe_dump(job, sort_keys=False, width=120))


@pytest.mark.parametrize("name", ["pod-template", "smallest"])
def test_the_job_that_reads_an_image_is_as_recorded(name: str, golden: Callable[[Path, str], None]) -> None:
    resource, plan = read_case(next(folder for folder in CASES if folder.name == name))
    job = render_reading(resource, plan.image, plan.tools_image)
    golden(Path(__file__).parent / "upkeep" / f"read-{name}.yaml", yaml.safe_dump(job, sort_keys=False, width=120))


@pytest.mark.parametrize("path", sorted((Path(__file__).parent / "upkeep").glob("*.yaml")), ids=lambda path: path.stem)
def test_pod_templates_are_small(path: Path) -> None:
    for manifest in yaml.safe_load_all(path.read_text("utf-8")):
        assert len(json.dumps(manifest["spec"]["template"])) < MAX_TEMPLATE_BYTES


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_a_primer_is_neither_found_by_the_service_nor_by_the_deployment(folder: Path) -> None:
    manifests = render(*read_case(folder))
    deployment = next(manifest for manifest in manifests if manifest["kind"] == "Deployment")
    service = next(manifest for manifest in manifests if manifest["kind"] == "Service")
    labels = render_primer(deployment, beside_replicas=False)["spec"]["template"]["metadata"]["labels"]
    for selector in (service["spec"]["selector"], deployment["spec"]["selector"]["matchLabels"]):
        assert not selector.items() <= labels.items()
