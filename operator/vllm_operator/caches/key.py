"""The cache key: which starts may share compiled files.

The key names a directory on the PVC. It is derived from exactly the inputs that make compiled files unusable when they change. It does not
contain the name of the VLLMDeployment, so an object that is deleted and created again finds its caches, nor the model, because the files of
a model have separate keys inside the directory.

Example: `v0.20.1-sm90-h100-80gb-hbm3-tp8-1f2e3d4c`. The readable parts are followed by a digest of all parts.
"""

import re
from collections.abc import Iterable, Mapping

from vllm_operator.api.plan import Plan, PlannedVariable
from vllm_operator.api.reading import digest
from vllm_operator.api.spec import Distribution, EnvironmentVariable
from vllm_operator.catalog.caches import Caches
from vllm_operator.catalog.notes import Note, note

MAX_KEY_LENGTH = 63
"""Maximum length of a label value and of the name part of an annotation. Keys are used as both."""
_DIGEST_LENGTH = 8
_MAX_PRODUCT_LENGTH = 16
_MAX_VALUE_LENGTH = 256
_UNKNOWN = "unknown"
_OF_ARGUMENTS = "These flags change what is compiled and are not part of vLLM's own keys."
_OF_IMAGE = "Compiled files depend on paths, compilers and libraries of the image."


def with_cache_key(
    plan: Plan, *, parallel: str, mig_profile: str | None, user: int | None, arguments: str | None = None, generation: int
) -> Plan:
    """Return a plan with its cache key, which depends on its image and GPU, and the parts of the key.

    `parallel` is the parallelism of one replica, such as `tp8` or `tp4-pp2-ep`; `user` the user ID of the engine (None for the default of
    the image); `arguments` the result of `keyed_arguments`; `generation` the number of quarantined directories before this one.
    """
    version = plan.engine_version.removeprefix("v") if plan.engine_version else None
    parts = _parts(plan, version, parallel, mig_profile, user, arguments, generation)
    readable = (
        "nvllm" if plan.distribution is Distribution.NVLLM else "",
        f"v{version}" if version else _UNKNOWN,
        (plan.architecture or "").replace("_", ""),
        _short_product(plan.product),
        mig_profile or "",
        parallel,
        "" if user is None else f"u{user}",
        f"g{generation}" if generation else "",
    )
    text = re.sub(r"[^a-z0-9.]+", "-", "-".join(filter(None, readable)).lower())
    digits = digest([[part.name, part.value] for part in parts], _DIGEST_LENGTH)
    key = f"{text[: MAX_KEY_LENGTH - _DIGEST_LENGTH - 1].strip('-.')}-{digits}"
    return plan.model_copy(update={"cache_key": key, "cache_key_parts": parts})


def keyed_arguments(arguments: Mapping[str, str | None], caches: Caches) -> str | None:
    """Return the user's flags that affect compilation and are missing in vLLM's own keys, as text, or a digest if it is long."""
    flags = sorted((flag, value) for flag, value in arguments.items() if flag.partition(".")[0] in caches.keyed_arguments)
    text = " ".join(flag if value is None else f"{flag}={value}" for flag, value in flags)
    if not flags:
        return None
    return text if len(text) <= _MAX_VALUE_LENGTH else digest([[flag, value or ""] for flag, value in flags], _DIGEST_LENGTH)


def per_pod_notes(env: Iterable[EnvironmentVariable], caches: Caches, version: str | None) -> list[Note]:
    """Return a note for each of the user's variables that makes every start cold because its value differs between Pods."""
    of_pod = (each.name for each in env if each.name.startswith("VLLM_") and "fieldRef" in (each.value_from or {}))
    return [note("cache-key.per-pod", name=name) for name in of_pod if not caches.per_pod_values.allows(name, version)]


def key_with_image(plan: Plan, image: str) -> str:
    """Return the key of a plan with another image (a reference or a digest)."""
    values = [[part.name, image if part.name == "image" else part.value] for part in plan.cache_key_parts]
    return f"{plan.cache_key.rpartition('-')[0]}-{digest(values, _DIGEST_LENGTH)}"


def digest_of_image(image: str) -> str | None:
    """Return the digest of an image reference; None if it has none."""
    _, at, found = image.rpartition("@")
    return found if at else None


def _parts(
    plan: Plan, version: str | None, parallel: str, mig_profile: str | None, user: int | None, arguments: str | None, generation: int
) -> list[PlannedVariable]:
    """Return the parts of the key. Adding, removing or reordering parts changes all keys."""
    image_digest = digest_of_image(plan.image)
    of_image = _OF_IMAGE if image_digest else f"{_OF_IMAGE} The tag is used until a Pod reports the digest."
    parts = (
        ("distribution", plan.distribution.value, "Builds of vLLM have different kernels."),
        ("version", version, "A vLLM version does not read the caches of another one."),
        ("image", image_digest or plan.image, of_image),
        ("architecture", plan.architecture, "Kernels run on one GPU architecture only."),
        ("product", plan.product, "PyTorch refuses artifacts that were built on a GPU with another name."),
        ("migProfile", mig_profile or "none", "A MIG slice has other limits than the whole GPU."),
        ("parallelism", parallel, "Each rank has its own artifacts."),
        *([("user", str(user), "A user cannot change the files of another user.")] if user is not None else []),
        *([("arguments", arguments, _OF_ARGUMENTS)] if arguments else []),
        ("generation", str(generation), "Raised when a damaged cache is quarantined."),
    )
    return [PlannedVariable(name=name, value=value or _UNKNOWN, reason=reason) for name, value, reason in parts]


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
