"""Flags of `vllm serve` that follow from the spec alone."""

from vllm_operator.api.plan import PlannedArgument
from vllm_operator.api.spec import ModelSpec
from vllm_operator.planning.engine.version import ResolvedVersion
from vllm_operator.sizing.parallelism import ParallelShape

PORT = 8000
"""Port of the engine. Its probes and the Service use it."""


CHOSEN = "The smallest number of GPUs on which the model fits."
SHORTENED, WANTED = "The longest context that fits on the GPU.", "From spec.sizing.contextLength."


def engine_arguments(
    model: ModelSpec,
    version: ResolvedVersion,
    parallel: ParallelShape,
    *,
    chosen: bool = False,
    length: int | None = None,
    shortened: bool = True,
) -> list[PlannedArgument]:
    """Return the flags that follow from the spec, as far as this version has them.

    Args:
        model: The model in the spec.
        version: The vLLM version.
        parallel: The parallel sizes.
        chosen: Whether the operator chose the sizes.
        length: The context length to set; None for the model's default.
        shortened: Whether the operator chose this length because the model's context does not fit.
    """
    wanted = [
        ("--port", str(PORT), "Port of the probes and the Service."),
        ("--served-model-name", served_name(model), "Model name for clients."),
        ("--revision", model.revision, "From spec.model.revision."),
        (
            "--tensor-parallel-size",
            str(parallel.tensor) if parallel.tensor > 1 else None,
            CHOSEN if chosen else "From spec.parallelism or spec.accelerator.",
        ),
        ("--pipeline-parallel-size", str(parallel.pipeline) if parallel.pipeline > 1 else None, "From spec.parallelism.pipeline."),
        ("--data-parallel-size", str(parallel.data) if parallel.data > 1 else None, "From spec.parallelism.data."),
        ("--max-model-len", str(length) if length is not None else None, SHORTENED if shortened else WANTED),
    ]
    args = [PlannedArgument(name=name, value=value, reason=reason) for name, value, reason in wanted if value is not None]
    if parallel.expert:
        args.append(PlannedArgument(name="--enable-expert-parallel", reason=CHOSEN if chosen else "From spec.parallelism.expert."))
    return [arg for arg in args if version.table is None or version.table.knows_flag(arg.name)]


def served_name(model: ModelSpec) -> str | None:
    """Return the model name for clients; None if the engine's default is correct."""
    if model.served_name is not None:
        return model.served_name
    scheme, _, rest = model.uri.partition("://")
    return None if scheme == "hf" else rest.rstrip("/")
