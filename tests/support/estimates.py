"""Engines whose memory is estimated in tests."""

from typing import Any

from vllm_operator.catalog.memory import load_memory
from vllm_operator.catalog.versions import Release
from vllm_operator.sizing.engine import Device, Engine, Options
from vllm_operator.sizing.formats import WeightFormat
from vllm_operator.sizing.model_shape import ModelShape
from vllm_operator.sizing.parallelism import ParallelShape

FACTS = load_memory()
NEWEST = (0, 33, 0)
BF16 = WeightFormat("BF16", 2.0)


def engine(
    shape: ModelShape,
    form: WeightFormat = BF16,
    parallel: ParallelShape | None = None,
    release: Release = NEWEST,
    *,
    memory: float | None = None,
    architecture: str | None = None,
    **options: Any,
) -> Engine:
    """An engine with these flags."""
    return Engine(shape, form, Device(memory, architecture), parallel or ParallelShape(), Options(**options), FACTS, release)
