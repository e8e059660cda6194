"""The image of the engine, the vLLM version in it, and its compatibility with the GPU driver of the nodes.

The version is `spec.engine.version`, else the image tag, which counts only if it is a vLLM release: `vllm/vllm-openai:v0.20.1`,
`.../vllm:0.24.0-cu129`. `latest`, `nightly`, digests, NVIDIA's calendar versions (25.09-py3), and tags of forks, of other products that
contain vLLM (LMCache) and of images with other names say nothing about the vLLM version. Then the user must set it.

Without an image in the spec, the operator takes the image of the vLLM project with a CUDA version that the driver supports: an older or
unknown driver gets the variant with CUDA 12 instead of 13. An image in the spec is accepted or refused.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_operator.api.conditions import Reason, Verdict
from vllm_operator.api.labels import ALLOW_KNOWN_BAD_ANNOTATION
from vllm_operator.api.plan import PlannedVariable
from vllm_operator.api.spec import Distribution, EngineSpec, ModelSpec
from vllm_operator.api.status import ConditionStatus
from vllm_operator.catalog.gpus import GPUs, Images, Version, cuda_of_tag, parse_version
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.notes import Note, note, say
from vllm_operator.catalog.rules import Severity
from vllm_operator.catalog.versions import Versions, VersionTable, load_engine_facts, parse_release
from vllm_operator.inventory.pools import Pool
from vllm_operator.text.wording import listed

ALLOW_ANYWAY = f'To start it anyway, set the annotation {ALLOW_KNOWN_BAD_ANNOTATION} to "true".'
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
    path = f"/{repository}".lower()
    if tag is None or "vllm" not in path.rpartition("/")[2] or any(part in path for part in load_engine_facts().foreign_tags):
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
        notes = (note("version.newest", version=version),)
        return ResolvedVersion(version, versions.newest, f"{DEFAULT_REPOSITORY}:v{version}", distribution, notes)
    tagged = version_of_image(engine.image) if engine.image else None
    version = _normalize(engine.version) if engine.version else tagged or ""
    if not version:
        image, newest = engine.image or NVLLM_IMAGE, versions.newest.version
        why = say("version.nvllm-tag") if distribution is Distribution.NVLLM else f"the tag of image {image} is not a vLLM release"
        return Verdict(ConditionStatus.FALSE, Reason.VERSION_UNKNOWN, say("version.unknown", why=why, newest=newest))
    image = engine.image or (NVLLM_IMAGE if distribution is Distribution.NVLLM else f"{DEFAULT_REPOSITORY}:v{version}")
    resolution = versions.resolve(version)
    found = [Note(Severity.INFO if resolution.table else Severity.RISK, resolution.note)] if resolution.note else []
    if tagged and parse_release(tagged) != parse_release(version):
        found.append(note("version.differs", version=version, tagged=tagged))
    return ResolvedVersion(version, resolution.table, image, distribution, tuple(found))


def check_source(model: ModelSpec, version: ResolvedVersion | Verdict) -> ResolvedVersion | Verdict:
    """Return the version with a note if the image may be unable to read the model; or a verdict without a version."""
    scheme = model.uri.partition("://")[0]
    since = load_engine_facts().object_stores.get(scheme)
    if since is None or isinstance(version, Verdict):
        return version
    release, least = parse_release(version.version), parse_release(since)
    if release is not None and least is not None and release < least:
        message = say("version.no-object-store", version=version.version, scheme=scheme, since=since)
        return Verdict(ConditionStatus.FALSE, Reason.INVALID_SPEC, message)
    if split_image(version.image)[0] == DEFAULT_REPOSITORY:
        return version
    return replace(version, notes=(*version.notes, note("version.streamer", scheme=scheme)))


def check_platform(image: str | None, version: ResolvedVersion | Verdict, images: Images, *, forced: bool) -> ResolvedVersion | Verdict:
    """Refuse an image of the spec that is not for NVIDIA GPUs; with `forced`, return the version with a note."""
    devices = images.other_devices(image) if image else None
    if devices is None or (forced and isinstance(version, Verdict)):
        return version
    found = note("image.other-platform", image=image, devices=devices)
    if forced and isinstance(version, ResolvedVersion):
        return replace(version, notes=(*version.notes, found))
    return Verdict(ConditionStatus.FALSE, Reason.KNOWN_BAD, f"{found.text} {ALLOW_ANYWAY}")


def _normalize(text: str) -> str:
    match = _NUMBER.match(text)
    assert match is not None  # the schema and _TAG exclude other values
    return match[1]


MINOR_COMPATIBILITY_FLOOR: Version = (12, 8)
"""Minimum CUDA version of the driver for GPUs without forward compatibility. Below it, the driver check in the image fails."""


@dataclass(frozen=True, slots=True)
class ImageOption:
    """A possible image, and its CUDA version; None if unknown."""

    image: str
    cuda: Version | None


@dataclass(frozen=True, slots=True)
class ImageFit:
    """Compatibility of an image with the driver and the GPU of a pool.

    `problem` is the incompatibility, and `remedy` the user's option. `compatibility`: the image's forward compatibility package must be
    loaded.
    """

    option: ImageOption
    problem: str | None = None
    remedy: str | None = None
    compatibility: bool = False
    note: Note | None = None

    @property
    def clean(self) -> bool:
        """Whether there is neither a problem nor a note."""
        return self.problem is None and self.note is None


def image_options(engine: EngineSpec | None, resolved: ResolvedVersion, images: Images) -> tuple[ImageOption, ...]:
    """Return the possible images, the preferred one first: the image in the spec, or those of the vLLM project."""
    image, table = resolved.image, resolved.table
    built_with = parse_version(table.bundle.cuda) if table and table.bundle.cuda and images.is_official(image) else None
    # A digest can be that of any image of a release.
    default = ImageOption(image, cuda_of_tag(image) or (None if "@" in image else built_with))
    if (engine and engine.image) or not image.startswith(f"{images.repository}:"):
        return (default,)
    return (default, *(ImageOption(image + variant.suffix, variant.cuda) for variant in images.variants_of(resolved.version)))


def fit_image(options: Sequence[ImageOption], pool: Pool, catalog: Catalog, *, forced: bool, compatible: bool) -> ImageFit:
    """Return the first option without problem and note, else the first without problem, else the first.

    `forced`: whether the user allows an image that is known to be incompatible with the driver. Such an image is the last resort, because
    the annotation may have another reason. `compatible`: whether this vLLM version can load the forward compatibility package.
    """
    if pool.cuda is None and pool.driver is None:  # an older CUDA runs on more nodes; among equal ones, the image of the release
        options = sorted(options, key=lambda option: option.cuda[0] if option.cuda else 0)
    nodes = _Nodes(pool, catalog.gpus, catalog.images, compatible=compatible)
    fits = [nodes.fit(option) for option in options]
    if forced:
        fits.append(nodes.fit(options[0], forced=True))
    return next((fit for fit in fits if fit.clean), None) or next((fit for fit in fits if fit.problem is None), fits[0])


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The GPU and the driver of nodes."""

    pool: Pool
    gpus: GPUs
    images: Images
    compatible: bool

    def fit(self, option: ImageOption, *, forced: bool = False) -> ImageFit:
        if option.cuda is None:
            return ImageFit(option)
        built = f"{option.image} is built with CUDA {show_version(option.cuda)}"
        known = self.gpus.architectures.get(self.pool.architecture or "")
        if known is not None and option.cuda < known.cuda:
            remedy = say("image.newer-cuda", cuda=show_version(known.cuda))
            return ImageFit(option, f"{built}, which does not support {known.name}", remedy)
        if known is not None and known.cuda_before is not None and option.cuda >= known.cuda_before:
            remedy = say("image.older-cuda", cuda=show_version(known.cuda_before))
            return ImageFit(option, f"{built}, which no longer supports {known.name}", remedy)
        if self.pool.cuda is None:
            return self._by_driver_branch(option, option.cuda, forced=forced)
        if self.pool.cuda >= option.cuda:
            return ImageFit(option)
        older = f"{built}, but the GPU driver supports CUDA {show_version(self.pool.cuda)}"
        return self._on_older_driver(option, option.cuda, self.pool.cuda, older, forced=forced)

    def _by_driver_branch(self, option: ImageOption, cuda: Version, *, forced: bool) -> ImageFit:
        """Check by the driver branch, which determines the CUDA major, if the CUDA version of the driver is unknown."""
        needed = self.images.drivers.get(cuda[0])
        if self.pool.driver is None or needed is None or self.pool.driver[0] >= needed or forced:
            return ImageFit(option)
        problem = f"{option.image} needs GPU driver {needed} or later, but the nodes have {show_version(self.pool.driver)}"
        return ImageFit(option, problem, self._remedy(cuda))

    def _on_older_driver(self, option: ImageOption, cuda: Version, supported: Version, older: str, *, forced: bool) -> ImageFit:
        product = self.gpus.product(self.pool.product)
        data_center = product is not None and product.data_center
        if cuda[0] != supported[0]:
            if forced:
                return ImageFit(option, note=note("image.forced", problem=older, remedy=self._remedy(cuda)))
            return ImageFit(option, older, self._remedy(cuda, load_package=data_center and self.compatible))
        if data_center and self.compatible:
            return ImageFit(option, compatibility=True, note=note("image.compatibility", problem=older))
        if data_center or forced or supported >= MINOR_COMPATIBILITY_FLOOR:
            return ImageFit(option, note=note("image.older-driver", problem=older, update=self._update(cuda)))
        return ImageFit(option, older, self._remedy(cuda))

    def _remedy(self, cuda: Version, *, load_package: bool = False) -> str:
        parts = [self._update(cuda)]
        if cuda[0] >= 13:
            parts += ["use an image with CUDA 12 (its tag ends in -cu129)", "remove spec.engine.image"]
        if load_package:
            parts.append(f'set {self.images.compatibility.variable}="1" in spec.engine.env to try the forward compatibility package')
        return f"{listed(parts, 'or')}."

    def _update(self, cuda: Version) -> str:
        driver = self.images.drivers.get(cuda[0])
        if driver is None or (self.pool.cuda is not None and self.pool.cuda[0] == cuda[0]):
            return f"Update the GPU driver to one that supports CUDA {show_version(cuda)}"
        return f"Update the GPU driver to {driver} or later"


def show_version(version: Version) -> str:
    """Return (12, 8) as 12.8."""
    return ".".join(str(part) for part in version)


def compatibility_variables(fit: ImageFit, images: Images) -> list[PlannedVariable]:
    """Return the variable that loads the forward compatibility package, if the image needs it."""
    reason = "The GPU driver is older than the CUDA version of the image."
    variable = PlannedVariable(name=images.compatibility.variable, value="1", reason=reason)
    return [variable] if fit.compatibility else []
