"""The choice of image, and its compatibility with the GPU driver of the nodes.

Without an image in the spec, the operator takes the image of the vLLM project with a CUDA version that the driver supports: an older or
unknown driver gets the variant with CUDA 12 instead of 13. An image in the spec is accepted or refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_operator.api.plan import PlannedVariable
from vllm_operator.api.spec import EngineSpec
from vllm_operator.catalog.gpus import GPUs, Images, Version, cuda_of_tag, parse_version
from vllm_operator.catalog.notes import Note
from vllm_operator.catalog.rules import Severity
from vllm_operator.inventory.pools import Pool
from vllm_operator.planning.engine.version import ResolvedVersion
from vllm_operator.text.wording import listed

MINOR_COMPATIBILITY_FLOOR: Version = (12, 8)
"""Minimum CUDA version of the driver for GPUs without forward compatibility. Below it, the driver check in the image fails."""


@dataclass(frozen=True, slots=True)
class ImageOption:
    """A possible image, and its CUDA version; None if unknown."""

    image: str
    cuda: Version | None


@dataclass(frozen=True, slots=True)
class Fit:
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


def fit_image(options: Sequence[ImageOption], pool: Pool, gpus: GPUs, images: Images, *, forced: bool, compatible: bool) -> Fit:
    """Return the first option without problem and note, else the first without problem, else the first.

    Args:
        options: At least one.
        pool: The nodes.
        gpus: The GPUs of the catalog.
        images: The images of the catalog.
        forced: Whether the user allows an image that is known to be incompatible with the driver. Such an image is the last resort, because
            the annotation may have another reason.
        compatible: Whether this vLLM version can load the forward compatibility package.
    """
    if pool.cuda is None and pool.driver is None:  # an older CUDA runs on more nodes; among equal ones, the image of the release
        options = sorted(options, key=lambda option: option.cuda[0] if option.cuda else 0)
    judge = _Judge(pool, gpus, images, compatible=compatible)
    fits = [judge.fit(option) for option in options]
    if forced:
        fits.append(judge.fit(options[0], forced=True))
    return next((fit for fit in fits if fit.clean), None) or next((fit for fit in fits if fit.problem is None), fits[0])


@dataclass(frozen=True, slots=True)
class _Judge:
    pool: Pool
    gpus: GPUs
    images: Images
    compatible: bool

    def fit(self, option: ImageOption, *, forced: bool = False) -> Fit:
        if option.cuda is None:
            return Fit(option)
        image_cuda = show_version(option.cuda)
        architecture = self.gpus.architectures.get(self.pool.architecture or "")
        if architecture is not None and option.cuda < architecture.cuda:
            floor = show_version(architecture.cuda)
            return Fit(
                option,
                problem=f"{option.image} is built with CUDA {image_cuda}, which does not support {architecture.name}",
                remedy=f"Use an image with CUDA {floor} or later, for example of a newer vLLM version.",
            )
        if architecture is not None and architecture.cuda_before is not None and option.cuda >= architecture.cuda_before:
            ceiling = show_version(architecture.cuda_before)
            return Fit(
                option,
                problem=f"{option.image} is built with CUDA {image_cuda}, which no longer supports {architecture.name}",
                remedy=f"Use an image with CUDA before {ceiling}, for example of an older vLLM version, or newer GPUs.",
            )
        if self.pool.cuda is None:
            return self._by_driver_branch(option, option.cuda, forced=forced)
        if self.pool.cuda >= option.cuda:
            return Fit(option)
        return self._on_older_driver(option, option.cuda, self.pool.cuda, forced=forced)

    def _by_driver_branch(self, option: ImageOption, cuda: Version, *, forced: bool) -> Fit:
        """Check by the driver branch, which determines the CUDA major, if the CUDA version of the driver is unknown."""
        needed = self.images.drivers.get(cuda[0])
        if self.pool.driver is None or needed is None or self.pool.driver[0] >= needed or forced:
            return Fit(option)
        problem = f"{option.image} needs GPU driver {needed} or later, but the nodes have {show_version(self.pool.driver)}"
        return Fit(option, problem=problem, remedy=self._remedy(cuda))

    def _on_older_driver(self, option: ImageOption, cuda: Version, supported: Version, *, forced: bool) -> Fit:
        product = self.gpus.product(self.pool.product)
        data_center = product is not None and product.data_center
        what = f"{option.image} is built with CUDA {show_version(cuda)}, but the GPU driver supports CUDA {show_version(supported)}"
        if cuda[0] != supported[0]:
            if forced:
                note = Note(Severity.FAILURE, f"{what}. It starts anyway, as requested. {self._remedy(cuda)}")
                return Fit(option, note=note)
            return Fit(option, problem=what, remedy=self._remedy(cuda, load_package=data_center and self.compatible))
        if data_center and self.compatible:
            note = Note(Severity.INFO, f"{what}. The engine loads the forward compatibility package of the image.")
            return Fit(option, compatibility=True, note=note)
        if data_center or forced or supported >= MINOR_COMPATIBILITY_FLOOR:
            text = (
                f"{what}. The engine fails if a kernel has to be compiled by the driver (the provided PTX was compiled with an unsupported "
                f"toolchain). {self._update(cuda)}."
            )
            return Fit(option, note=Note(Severity.RISK, text))
        return Fit(option, problem=what, remedy=self._remedy(cuda))

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


def compatibility_variables(fit: Fit, images: Images) -> list[PlannedVariable]:
    """Return the variable that loads the forward compatibility package, if the image needs it."""
    if not fit.compatibility:
        return []
    reason = "The GPU driver is older than the CUDA version of the image."
    return [PlannedVariable(name=images.compatibility.variable, value="1", reason=reason)]
