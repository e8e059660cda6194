"""The vLLM version in the image: `spec.engine.version`, else the image tag.

A tag counts only if it is a vLLM release: `vllm/vllm-openai:v0.20.1`, `.../vllm:0.24.0-cu129`. `latest`, `nightly`, digests, NVIDIA's
calendar versions (25.09-py3), and tags of forks and of images with other names say nothing about the vLLM version. Then the user must set
it.
"""

import re
from dataclasses import dataclass, replace

from vllm_operator.api.conditions import Reason, Verdict
from vllm_operator.api.spec import Distribution, EngineSpec, ModelSpec
from vllm_operator.api.status import ConditionStatus
from vllm_operator.catalog.notes import Note
from vllm_operator.catalog.rules import Severity
from vllm_operator.catalog.versions import Versions, VersionTable, load_engine_facts, parse_release

DEFAULT_REPOSITORY = "vllm/vllm-openai"
NVLLM_IMAGE = "ghcr.io/navi-ai-lab/nvllm:latest"
FIRST_CALENDAR_YEAR = 20
"""A major from here on is a year: nvcr.io/nvidia/vllm:25.09-py3."""

_TAG = re.compile(r"^v?\d+\.\d+(\.\d+)?(\.?(post|rc|dev|a|b)\d+)?([-+._].*)?$")
_NUMBER = re.compile(r"^v?(\d+\.\d+(?:\.\d+)?(?:\.?(?:post|rc|dev|a|b)\d+)?)")


@dataclass(frozen=True, slots=True)
class ResolvedVersion:
    """The vLLM version of an image, and the table of the catalog for it.

    `table` is None for a version that is older than all known ones. Then only settings that are safe in every version are allowed.
    """

    version: str
    table: VersionTable | None
    image: str
    distribution: Distribution = Distribution.VLLM
    notes: tuple[Note, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the table belongs to exactly this version, not to a neighbour."""
        return self.table is not None and parse_release(self.version) == self.table.release


def split_image(image: str) -> tuple[str, str | None]:
    """Split an image reference into repository and tag. A digest is dropped."""
    name = image.partition("@")[0]
    repository, colon, tag = name.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (name, None)


def version_of_image(image: str) -> str | None:
    """Return the vLLM version in an image tag; None if the tag is not a vLLM release."""
    repository, tag = split_image(image)
    if tag is None or "vllm" not in repository.rpartition("/")[2].lower() or "nvllm" in repository.lower():
        return None
    release = parse_release(tag) if _TAG.match(tag) else None
    if release is None or release[0] >= FIRST_CALENDAR_YEAR:
        return None
    return _normalize(tag)


def resolve_version(engine: EngineSpec | None, versions: Versions) -> ResolvedVersion | Verdict:
    """Return the vLLM version, or a verdict that says how to set it."""
    engine = engine or EngineSpec()
    distribution = engine.distribution or Distribution.VLLM
    if engine.image is None and engine.version is None and distribution is Distribution.VLLM:
        version = versions.newest.version
        note = f"spec.engine has neither image nor version, so the operator uses vLLM {version}, the newest version in its catalog."
        image = f"{DEFAULT_REPOSITORY}:v{version}"
        return ResolvedVersion(version, versions.newest, image, distribution, (Note(Severity.INFO, note),))
    tagged = version_of_image(engine.image) if engine.image else None
    version = _normalize(engine.version) if engine.version else tagged or ""
    if not version:
        return _unknown(engine.image or NVLLM_IMAGE, distribution, versions)
    image = engine.image or (NVLLM_IMAGE if distribution is Distribution.NVLLM else f"{DEFAULT_REPOSITORY}:v{version}")
    resolution = versions.resolve(version)
    notes = [Note(Severity.INFO if resolution.table else Severity.RISK, resolution.note)] if resolution.note else []
    if tagged and parse_release(tagged) != parse_release(version):
        text = f"spec.engine.version is {version}, but the image tag is {tagged}. The operator plans for {version}. Correct one of the two."
        notes.append(Note(Severity.RISK, text))
    return ResolvedVersion(version, resolution.table, image, distribution, tuple(notes))


def check_source(model: ModelSpec, version: ResolvedVersion | Verdict) -> ResolvedVersion | Verdict:
    """Return the version with a note if the image may be unable to read the model; or a verdict without a version."""
    scheme = model.uri.partition("://")[0]
    since = load_engine_facts().object_stores.get(scheme)
    if since is None or isinstance(version, Verdict):
        return version
    release, least = parse_release(version.version), parse_release(since)
    if release is not None and least is not None and release < least:
        return Verdict(
            ConditionStatus.FALSE,
            Reason.INVALID_SPEC,
            f"vLLM {version.version} cannot read a model from {scheme}://; known versions from {since} on can. Set spec.engine.version, or "
            "copy the model to a PersistentVolumeClaim and use pvc://.",
        )
    if split_image(version.image)[0] == DEFAULT_REPOSITORY:
        return version
    text = f"The engine streams the weights from {scheme}:// with runai-model-streamer. Unlike those of vLLM, this image may lack it."
    return replace(version, notes=(*version.notes, Note(Severity.INFO, text)))


def _normalize(text: str) -> str:
    match = _NUMBER.match(text)
    assert match is not None  # the schema and _TAG exclude other values
    return match[1]


def _unknown(image: str, distribution: Distribution, versions: Versions) -> Verdict:
    why = (
        "nvLLM tags count releases of nvLLM, not the vLLM version that it is built from"
        if distribution is Distribution.NVLLM
        else f"the tag of image {image} is not a vLLM release"
    )
    return Verdict(
        ConditionStatus.FALSE,
        Reason.VERSION_UNKNOWN,
        f"The vLLM version is unknown: {why}. Set spec.engine.version to the vLLM version in the image, for example "
        f"{versions.newest.version}. To find it, run `python3 -c 'import vllm; print(vllm.__version__)'` in the image, or see the first "
        "log line of the engine.",
    )
