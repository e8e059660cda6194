"""The cache key: which starts may share compiled files.

The key names a directory on the PVC. It is derived from exactly the inputs that make compiled files unusable when they change. It does not
contain the name of the VLLMDeployment, so an object that is deleted and created again finds its caches, nor the model, because the files of
a model have separate keys inside the directory.

Example: `v0.20.1-sm90-h100-80gb-hbm3-tp8-1f2e3d4c`. The readable parts are followed by a digest of all parts.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vllm_operator.api.digests import digest
from vllm_operator.api.plan import Plan, PlannedVariable
from vllm_operator.api.spec import Distribution, EnvironmentVariable
from vllm_operator.catalog.caches import Caches

MAX_KEY_LENGTH = 63
"""Maximum length of a label value and of the name part of an annotation. Keys are used as both."""
_DIGEST_LENGTH = 8
_MAX_PRODUCT_LENGTH = 16
_MAX_VALUE_LENGTH = 256
_UNKNOWN = "unknown"
_OF_ARGUMENTS = "These flags change what is compiled and are not part of vLLM's own keys."
_OF_IMAGE = "Compiled files depend on paths, compilers and libraries of the image."


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOrigin:
    """Properties of the engine and GPU that filled a cache (None if unknown). Starts with equal properties may share it."""

    version: str | None
    distribution: Distribution
    image: str
    architecture: str | None = None
    product: str | None = None  # GPU product as in the node label
    mig_profile: str | None = None  # profile of a MIG slice; None for whole GPUs
    parallel: str = "tp1"  # parallelism of one replica, such as `tp8` or `tp4-pp2-ep`
    user: int | None = None  # user ID of the engine; None for the default of the image
    arguments: str | None = None  # the result of `keyed_arguments`
    generation: int = 0  # number of quarantined directories before this one


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The directory on the PVC (`key`, valid as a label value), its parts with reasons, and the variables that direct every cache to it."""

    key: str
    parts: tuple[PlannedVariable, ...]
    env: tuple[PlannedVariable, ...]


def plan_cache(origin: CacheOrigin, caches: Caches) -> CachePlan:
    """Derive the cache key and its variables. Equal arguments give equal results."""
    parts = _parts(origin)
    variables = caches.variables_of(origin.version, origin.distribution)
    return CachePlan(key=_key(_readable(origin), parts), parts=parts, env=variables)


def keyed_arguments(arguments: Mapping[str, str | None], caches: Caches) -> str | None:
    """Return the user's flags that affect compilation and are missing in vLLM's own keys, as text, or a digest if it is long."""
    flags = sorted((flag, value) for flag, value in arguments.items() if flag.partition(".")[0] in caches.keyed_arguments)
    text = " ".join(flag if value is None else f"{flag}={value}" for flag, value in flags)
    if not flags:
        return None
    return text if len(text) <= _MAX_VALUE_LENGTH else digest([[flag, value or ""] for flag, value in flags], _DIGEST_LENGTH)


def per_pod_notes(env: Iterable[EnvironmentVariable], caches: Caches) -> tuple[str, ...]:
    """Return a note for each of the user's variables that makes every start cold because its value differs between Pods."""
    return tuple(
        f"{variable.name} has a different value in each Pod (fieldRef) and is part of vLLM's cache keys, so no Pod finds the compiled "
        f"files of another. Pass it as a flag if there is one, or set it in the command of the Pod."
        for variable in env
        if variable.name.startswith("VLLM_")
        and variable.name not in caches.per_pod_values.allowed
        and "fieldRef" in (variable.value_from or {})
    )


def key_with_image(plan: Plan, image: str) -> str:
    """Return the key of a plan with another image (a reference or a digest)."""
    values = [[part.name, image if part.name == "image" else part.value] for part in plan.cache_key_parts]
    return f"{plan.cache_key.rpartition('-')[0]}-{digest(values, _DIGEST_LENGTH)}"


def digest_of(image: str) -> str | None:
    """Return the digest of an image reference; None if it has none."""
    _, at, digest = image.rpartition("@")
    return digest if at else None


def _parts(origin: CacheOrigin) -> tuple[PlannedVariable, ...]:
    """Return the parts of the key. Adding, removing or reordering parts changes all keys."""
    digest = digest_of(origin.image)
    of_image = _OF_IMAGE if digest else f"{_OF_IMAGE} The tag is used until a Pod reports the digest."
    return (
        _part("distribution", origin.distribution.value, "Builds of vLLM have different kernels."),
        _part("version", _plain_version(origin), "A vLLM version does not read the caches of another one."),
        _part("image", digest or origin.image, of_image),
        _part("architecture", origin.architecture, "Kernels run on one GPU architecture only."),
        _part("product", origin.product, "PyTorch refuses artifacts that were built on a GPU with another name."),
        _part("migProfile", origin.mig_profile or "none", "A MIG slice has other limits than the whole GPU."),
        _part("parallelism", origin.parallel, "Each rank has its own artifacts."),
        *([_part("user", str(origin.user), "A user cannot change the files of another user.")] if origin.user is not None else []),
        *([_part("arguments", origin.arguments, _OF_ARGUMENTS)] if origin.arguments else []),
        _part("generation", str(origin.generation), "Raised when a damaged cache is quarantined."),
    )


def _readable(origin: CacheOrigin) -> tuple[str, ...]:
    version = _plain_version(origin)
    return (
        "nvllm" if origin.distribution is Distribution.NVLLM else "",
        f"v{version}" if version else _UNKNOWN,
        (origin.architecture or "").replace("_", ""),
        _short_product(origin.product),
        origin.mig_profile or "",
        origin.parallel,
        "" if origin.user is None else f"u{origin.user}",
        f"g{origin.generation}" if origin.generation else "",
    )


def _plain_version(origin: CacheOrigin) -> str | None:
    return origin.version.removeprefix("v") if origin.version else None


def _part(name: str, value: str | None, reason: str) -> PlannedVariable:
    return PlannedVariable(name=name, value=value or _UNKNOWN, reason=reason)


def _key(readable: tuple[str, ...], parts: tuple[PlannedVariable, ...]) -> str:
    text = re.sub(r"[^a-z0-9.]+", "-", "-".join(filter(None, readable)).lower())
    digits = digest([[part.name, part.value] for part in parts], _DIGEST_LENGTH)
    return f"{text[: MAX_KEY_LENGTH - _DIGEST_LENGTH - 1].strip('-.')}-{digits}"


def _short_product(product: str | None) -> str:
    """Shorten the name of a GPU: `NVIDIA-H100-80GB-HBM3-MIG-1g.10gb` to `h100-80gb-hbm3`."""
    words = re.split(r"[^a-z0-9]+", re.sub(r"-(mig-.*|shared)$", "", (product or "").lower()))
    short = ""
    for word in words:
        if word in ("", "nvidia", "tesla"):
            continue
        if len(short) + 1 + len(word) > _MAX_PRODUCT_LENGTH:
            break
        short = f"{short}-{word}" if short else word
    return short
