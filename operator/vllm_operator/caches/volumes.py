"""Where caches and weights are kept: what the spec says, with what follows where it says nothing.

Weights have a volume of their own. They do not depend on the GPU or the image, are a hundred times as large as caches and can
be downloaded again, so their size and their life differ. They stay beside the caches where those are on a claim of the
user's (which may hold weights already, for several to share), on a directory of the node or of the Pod, or on a volume of
`podTemplate`; and for as long as they were downloaded there before, because no start shall download them again unasked.
"""

from vllm_operator.api.operation import CacheSpec, ClaimVolume, Storage, StorageSpec
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.api.status import Plan, PlannedWeights, WeightsPlace
from vllm_operator.catalog.paths import model_argument
from vllm_operator.pods.reading import mapping, sequence

CACHE_VOLUME = "cache"
WEIGHTS_VOLUME = "weights"
DEFAULT_HOST_PATH = "/var/cache/vllm-operator"
GIBIBYTE = 2**30
STEP = 10 * GIBIBYTE
"""Sizes of claims are multiples of this: a round number, and one that does not change with each estimate."""
UNKNOWN_WEIGHTS = 100 * GIBIBYTE
"""For a model of unknown size; holds 45 billion parameters of two bytes."""


def storage_of(spec: StorageSpec | None) -> Storage:
    """What holds the files of a spec."""
    if spec is None:
        return Storage.SHARED_CLAIM
    return spec.storage or (Storage.HOST_PATH if spec.host_path else Storage.SHARED_CLAIM)


def cache_claim_name(resource: VLLMDeployment) -> str:
    """Name of the shared claim of the caches: the user's own if one is named, else `<name>-cache`."""
    named = resource.spec.cache.claim_name if resource.spec.cache else None
    return named or f"{resource.metadata.name}-cache"


def weights_claim_name(resource: VLLMDeployment) -> str:
    """Name of the shared claim of the weights: the user's own if one is named, else `<name>-weights`."""
    named = resource.spec.weights.claim_name if resource.spec.weights else None
    return named or f"{resource.metadata.name}-weights"


def weights_storage(spec: VLLMDeploymentSpec, planned: PlannedWeights | None) -> StorageSpec | None:
    """How the weights of a plan are kept; None where they are beside the caches."""
    if planned is None or planned.place is WeightsPlace.WITH_CACHES:
        return None
    cache = spec.cache or CacheSpec()
    desired: StorageSpec = spec.weights or StorageSpec(storage=cache.storage)
    if desired.claim_name or storage_of(desired) in (Storage.HOST_PATH, Storage.EMPTY_DIR):
        return desired
    ours = cache.volume or ClaimVolume()
    given = desired.volume or ClaimVolume(storage_class_name=ours.storage_class_name, access_mode=ours.access_mode)
    return desired.model_copy(update={"volume": given.model_copy(update={"size": given.size or planned.volume_size})})


def plan_weights(resource: VLLMDeployment, weight_bytes: int | None, pinned: Plan | None) -> PlannedWeights:
    """Decide where the weights of a model are kept.

    Args:
        resource: The VLLMDeployment.
        weight_bytes: Size of all weight files; None if unknown.
        pinned: The plan before.
    """
    spec = resource.spec
    if spec.weights is None and _are_beside_caches(resource, pinned):
        return PlannedWeights(place=WeightsPlace.WITH_CACHES)
    desired = weights_storage(spec, PlannedWeights(place=WeightsPlace.OWN_VOLUME))
    if desired is None or desired.volume is None:
        return PlannedWeights(place=WeightsPlace.OWN_VOLUME)
    return PlannedWeights(place=WeightsPlace.OWN_VOLUME, volume_size=desired.volume.size or _size(weight_bytes))


def about_unknown_size(resource: VLLMDeployment, planned: PlannedWeights, weight_bytes: int | None) -> list[str]:
    """Say that the size of the claim of the weights is a guess, where it is."""
    given = resource.spec.weights.volume if resource.spec.weights else None
    if planned.volume_size is None or weight_bytes is not None or (given is not None and given.size):
        return []
    return [
        f"The size of the weights is unknown, so the operator requests {planned.volume_size} for their PVC. "
        "Set spec.model.facts.weightSize, or spec.weights.volume.size."
    ]


def _are_beside_caches(resource: VLLMDeployment, pinned: Plan | None) -> bool:
    spec = resource.spec
    if not spec.model.uri.startswith("hf://"):
        return True  # the weights are on the user's claim; what remains is small
    volumes = sequence(mapping(spec.pod_template, "spec").get("volumes"))
    if any(mapping(volume).get("name") == CACHE_VOLUME for volume in volumes):
        return True
    if spec.cache is not None and (spec.cache.claim_name or storage_of(spec.cache) in (Storage.HOST_PATH, Storage.EMPTY_DIR)):
        return True
    return _were_beside_caches(resource, pinned)


def _were_beside_caches(resource: VLLMDeployment, pinned: Plan | None) -> bool:
    """Whether this model was downloaded to the claim of the caches before weights had one of their own."""
    if pinned is None or pinned.model != model_argument(resource.spec.model.uri):
        return False
    before = resource.status.cache
    same_claim = before is not None and before.claim_name == cache_claim_name(resource)
    return same_claim and (pinned.weights is None or pinned.weights.place is WeightsPlace.WITH_CACHES)


def _size(weight_bytes: int | None) -> str:
    """What the claim of weights needs: a fifth more than they are, for what a revision changes, and 10 GiB for all else."""
    needed = UNKNOWN_WEIGHTS if weight_bytes is None else weight_bytes + weight_bytes // 5 + STEP
    return f"{-(-needed // STEP) * STEP // GIBIBYTE}Gi"
