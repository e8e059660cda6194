"""The primer and the cleaning Job of some situations, as recorded: what runs beside the replicas is as much reviewed as they are."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from support.manifests import CASES, read_case
from vllm_operator.caches.address import cache_address, template_spec
from vllm_operator.caches.cleaning import cleaning_script, render_cleaning
from vllm_operator.caches.priming import render_primer
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
    job = render_cleaning(
        resource,
        template_spec(deployment),
        claim=address.claim,
        occasion="pod-a/0",
        node="gpu-1",
        recorded={address.key, "v0.20.1-sm90-h200-tp1-00000000"},
        keep={address.key},
        doomed=["v0.20.1-sm90-h200-tp1-00000000"],
        is_full=True,
    )
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[2] == cleaning_script()
    command[2] = "(caches/scripts/clean_caches.py)"
    golden(Path(__file__).parent / "upkeep" / f"{folder.name}.yaml", yaml.safe_dump_all([primer, job], sort_keys=False, width=120))


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_a_primer_is_neither_found_by_the_service_nor_by_the_deployment(folder: Path) -> None:
    manifests = render(*read_case(folder))
    deployment = next(manifest for manifest in manifests if manifest["kind"] == "Deployment")
    service = next(manifest for manifest in manifests if manifest["kind"] == "Service")
    labels = render_primer(deployment, beside_replicas=False)["spec"]["template"]["metadata"]["labels"]
    for selector in (service["spec"]["selector"], deployment["spec"]["selector"]["matchLabels"]):
        assert not selector.items() <= labels.items()
