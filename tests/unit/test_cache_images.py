"""Caches of an image that is named by a tag: the digest is known once a Pod has started, and nothing moves because of that."""

from dataclasses import dataclass, field

import pytest

from support.fleet import Fleet
from support.gpus import real_node
from support.operators import Bench
from support.plans import deployment, made
from vllm_operator.api import labels
from vllm_operator.api.plan import Plan
from vllm_operator.caches.directories import ImageRecord, directory_of, read_records
from vllm_operator.caches.key import key_with_image
from vllm_operator.kube.client import CLAIM, DEPLOYMENT, POD, VLLM_DEPLOYMENT

TAG = "vllm/vllm-openai:v0.20.1-cu129"
ENGINE = {"image": TAG, "version": "0.20.1"}
OTHER_TAG = "registry.example.com/vllm:stable"
ONE, TWO = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"


def plan_of(image: str) -> Plan:
    return made(deployment(engine={"image": image, "version": "0.20.1"}), real_node("h100-sxm"))


def directory(image: str) -> str:
    return plan_of(image).cache_key


BY_TAG, BY_OTHER_TAG, BY_ONE, BY_TWO = (directory(image) for image in (TAG, OTHER_TAG, f"x@{ONE}", f"x@{TWO}"))


@dataclass(frozen=True)
class Case:
    image: str
    want: str
    records: dict[str, ImageRecord] = field(default_factory=dict)


FILLED = {BY_TAG: ImageRecord(TAG, ONE, ONE)}
MOVED = {BY_TAG: ImageRecord(TAG, ONE, TWO)}
CASES = {
    "a tag that no Pod has started with": Case(TAG, BY_TAG),
    "a tag whose digest got known": Case(TAG, BY_TAG, FILLED),
    "a tag that stands for another image now": Case(TAG, BY_TWO, MOVED),
    "a tag that stands for what another tag has filled a directory with": Case(
        TAG, BY_OTHER_TAG, {**MOVED, BY_OTHER_TAG: ImageRecord(OTHER_TAG, TWO, TWO)}
    ),
    "another tag of the same image, before its digest is known": Case(OTHER_TAG, BY_OTHER_TAG, FILLED),
    "an image by its digest": Case(f"{TAG}@{ONE}", BY_ONE),
    "an image by the digest that a tag stood for": Case(f"{TAG}@{ONE}", BY_TAG, FILLED),
    "an image by the digest that a tag stands for now": Case(f"{TAG}@{TWO}", BY_TWO, MOVED),
    "a directory of other GPUs is no match": Case(f"x@{ONE}", BY_ONE, {"v0.20.1-sm100-b200-tp1-00000000": ImageRecord(TAG, ONE, ONE)}),
    "a directory of the same name but of other parts is no match": Case(f"x@{ONE}", BY_ONE, {BY_TWO: ImageRecord(TAG, ONE, ONE)}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_which_directory_a_start_uses(case: Case) -> None:
    assert directory_of(plan_of(case.image), case.records) == case.want


def test_a_key_with_the_image_of_its_plan_is_the_key_of_the_plan() -> None:
    plan = plan_of(TAG)
    assert key_with_image(plan, TAG) == plan.cache_key
    assert key_with_image(plan.model_copy(update={"cache_key": BY_TWO}), TAG) == plan.cache_key, "also from a directory that replaced it"


@pytest.mark.parametrize("record", [ImageRecord(TAG, ONE, ONE), ImageRecord(TAG, ONE, TWO), ImageRecord("a:5000/b", TWO, ONE)], ids=str)
def test_a_record_is_read_back(record: ImageRecord) -> None:
    claim = {"metadata": {"annotations": {labels.IMAGE_ANNOTATION_PREFIX + BY_TAG: str(record)}}}
    assert read_records(claim) == {BY_TAG: record}


@pytest.mark.parametrize("text", ["", " ", "@", "sha256:1", "image@", "@sha256:1"])
def test_what_is_no_record_counts_as_none(text: str) -> None:
    assert read_records({"metadata": {"annotations": {labels.IMAGE_ANNOTATION_PREFIX + BY_TAG: text}}}) == {}


def runs(fleet: Fleet, pod: str, digest: str) -> None:
    """The kubelet says which image a Pod runs."""
    [status] = next(item for item in fleet.bench.cluster.all(POD) if item["metadata"]["name"] == pod)["status"]["containerStatuses"]
    image_id = f"docker.io/vllm/vllm-openai@{digest}"
    fleet.bench.cluster.edit(POD, "default", pod, {"status": {"containerStatuses": [{**status, "imageID": image_id}]}})


def mounted(fleet: Fleet) -> str:
    container = (fleet.deployment() or {})["spec"]["template"]["spec"]["containers"][0]
    return next(str(mount["subPath"]) for mount in container["volumeMounts"] if mount["mountPath"] == "/cache")


async def serving(fleet: Fleet, digest: str) -> str:
    pod = fleet.start()
    fleet.ready(pod)
    runs(fleet, pod, digest)
    await fleet.settle()
    return pod


async def test_a_digest_that_gets_known_changes_nothing_that_runs(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(engine=ENGINE)
    before = fleet.deployment()
    await serving(fleet, ONE)
    assert fleet.deployment() == before
    assert fleet.annotations()[labels.IMAGE_ANNOTATION_PREFIX + BY_TAG] == f"{TAG}@{ONE}"
    assert bench.cache().key == BY_TAG
    await fleet.change(startup={"deadlineSeconds": 7200})
    assert mounted(fleet) == BY_TAG, "the next rollout is warm"


async def moved(bench: Bench, fleet: Fleet) -> None:
    """A Pod has pulled its tag anew, and the tag stands for another image."""
    await fleet.serve(engine=ENGINE)
    fleet.gone(await serving(fleet, ONE))
    bench.pass_time(60)
    await serving(fleet, TWO)


async def test_a_tag_that_moves_is_reported_and_moves_nothing_by_itself(bench: Bench, fleet: Fleet) -> None:
    await moved(bench, fleet)
    assert mounted(fleet) == BY_TAG
    assert f"The tag of image {TAG} now points to" in bench.cache_verdict().message
    assert fleet.annotations()[labels.IMAGE_ANNOTATION_PREFIX + BY_TAG] == f"{TAG}@{ONE} {TWO}"
    before = (fleet.deployment() or {})["spec"]["template"]
    await fleet.change(replicas=3)
    assert (fleet.deployment() or {})["spec"]["template"] == before, "scaling restarts nothing"


async def test_a_new_plan_that_is_asked_for_takes_the_directory_of_the_new_image(bench: Bench, fleet: Fleet) -> None:
    await moved(bench, fleet)
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"metadata": {"annotations": {labels.REPLAN_ANNOTATION: "now"}}})
    fleet.gone(fleet.pods()[0])
    await fleet.settle()
    assert mounted(fleet) == BY_TWO
    assert "now points to" not in bench.cache_verdict().message
    await serving(fleet, TWO)
    await fleet.change(replicas=2)
    assert mounted(fleet) == BY_TWO, "it stays there"


async def test_an_object_that_is_created_again_finds_the_directory_of_its_image(bench: Bench, fleet: Fleet) -> None:
    await moved(bench, fleet)
    for kind, name in ((VLLM_DEPLOYMENT, "llama"), (DEPLOYMENT, "llama"), *((POD, pod) for pod in fleet.pods())):
        bench.cluster.remove(kind, "default", name)
    await fleet.serve(engine=ENGINE)
    assert mounted(fleet) == fleet.key() == BY_TWO
    await serving(fleet, TWO)


async def test_an_image_that_is_named_by_its_digest_later_finds_what_its_tag_has_filled(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(engine=ENGINE)
    await serving(fleet, ONE)
    await fleet.change(engine={"image": f"{TAG}@{ONE}", "version": "0.20.1"})
    assert mounted(fleet) == BY_TAG
    assert fleet.deployment("llama.primer") is None, "there is nothing to fill"


async def test_a_damaged_directory_is_quarantined_whatever_its_image_is_called(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(engine=ENGINE)
    fleet.gone(await serving(fleet, ONE))
    mark = labels.QUARANTINED_ANNOTATION_PREFIX + BY_TAG
    bench.cluster.edit(CLAIM, "default", "llama-cache", {"metadata": {"annotations": {mark: fleet.time()}}})
    for kind in (VLLM_DEPLOYMENT, DEPLOYMENT):
        bench.cluster.remove(kind, "default", "llama")
    await fleet.serve(engine={"image": f"{TAG}@{ONE}", "version": "0.20.1"})
    assert "-g1-" in mounted(fleet)
