"""The shape of a model and the format of its weights, from the first source that has them.

The sources are config.json and the index of the safetensors, then the table of well-known models. What no source has is
unknown.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from vllm_operator.catalog.shapes import KnownShape, KnownShapes
from vllm_operator.planning.engine.shape import ParallelShape
from vllm_operator.planning.memory.estimate import KEPT_LAYERS
from vllm_operator.planning.memory.layers import ModelShape
from vllm_operator.planning.memory.named_formats import NO_NAME, find_format, name_format
from vllm_operator.planning.memory.quantization import WeightFormat
from vllm_operator.planning.memory.shape import read_shape
from vllm_operator.planning.memory.stated_formats import read_format
from vllm_operator.planning.memory.tensors import measure_format
from vllm_operator.planning.model.tensors import TensorSizes

GIB = 1 << 30
FROM_CONFIG, FROM_TABLE = "config.json", "table of well-known models"
"""Where the sizes of a model are from."""
STATED = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,4})?) gib loaded")
"""A format may state what is loaded, such as `4-bit (19.78 GiB loaded)`."""


@dataclass(frozen=True, slots=True)
class SizedModel:
    """What is known about the memory of a model.

    Attributes:
        shape: Its sizes.
        form: The format of its weights.
        source: Where the sizes are from.
        known: Its entry in the table of well-known models.
        label: The format by name, if one was given.
        checkpoint_bytes: Size of all tensors; None if unknown.
    """

    shape: ModelShape
    form: WeightFormat
    source: str
    known: KnownShape | None = None
    label: str = ""
    checkpoint_bytes: int | None = None

    def measured_weights(self, parallel: ParallelShape, expected: float) -> float | None:
        """Weights on one GPU in GiB where a start-up log says it, for a format whose layers are not known.

        Args:
            parallel: The sizes of the engine.
            expected: The estimate for one GPU without parallelism, divided by that for these sizes.
        """
        stated = STATED.search(self.label.lower()[:200])
        if stated:
            return float(stated[1])
        if self.known is None or not self.form.assumed or parallel.pipeline > 1:
            return None
        for loaded in self.known.loaded:
            if loaded.format == self.label and loaded.tensor == parallel.tensor and loaded.expert == parallel.expert:
                return float(loaded.gib)
            if loaded.format == self.label and loaded.tensor == 1 and not parallel.expert and expected > 0:
                return float(loaded.gib) / expected
        return None


def resolve_model(
    name: str,
    table: KnownShapes,
    *,
    config: Mapping[str, Any] | None = None,
    checkpoint_bytes: int | None = None,
    label: str = "",
    tensors: TensorSizes | None = None,
) -> SizedModel | None:
    """Return what is known about a model; None if its sizes are unknown.

    Args:
        name: `organisation/name`.
        table: The table of well-known models.
        config: Content of its config.json, if it was read.
        checkpoint_bytes: Size of its tensors, if it was read.
        label: The format by name, such as `fp8_block`; empty for that in config.json.
        tensors: The tensors of the checkpoint, if they were read. They do not count if a format is named.
    """
    if config is None:
        return _resolve_known(name, table, checkpoint_bytes, label)
    model = _resolve(name, table, config, checkpoint_bytes, label)
    if model is None or tensors is None or label:
        return model
    form = measure_format(model.form, model.shape, tensors)
    return model if form is None else replace(model, form=form)


@lru_cache(maxsize=256)
def _resolve_known(name: str, table: KnownShapes, checkpoint_bytes: int | None, label: str) -> SizedModel | None:
    return _resolve(name, table, None, checkpoint_bytes, label)


def _resolve(
    name: str, table: KnownShapes, config: Mapping[str, Any] | None, checkpoint_bytes: int | None, label: str
) -> SizedModel | None:
    known = table.find(name)
    shape, source, used = None, FROM_CONFIG, config
    if config is not None:
        shape = read_shape(config)
    if shape is None and known is not None:
        shape, source, used = read_shape(known.config), FROM_TABLE, known.config
    if shape is None or used is None:
        return None
    shape = keep_shape(shape) if shape.layers <= KEPT_LAYERS else shape
    own = read_format(used, shape)
    label = "" if label.strip().lower() in NO_NAME else label
    if not label and config is None and known is not None and not own.quantized:
        label = find_format(name, known.name)
    named = name_format(label, shape) if label else None
    form = named if named is not None else own
    if named is not None and own.quantized and own.name == named.name:
        form = own  # config.json also says what is not quantized
    if checkpoint_bytes is None and known is not None and known.checkpoint_gib and form.name == own.name and _is_dated(name, known.name):
        checkpoint_bytes = int(known.checkpoint_gib * GIB)
    if named is not None and form.name != own.name:
        checkpoint_bytes = None
    return SizedModel(shape, form, source, known, label, checkpoint_bytes)


@lru_cache(maxsize=256)
def keep_shape(shape: ModelShape) -> ModelShape:
    """Return the same object for equal shapes, so that estimates of the next plan are found without comparing them."""
    return shape


def _is_dated(name: str, known: str) -> bool:
    """Whether a name is that of an entry, or of a later state of the same checkpoint, such as `-0731`."""
    return re.fullmatch(r"(-[0-9]{4})?", name[len(known) :]) is not None if name.lower().startswith(known.lower()) else False
