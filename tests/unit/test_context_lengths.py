"""The context that vLLM takes by default, and the longest that it accepts."""

from typing import Any

import pytest

from support.estimates import engine
from vllm_operator.catalog.memory import load_memory
from vllm_operator.catalog.models import load_shapes
from vllm_operator.catalog.versions import Release
from vllm_operator.sizing.estimate import estimate
from vllm_operator.sizing.model_shape import read_shape
from vllm_operator.sizing.resolve import resolve_model

FACTS, SHAPES = load_memory(), load_shapes()


@pytest.mark.parametrize(("release", "length"), [((0, 11, 0), 131072), ((0, 11, 1), 4096), ((0, 33, 0), 4096)])
def test_with_longrope_the_default_context_is_that_before_scaling(release: Release, length: int) -> None:
    model = resolve_model("microsoft/Phi-3-mini-128k-instruct", SHAPES)
    assert model is not None
    made, asked = (
        estimate(engine(model.shape, model.form, release=release, memory=79.2, architecture="sm_90", max_length=length))
        for length in (None, 131072)
    )
    assert (made.max_length, asked.max_length) == (length, 131072)


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        ({"type": "linear", "factor": 4.0}, 65536),
        ({"rope_type": "dynamic", "factor": 2.0}, 32768),
        ({"rope_type": "llama3", "factor": 8.0}, 16384),
        ({"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}, 163840),
        ({"type": "linear", "factor": True}, 16384),
    ],
)
def test_scaling_multiplies_the_longest_context(scaling: dict[str, Any], length: int) -> None:
    base = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100, "intermediate_size": 128}
    shape = read_shape({**base, "max_position_embeddings": 16384, "rope_scaling": scaling})
    assert shape is not None
    assert shape.max_length == length
