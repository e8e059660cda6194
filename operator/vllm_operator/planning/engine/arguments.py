"""The model, and the flags that follow from the spec alone."""

from vllm_operator.api.spec import ModelSpec
from vllm_operator.api.status import PlannedArgument
from vllm_operator.planning.engine.shape import ParallelShape
from vllm_operator.planning.engine.version import ResolvedVersion

PORT = 8000
"""Port on which the engine listens; its probes and the Service expect it there."""


def engine_arguments(model: ModelSpec, version: ResolvedVersion, parallel: ParallelShape) -> list[PlannedArgument]:
    """Return the flags; one that this version does not know is left out."""
    wanted = [
        ("--port", str(PORT), "The probes and the Service expect the engine there."),
        ("--served-model-name", served_name(model), "Name that clients use."),
        ("--revision", model.revision, "From spec.model.revision."),
        ("--tensor-parallel-size", str(parallel.tensor) if parallel.tensor > 1 else None, "GPUs that share each layer."),
        ("--pipeline-parallel-size", str(parallel.pipeline) if parallel.pipeline > 1 else None, "Groups of layers."),
        ("--data-parallel-size", str(parallel.data) if parallel.data > 1 else None, "Copies of the model in one Pod."),
    ]
    args = [PlannedArgument(name=name, value=value, reason=reason) for name, value, reason in wanted if value is not None]
    if parallel.expert:
        args.append(PlannedArgument(name="--enable-expert-parallel", reason="From spec.parallelism.expert."))
    return [arg for arg in args if version.table is None or version.table.knows_flag(arg.name)]


def served_name(model: ModelSpec) -> str | None:
    """Return the name to serve under, None where the engine's own choice is right."""
    if model.served_name is not None:
        return model.served_name
    scheme, _, rest = model.uri.partition("://")
    return None if scheme == "hf" else rest.rstrip("/")
