"""What CacheWarm and the status say about caches from a registry: what was fetched, why not, what the engine did with it, what differs."""

import pytest

from support.fetches import ARTIFACT, DIGEST, FETCHED, REPOSITORY, fetched
from support.fleet import Fleet
from support.operators import Bench
from vllm_operator.logs.state import CacheEvidence, Stage, StartupState


async def test_the_condition_says_what_was_fetched(fleet: Fleet, bench: Bench) -> None:
    await fleet.serve(cache={"storage": "EmptyDir", "artifact": ARTIFACT})
    fetched(fleet, fleet.start(), FETCHED)
    await fleet.settle()
    assert "were fetched from the registry (tag tag-1)" in bench.cache_verdict().message
    status = bench.cache().artifact
    assert status is not None
    assert status.cold_start_seconds == 459
    assert (status.tag, status.digest, status.fetch) == ("tag-1", DIGEST, "Fetched")


ADVICE = {
    "NotFound": "A VLLMDeployment with a PersistentVolumeClaim and spec.cache.artifact.publish WhenPrimed publishes them.",
    "Denied": "Correct the Secret read in this namespace: its account must be allowed to pull.",
    "SecretMissing": "Correct the Secret read in this namespace: its account must be allowed to pull.",
    "Unreachable": "Check that Pods in this namespace reach the registry and trust its certificate (key ca.crt of the pull Secret).",
    "DeadlineExceeded": "Check how fast Pods on this node read from the registry and write to the volume.",
    "Rejected": "Nothing of it was kept. Delete the tag tag-1 in the registry, so that the caches are published again.",
    "TooLarge": "Nothing of it was kept. Delete the tag tag-1 in the registry, so that the caches are published again.",
    "NoSpace": "Enlarge the volume of the caches.",
    "Interrupted": "The Pod was stopped meanwhile.",
    "Invalid": "Correct spec.cache.artifact or the registry.",
    "Failed": "Correct spec.cache.artifact or the registry.",
}


@pytest.mark.parametrize(("reason", "advice"), ADVICE.items(), ids=ADVICE.keys())
async def test_the_condition_says_why_nothing_was_fetched_and_what_to_do(fleet: Fleet, bench: Bench, reason: str, advice: str) -> None:
    await fleet.serve(cache={"storage": "EmptyDir", "artifact": ARTIFACT})
    fetched(fleet, fleet.start(), {"result": reason, "message": "registry.example does what it does.", "tag": "tag-1"})
    await fleet.settle()
    assert bench.cache_verdict().message.endswith(
        f" No caches were fetched: registry.example does what it does. {advice} The next Pod tries again."
    )
    writes = len(bench.cluster.writes)
    await fleet.settle()
    assert len(bench.cluster.writes) == writes


async def test_an_artifact_by_digest_that_does_not_fit_is_explained(fleet: Fleet, bench: Bench) -> None:
    reference = f"{REPOSITORY}@{DIGEST}"
    await fleet.serve(cache={"storage": "EmptyDir", "artifact": {"reference": reference}})
    result = {"result": "Mismatch", "message": "The artifact is for x.", "differs": "torch 2.9.0 instead of 2.10.0"}
    fetched(fleet, fleet.start(), result)
    await fleet.settle()
    assert bench.cache_verdict().message.endswith(
        "The artifact was made with torch 2.9.0 instead of 2.10.0. Correct spec.cache.artifact.reference, or remove it to fetch by tag. "
        "The next Pod tries again."
    )


OTHER_GPU = "Compile package was created with different GPU: cached=NVIDIA H200, current=NVIDIA H100 80GB HBM3"
USE = {
    "all loaded": ("Fetched", "", CacheEvidence(hits=4), "These caches were fetched from the registry (tag tag-1) in 2 s."),
    "another driver": (
        "Fetched",
        "driver 570.1 instead of 580.2",
        CacheEvidence(misses=3),
        "The engine did not use all of the caches that were fetched from the registry (tag tag-1): it loaded 0 graphs and "
        "compiled 3 graphs. "
        "The artifact was made with driver 570.1 instead of 580.2. Publish caches from an engine that is equal in this.",
    ),
    "another GPU, by the log": (
        "Fetched",
        "",
        CacheEvidence(hits=1, misses=1, load_failures=1, failure=OTHER_GPU),
        f"it loaded 1 graph and compiled 1 graph. Its log says {OTHER_GPU}. Nothing that is recorded with the artifact differs. "
        "Compare what is not recorded: variables from ConfigMaps and Secrets, files of the model, other mounts.",
    ),
    "another model": (
        "PartlyFetched",
        "other values of model, --max-num-seqs",
        CacheEvidence(misses=3),
        "Caches of another model or of other settings were fetched (tag tag-1), so the first start loads kernels and compiles graphs. "
        "The artifact was made with other values of model, --max-num-seqs.",
    ),
}


@pytest.mark.parametrize(("result", "differs", "evidence", "text"), USE.values(), ids=USE.keys())
async def test_the_condition_says_what_the_engine_did_with_what_was_fetched(
    fleet: Fleet, bench: Bench, result: str, differs: str, evidence: CacheEvidence, text: str
) -> None:
    await fleet.serve(cache={"storage": "EmptyDir", "artifact": ARTIFACT})
    pod = fleet.start()
    fetched(fleet, pod, {**FETCHED, "result": result, "differs": differs})
    state = StartupState(stage=Stage.TORCH_COMPILE, cache=evidence, last_line_at=bench.now)
    bench.logs.told[(fleet.uid(pod), 0)] = state
    await fleet.settle()
    assert bench.cache_verdict().message.endswith(text)
