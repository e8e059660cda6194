"""The image of the engine, the vLLM version in it, and its compatibility with the GPU driver of the nodes.

The version is `spec.engine.version`, else the image tag, which counts only if it is a vLLM release: `vllm/vllm-openai:v0.20.1`,
`.../vllm:0.24.0-cu129`; for known tags of products that contain vLLM (Dynamo, llm-d, NVIDIA's containers), it is in the catalog. `latest`,
`nightly`, digests, and other tags of forks, of such products and of images with other names say nothing. Then the user must set it.

Without an image in the spec, the operator takes the image of the vLLM project with a CUDA version that the driver supports: an older or
unknown driver gets the variant with CUDA 12 instead of 13. An image in the spec is accepted or refused.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from vllm_operator.api.conditions import FALSE, Reason, Verdict
from vllm_operator.api.labels import ALLOW_UNSUPPORTED_ANNOTATION
from vllm_operator.api.plan import PlannedVariable
from vllm_operator.api.spec import Distribution, EngineSpec, ModelSpec
from vllm_operator.catalog.gpus import Images, Version, cuda_of_tag, read_version
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.notes import Note, Severity, note, say
from vllm_operator.catalog.versions import Versions, VersionTable, load_engine_facts, parse_release
from vllm_operator.inventory.pools import Pool
from vllm_operator.text.wording import listed

ALLOW_ANYWAY = f'To start it anyway, set the annotation {ALLOW_UNSUPPORTED_ANNOTATION} to "true": it will probably crash and keep its GPUs.'
DEFAULT_REPOSITORY = "vllm/vllm-openai"
NVLLM_IMAGE = "ghcr.io/navi-ai-lab/nvllm:latest"
FIRST_CALENDAR_YEAR = 20
"""A major from here on is a year: nvcr.io/nvidia/vllm:25.09-py3."""

_TAG = re.compile(r"^v?\d+(\.\d+){1,3}(\.?(post|rc|dev|a|b)\d+)?([-+._].*)?$")
_NUMBER = re.compile(r"^v?(\d+(?:\.\d+){1,2}(?:\.[1-9]\d*)?(?:\.?(?:post|rc|dev|a|b)\d+)?)")


@dataclass(frozen=True, slots=True)
class ResolvedVersion:
    """The vLLM version of an image. Without a table, it is older than all known ones: only settings of every version are allowed."""

    version: str
    table: VersionTable | None = field(hash=False)
    image: str
    distribution: Distribution = Distribution.VLLM
    notes: tuple[Note, ...] = ()
    is_read: bool = False
    """Whether the table was read from the image."""

    @property
    def is_known(self) -> bool:
        """Whether the table belongs to exactly this version, not to a neighbour."""
        return self.table is not None and self.version.removeprefix("v") == self.table.version

    @property
    def has_exact_names(self) -> bool:
        """Whether a name that is not in the table does not exist."""
        return self.is_read or (self.is_known and self.distribution is Distribution.VLLM)


def split_image(image: str) -> tuple[str, str | None]:
    """Split an image reference into repository and tag. A digest is dropped."""
    name = image.partition("@")[0]
    repository, colon, tag = name.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (name, None)


def version_of_image(image: str) -> str | None:
    """Return the vLLM version that an image's tag stands for; None if it is not a vLLM release, nor a known one of another product."""
    repository, tag = split_image(image)
    path = f"/{repository}".lower()
    if tag is None:
        return None
    if product := next((each for each in load_engine_facts().other_products if any(part in path for part in each.images)), None):
        starts = [start for start in product.versions if re.match(rf"v?{re.escape(start)}(?![0-9A-Za-z])(?!.*dev)", tag)]
        return _normalize(product.versions[max(starts, key=len)]) if starts else None
    release = parse_release(tag) if "vllm" in path.rpartition("/")[2] and _TAG.match(tag) else None
    if release is None or release[0] >= FIRST_CALENDAR_YEAR:
        return None
    return _normalize(tag)


def resolve_version(engine: EngineSpec | None, versions: Versions) -> ResolvedVersion | Verdict:
    """Return the vLLM version, or a verdict that says how to set it."""
    engine = engine or EngineSpec()
    distribution = engine.distribution or Distribution.VLLM
    newest = versions.newest.version
    tagged = version_of_image(engine.image) if engine.image else None
    build, given = versions.build, _normalize(engine.version) if engine.version else versions.built or tagged
    version, found = (versions.complete(given) if given else None), list[Note]()
    if given is not None and version is None:
        return Verdict(FALSE, Reason.INVALID_SPEC, say("version.incomplete", version=given, newest=newest))
    if given is not None and version != given:
        found.append(note("version.completed", given=given, version=version))
    if version is None and engine.image is None and distribution is Distribution.VLLM:
        version, found = newest, [note("version.newest", version=newest)]
    if version is None:
        is_nvllm, image = distribution is Distribution.NVLLM, engine.image or NVLLM_IMAGE
        why = say("version.nvllm-tag") if is_nvllm else f"the tag of image {image} is not a vLLM release"
        return Verdict(FALSE, Reason.VERSION_UNKNOWN, say("version.unknown", why=why, image=image))
    image = engine.image or (NVLLM_IMAGE if distribution is Distribution.NVLLM else f"{DEFAULT_REPOSITORY}:v{version}")
    resolution = versions.resolve(version)
    found += [Note(Severity.INFO if resolution.table else Severity.RISK, resolution.note)] if resolution.note else []
    if resolution.note and engine.image is None and distribution is Distribution.VLLM:
        found.append(note("version.guessed-image", image=image))
    if build is not None and resolution.table is not None:
        found.append(note("version.read", build=build.version, version=resolution.table.version))
    elif tagged and parse_release(versions.complete(tagged) or tagged) != parse_release(version):
        found.append(note("version.differs", version=version, tagged=tagged))
    return ResolvedVersion(version, resolution.table, image, distribution, tuple(found), build is not None)


def check_image(
    image: str | None, model: ModelSpec, version: ResolvedVersion | Verdict, images: Images, *, resources: Iterable[str], forced: bool
) -> ResolvedVersion | Verdict:
    """Add notes about the image; refuse it, or the user's `resources`, if they are for other devices (unless `forced`), or cannot work."""
    if (foreign := next((name for name in resources if images.devices_of(name) is not None), None)) is not None:
        return Verdict(FALSE, Reason.UNSUPPORTED, say("image.other-resource", resource=foreign, devices=images.devices_of(foreign)))
    devices = images.other_devices(image) if image else None
    notes = [note("image.other-platform", image=image, devices=devices)] if devices is not None else []
    if notes and not forced:
        return Verdict(FALSE, Reason.UNSUPPORTED, f"{notes[0].text} {ALLOW_ANYWAY}")
    scheme = model.uri.partition("://")[0]
    since = load_engine_facts().object_stores.get(scheme)
    if isinstance(version, Verdict):
        return version
    if since is not None and (parse_release(version.version) or (0, 0, 0)) < since:
        message = say("version.no-object-store", version=version.version, scheme=scheme, since=".".join(map(str, since)))
        return Verdict(FALSE, Reason.INVALID_SPEC, message)
    if since is not None and split_image(version.image)[0] != DEFAULT_REPOSITORY:
        notes.insert(0, note("version.streamer", scheme=scheme))
    return replace(version, notes=(*version.notes, *notes))


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
    """Whether an image suits GPU and driver. `remedy` solves a problem; `compatibility`: load its forward compatibility package."""

    option: ImageOption
    problem: str | None = None
    remedy: str | None = None
    compatibility: bool = False
    note: Note | None = None

    @property
    def clean(self) -> bool:
        """Whether there is neither a problem nor a note."""
        return self.problem is None and self.note is None


def image_options(given: str | None, resolved: ResolvedVersion, images: Images) -> tuple[ImageOption, ...]:
    """Return the possible images, the preferred one first: the image of the user, or those of the vLLM project."""
    image, table = resolved.image, resolved.table
    built_with = read_version(table.bundle.cuda) if table and images.is_official(image) else None
    # A digest can be that of any image of a release.
    default = ImageOption(image, cuda_of_tag(image) or (None if "@" in image else built_with))
    if given or not image.startswith(f"{images.repository}:"):
        return (default,)
    return (default, *(ImageOption(image + variant.suffix, variant.cuda) for variant in images.variants_of(resolved.version)))


def fit_image(options: Sequence[ImageOption], pool: Pool, catalog: Catalog, *, forced: bool, compatible: bool) -> ImageFit:
    """Return the first clean option, else the first without problem, else the first. A forced image is the last resort."""
    if pool.cuda is None and pool.driver is None:  # an older CUDA runs on more nodes; among equal ones, the image of the release
        options = sorted(options, key=lambda option: option.cuda[0] if option.cuda else 0)
    fits = [_fit(option, pool, catalog, forced=False, compatible=compatible) for option in options]
    if forced:
        fits.append(_fit(options[0], pool, catalog, forced=True, compatible=compatible))
    return next((fit for fit in fits if fit.clean), None) or next((fit for fit in fits if fit.problem is None), fits[0])


def _fit(option: ImageOption, pool: Pool, catalog: Catalog, *, forced: bool, compatible: bool) -> ImageFit:
    cuda, known = option.cuda, catalog.gpus.architectures.get(pool.architecture or "")
    if cuda is None:
        return ImageFit(option)
    built = f"{option.image} is built with CUDA {show_version(cuda)}"
    if known is not None and cuda < known.cuda:
        return ImageFit(option, f"{built}, which does not support {known.name}", say("image.newer-cuda", cuda=show_version(known.cuda)))
    if known is not None and known.cuda_before is not None and cuda >= known.cuda_before:
        remedy = say("image.older-cuda", cuda=show_version(known.cuda_before))
        return ImageFit(option, f"{built}, which no longer supports {known.name}", remedy)
    if pool.cuda is None:  # the driver branch determines the CUDA major
        needed = catalog.images.drivers.get(cuda[0])
        if pool.driver is None or needed is None or pool.driver[0] >= needed or forced:
            return ImageFit(option)
        problem = f"{option.image} needs GPU driver {needed} or later, but the nodes have {show_version(pool.driver)}"
        return ImageFit(option, problem, _remedy(cuda, pool, catalog.images))
    if pool.cuda >= cuda:
        return ImageFit(option)
    product, problem = catalog.gpus.product(pool.product), f"{built}, but the GPU driver supports CUDA {show_version(pool.cuda)}"
    data_center = product is not None and product.data_center
    if cuda[0] != pool.cuda[0] and forced:
        return ImageFit(option, note=note("image.forced", problem=problem, remedy=_remedy(cuda, pool, catalog.images)))
    if cuda[0] != pool.cuda[0]:
        return ImageFit(option, problem, _remedy(cuda, pool, catalog.images, load_package=data_center and compatible))
    if data_center and compatible:
        return ImageFit(option, compatibility=True)
    if data_center or forced or pool.cuda >= MINOR_COMPATIBILITY_FLOOR:
        return ImageFit(option, note=note("image.older-driver", problem=problem, update=_update(cuda, pool, catalog.images)))
    return ImageFit(option, problem, _remedy(cuda, pool, catalog.images))


def _remedy(cuda: Version, pool: Pool, images: Images, *, load_package: bool = False) -> str:
    parts = [_update(cuda, pool, images)]
    if cuda[0] >= 13:
        parts += ["use an image with CUDA 12 (its tag ends in -cu129)", "remove spec.engine.image"]
    if load_package:
        parts.append(f'set {images.compatibility_variable}="1" in spec.engine.env to try the forward compatibility package')
    return f"{listed(parts, 'or')}."


def _update(cuda: Version, pool: Pool, images: Images) -> str:
    driver = images.drivers.get(cuda[0])
    by_cuda = driver is None or (pool.cuda is not None and pool.cuda[0] == cuda[0])
    return f"Update the GPU driver to {f'one that supports CUDA {show_version(cuda)}' if by_cuda else f'{driver} or later'}"


def show_version(version: Version) -> str:
    """Return (12, 8) as 12.8."""
    return ".".join(str(part) for part in version)


def compatibility_variables(fit: ImageFit, images: Images) -> list[PlannedVariable]:
    """Return the variable that loads the forward compatibility package, if the image needs it."""
    reason = "The GPU driver is older than the CUDA version of the image, whose forward compatibility package replaces it."
    return [PlannedVariable(name=images.compatibility_variable, value="1", reason=reason)] if fit.compatibility else []
