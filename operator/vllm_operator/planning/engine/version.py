"""Which vLLM the image holds: from `spec.engine.version`, else from the image's tag.

A tag is trusted only where it counts vLLM's releases: `vllm/vllm-openai:v0.20.1`, `.../vllm:0.24.0-cu129`.
`latest`, `nightly`, a digest, NVIDIA's calendar versions (25.09-py3), tags of images with another name and
tags of forks say nothing about vLLM's version; then the user has to.
"""

import re
from dataclasses import dataclass

from vllm_operator.api.conditions import Reason
from vllm_operator.api.spec import Distribution, EngineSpec
from vllm_operator.api.status import ConditionStatus
from vllm_operator.catalog.versions import Versions, VersionTable, parse_release
from vllm_operator.planning.outcome import Verdict

DEFAULT_REPOSITORY = "vllm/vllm-openai"
NVLLM_IMAGE = "ghcr.io/navi-ai-lab/nvllm:latest"
FIRST_CALENDAR_YEAR = 20
"""Majors from here on are years: nvcr.io/nvidia/vllm:25.09-py3."""

_TAG = re.compile(r"^v?\d+\.\d+(\.\d+)?(\.?(post|rc|dev|a|b)\d+)?([-+._].*)?$")
_NUMBER = re.compile(r"^v?(\d+\.\d+(?:\.\d+)?(?:\.?(?:post|rc|dev|a|b)\d+)?)")


@dataclass(frozen=True, slots=True)
class ResolvedVersion:
    """The vLLM version of an image, and the table that stands for it.

    `table` is None for a version older than all known ones: then only what is safe everywhere may be set.
    """

    version: str
    table: VersionTable | None
    image: str
    distribution: Distribution = Distribution.VLLM
    notes: tuple[str, ...] = ()


def split_image(image: str) -> tuple[str, str | None]:
    """Split an image reference into repository and tag; a digest is dropped."""
    name = image.partition("@")[0]
    repository, colon, tag = name.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (name, None)


def version_of_image(image: str) -> str | None:
    """Read the vLLM version out of an image's tag; None if the tag does not tell."""
    repository, tag = split_image(image)
    if tag is None or "vllm" not in repository.rpartition("/")[2].lower() or "nvllm" in repository.lower():
        return None
    release = parse_release(tag) if _TAG.match(tag) else None
    if release is None or release[0] >= FIRST_CALENDAR_YEAR:
        return None
    return _normalize(tag)


def resolve_version(engine: EngineSpec | None, versions: Versions) -> ResolvedVersion | Verdict:
    """Find out the vLLM version, or say how to give it."""
    engine = engine or EngineSpec()
    distribution = engine.distribution or Distribution.VLLM
    if engine.image is None and engine.version is None and distribution is Distribution.VLLM:
        version = versions.newest.version
        note = f"Neither image nor version is given: vLLM {version}, the newest version that this operator knows, is used."
        return ResolvedVersion(version, versions.newest, f"{DEFAULT_REPOSITORY}:v{version}", distribution, (note,))
    tagged = version_of_image(engine.image) if engine.image else None
    version = _normalize(engine.version) if engine.version else tagged or ""
    if not version:
        return _unknown(engine.image or NVLLM_IMAGE, distribution, versions)
    image = engine.image or (NVLLM_IMAGE if distribution is Distribution.NVLLM else f"{DEFAULT_REPOSITORY}:v{version}")
    resolution = versions.resolve(version)
    notes = [resolution.note] if resolution.note else []
    if tagged and parse_release(tagged) != parse_release(version):
        notes.append(f"spec.engine.version says {version}, the image tag says {tagged}: {version} is used.")
    return ResolvedVersion(version, resolution.table, image, distribution, tuple(notes))


def _normalize(text: str) -> str:
    match = _NUMBER.match(text)
    assert match is not None  # the schema and _TAG let nothing else through
    return match[1]


def _unknown(image: str, distribution: Distribution, versions: Versions) -> Verdict:
    why = (
        "the tags of nvLLM count nvLLM's own releases, not the vLLM version it is built from"
        if distribution is Distribution.NVLLM
        else f"the tag of image {image} does not tell it"
    )
    return Verdict(
        ConditionStatus.FALSE,
        Reason.VERSION_UNKNOWN,
        f"The vLLM version is not known: {why}. Set spec.engine.version to the vLLM version in the image, for example "
        f"{versions.newest.version} (the engine prints it in its first log line; "
        "`python3 -c 'import vllm; print(vllm.__version__)'` in the image prints it too).",
    )
