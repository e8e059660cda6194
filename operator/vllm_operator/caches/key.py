"""The cache key: which starts may share compiled artifacts.

A key names a folder on the claim. It is derived from everything that makes a cache unusable when it
changes, and from nothing else: not from the name of the VLLMDeployment, so that an object that is deleted
and created again finds its caches, and not from the model, whose artifacts have keys of their own inside
the folder.

A key reads like `v0.20.1-sm90-h100-80gb-hbm3-tp8-1f2e3d4c`: the parts that a person asks for, then a
digest of all of them.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vllm_operator.api.spec import Distribution, EnvironmentVariable
from vllm_operator.api.status import Plan, PlannedVariable
from vllm_operator.catalog.caches import Caches

MAX_KEY_LENGTH = 63
"""Length of a label value, and of the name part of an annotation, where keys are kept too."""
_DIGEST_LENGTH = 8
_MAX_PRODUCT_LENGTH = 16
_MAX_VALUE_LENGTH = 256
_UNKNOWN = "unknown"
_OF_ARGUMENTS = "These flags change what is compiled, and vLLM leaves them out of its own keys."
_OF_IMAGE = "Compiled files hold paths, compilers and libraries of the image."


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOrigin:
    """What fills a cache, and on what: starts that agree in all of this may share it.

    Attributes:
        version: vLLM version; None if not known.
        distribution: Build of vLLM.
        image: Container image as in the Pod.
        architecture: GPU architecture, `sm_90`; None if not known.
        product: GPU product as in the node label; None if not known.
        mig_profile: Profile of a slice; None for whole GPUs.
        parallel: How one replica is spread over its GPUs, such as `tp8` or `tp4-pp2-ep`.
        user: ID of the user that the engine runs as; None for the image's own.
        arguments: What `keyed_arguments` says; None for nothing.
        generation: Raised each time a damaged cache is left behind.
    """

    version: str | None
    distribution: Distribution
    image: str
    architecture: str | None = None
    product: str | None = None
    mig_profile: str | None = None
    parallel: str = "tp1"
    user: int | None = None
    arguments: str | None = None
    generation: int = 0


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Where the caches are.

    `key` is the folder on the claim, at most 63 characters, valid as a label value. `parts` are what it was
    derived from, each with the reason. `env` are the variables that put every cache there.
    """

    key: str
    parts: tuple[PlannedVariable, ...]
    env: tuple[PlannedVariable, ...]


def plan_cache(origin: CacheOrigin, caches: Caches) -> CachePlan:
    """Derive the cache key and the variables that go with it. Equal arguments give equal results."""
    parts = _parts(origin)
    variables = caches.variables_of(origin.version, origin.distribution)
    return CachePlan(key=_key(_readable(origin), parts), parts=parts, env=variables)


def keyed_arguments(arguments: Mapping[str, str | None], caches: Caches) -> str | None:
    """The user's flags that change what is compiled and are missing in vLLM's own keys; None without any, a digest for a long text."""
    flags = sorted((flag, value) for flag, value in arguments.items() if flag.partition(".")[0] in caches.keyed_arguments)
    text = " ".join(flag if value is None else f"{flag}={value}" for flag, value in flags)
    if not flags:
        return None
    return text if len(text) <= _MAX_VALUE_LENGTH else _digest([[flag, value or ""] for flag, value in flags])


def per_pod_notes(env: Iterable[EnvironmentVariable], caches: Caches) -> tuple[str, ...]:
    """Say which of the user's variables make every start a cold one, because their values differ from Pod to Pod."""
    return tuple(
        f"{variable.name} has another value in each Pod (fieldRef), and vLLM makes it part of the keys of its compiled artifacts: no Pod "
        f"finds those of another. Pass it as a flag, if there is one, or set it in the Pod's command."
        for variable in env
        if variable.name.startswith("VLLM_") and variable.name not in caches.per_pod_allowed and "fieldRef" in (variable.value_from or {})
    )


def key_with_image(plan: Plan, image: str) -> str:
    """The key of a plan as it would be with this image (a reference or a digest), all else being equal."""
    values = [[part.name, image if part.name == "image" else part.value] for part in plan.cache_key_parts]
    return f"{plan.cache_key.rpartition('-')[0]}-{_digest(values)}"


def digest_of(image: str) -> str | None:
    """Return the digest that pins an image reference, or None."""
    _, at, digest = image.rpartition("@")
    return digest if at else None


def _parts(origin: CacheOrigin) -> tuple[PlannedVariable, ...]:
    """All that the key is derived from. Another order, or a part more or less, makes another key."""
    digest = digest_of(origin.image)
    of_image = _OF_IMAGE if digest else f"{_OF_IMAGE} A tag stands for it until a Pod has shown the digest."
    return (
        _part("distribution", origin.distribution.value, "Builds of vLLM have different kernels."),
        _part("version", _plain_version(origin), "Caches of one vLLM version are not read by another."),
        _part("image", digest or origin.image, of_image),
        _part("architecture", origin.architecture, "Kernels run on one GPU architecture only."),
        _part("product", origin.product, "PyTorch refuses artifacts built on a GPU of another name."),
        _part("migProfile", origin.mig_profile or "none", "A slice has other limits than the whole GPU."),
        _part("parallelism", origin.parallel, "Each rank has artifacts of its own."),
        *([_part("user", str(origin.user), "What one user has written another may not write.")] if origin.user is not None else []),
        *([_part("arguments", origin.arguments, _OF_ARGUMENTS)] if origin.arguments else []),
        _part("generation", str(origin.generation), "Raised when a damaged cache is left behind."),
    )


def _readable(origin: CacheOrigin) -> tuple[str, ...]:
    """The parts of the key that a person asks for."""
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
    digest = _digest([[part.name, part.value] for part in parts])
    text = re.sub(r"[^a-z0-9.]+", "-", "-".join(filter(None, readable)).lower())
    return f"{text[: MAX_KEY_LENGTH - _DIGEST_LENGTH - 1].strip('-.')}-{digest}"


def _digest(values: list[list[str]]) -> str:
    return hashlib.sha256(json.dumps(values, separators=(",", ":")).encode()).hexdigest()[:_DIGEST_LENGTH]


def _short_product(product: str | None) -> str:
    """Shorten the name of a GPU for people: `NVIDIA-H100-80GB-HBM3-MIG-1g.10gb` to `h100-80gb-hbm3`."""
    words = re.split(r"[^a-z0-9]+", re.sub(r"-(mig-.*|shared)$", "", (product or "").lower()))
    short = ""
    for word in words:
        if word in ("", "nvidia", "tesla"):
            continue
        if len(short) + 1 + len(word) > _MAX_PRODUCT_LENGTH:
            break
        short = f"{short}-{word}" if short else word
    return short
