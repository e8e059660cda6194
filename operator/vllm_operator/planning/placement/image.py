"""Which image, and whether a node's driver runs it.

Where the user names no image, the vLLM project's image is taken whose CUDA the driver of the node runs: a driver
that is too old for CUDA 13 gets the variant with CUDA 12. Where the user names one, it is taken or refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_operator.api.spec import EngineSpec
from vllm_operator.catalog.gpus import GPUs, Version, parse_version
from vllm_operator.catalog.images import Images, cuda_of_tag
from vllm_operator.planning.engine.version import ResolvedVersion
from vllm_operator.planning.inventory.pools import Pool

MINOR_COMPATIBILITY_FLOOR: Version = (12, 8)
"""Below this, cards without forward compatibility are refused: the images' own check of the driver fails there."""


@dataclass(frozen=True, slots=True)
class ImageOption:
    """An image that may be used, and the CUDA version inside; None if that is not known."""

    image: str
    cuda: Version | None


@dataclass(frozen=True, slots=True)
class Fit:
    """How an image gets on with the driver of a pool.

    `problem` says why it does not; then `remedy` says what can be done. `compatibility`: the forward compatibility
    package must be loaded. `note` is for the user.
    """

    option: ImageOption
    problem: str | None = None
    remedy: str | None = None
    compatibility: bool = False
    note: str | None = None

    @property
    def clean(self) -> bool:
        """True if nothing has to be said."""
        return self.problem is None and self.note is None


def image_options(engine: EngineSpec | None, resolved: ResolvedVersion, images: Images) -> tuple[ImageOption, ...]:
    """Return the images to choose from, the preferred one first: the user's, or those of the vLLM project."""
    image, table = resolved.image, resolved.table
    built_with = parse_version(table.bundle.cuda) if table and table.bundle.cuda and images.is_official(image) else None
    # A digest may stand for any of the images of a release.
    default = ImageOption(image, cuda_of_tag(image) or (None if "@" in image else built_with))
    if (engine and engine.image) or not image.startswith(f"{images.repository}:"):
        return (default,)
    return (default, *(ImageOption(image + variant.suffix, variant.cuda) for variant in images.variants_of(resolved.version)))


def fit_image(options: Sequence[ImageOption], pool: Pool, gpus: GPUs, images: Images, *, forced: bool, compatible: bool) -> Fit:
    """Return the first option without any reservation, else the first that runs, else the first with its problem.

    What the user insists on is tried last: insisting on something else must not cost the image that suits the driver.

    Args:
        options: At least one.
        pool: Where it is to run.
        gpus: What is known of GPUs.
        images: What is known of images.
        forced: The user insists on an image that is known not to suit the driver.
        compatible: The engine's version knows how to load the forward compatibility package.
    """
    fits = [_fit(option, pool, gpus, images, forced=False, compatible=compatible) for option in options]
    if forced:
        fits.append(_fit(options[0], pool, gpus, images, forced=True, compatible=compatible))
    return next((fit for fit in fits if fit.clean), None) or next((fit for fit in fits if fit.problem is None), fits[0])


def _fit(option: ImageOption, pool: Pool, gpus: GPUs, images: Images, *, forced: bool, compatible: bool) -> Fit:
    if option.cuda is None:
        return Fit(option)
    image_cuda = show_version(option.cuda)
    architecture = gpus.architectures.get(pool.architecture or "")
    if architecture is not None and option.cuda < architecture.cuda:
        floor = show_version(architecture.cuda)
        return Fit(
            option,
            problem=f"{option.image} is built with CUDA {image_cuda}, which has no kernels for {architecture.name}",
            remedy=f"Use an image built with CUDA {floor} or later, for example a newer vLLM version.",
        )
    if architecture is not None and architecture.cuda_before is not None and option.cuda >= architecture.cuda_before:
        ceiling = show_version(architecture.cuda_before)
        return Fit(
            option,
            problem=f"{option.image} is built with CUDA {image_cuda}, which has no kernels for {architecture.name} any more",
            remedy=f"Use an image built with CUDA before {ceiling}, for example of an older vLLM version, or newer GPUs.",
        )
    if pool.cuda is None:
        return _fit_by_driver(option, pool, images, forced=forced)
    if pool.cuda >= option.cuda:
        return Fit(option)
    return _fit_older_driver(option, pool, gpus, images, forced=forced, compatible=compatible)


def _fit_by_driver(option: ImageOption, pool: Pool, images: Images, *, forced: bool) -> Fit:
    """Without the driver's CUDA version, its branch tells the major, and nothing tells nothing."""
    needed = images.drivers.get(option.cuda[0]) if option.cuda else None
    if pool.driver is None or needed is None or pool.driver[0] >= needed or forced:
        return Fit(option)
    problem = f"{option.image} needs GPU driver {needed} or later, the node has {show_version(pool.driver)}"
    return Fit(option, problem=problem, remedy=_remedy(option, images))


def _fit_older_driver(option: ImageOption, pool: Pool, gpus: GPUs, images: Images, *, forced: bool, compatible: bool) -> Fit:
    assert option.cuda is not None
    assert pool.cuda is not None
    product = gpus.product(pool.product)
    data_center = product is not None and product.data_center
    what = f"{option.image} is built with CUDA {show_version(option.cuda)}, the driver of the node runs CUDA {show_version(pool.cuda)}"
    if option.cuda[0] != pool.cuda[0]:
        if forced:
            return Fit(option, note=f"{what}. It is started all the same, as asked for.")
        return Fit(option, problem=what, remedy=_remedy(option, images, data_center=data_center and compatible))
    if data_center and compatible:
        return Fit(option, compatibility=True, note=f"{what}: the image's forward compatibility package is loaded.")
    if data_center or forced or pool.cuda >= MINOR_COMPATIBILITY_FLOOR:
        return Fit(
            option,
            note=f"{what}: kernels that the driver has to compile itself would fail "
            "(the provided PTX was compiled with an unsupported toolchain). A newer driver avoids this.",
        )
    return Fit(option, problem=what, remedy=_remedy(option, images))


def _remedy(option: ImageOption, images: Images, *, data_center: bool = False) -> str:
    assert option.cuda is not None
    driver = images.drivers.get(option.cuda[0])
    update = f"Update the GPU driver to {driver} or later" if driver else "Update the GPU driver"
    parts = [update]
    if option.cuda[0] >= 13:
        parts.append("use an image built with CUDA 12 (tag ending in -cu129), or leave spec.engine.image out")
    if data_center:
        parts.append(f'set {images.compatibility.variable}="1" in spec.engine.env to try the forward compatibility package')
    return ", or ".join(parts) + "."


def show_version(version: Version) -> str:
    """Return (12, 8) as 12.8."""
    return ".".join(str(part) for part in version)
