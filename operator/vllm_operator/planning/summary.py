"""A plan in one line, for the condition."""

from vllm_operator.api.status import ChosenBy, Plan
from vllm_operator.catalog.gpus import GPUs


def summarize(made: Plan, gpus: GPUs, *, with_notes: bool = True) -> str:
    """Say what was decided: GPU, engine, kernels, and the first of the notes."""
    parts = {part.name: part.value for part in made.cache_key_parts}
    profile = parts.get("migProfile", "none")
    what = f"{made.count} GPU" if profile == "none" else f"{made.count} MIG slice"
    what += ("" if made.count == 1 else "s") + ("" if profile == "none" else f" {profile}")
    where = gpus.title(made.product, made.architecture)
    engine = f"{made.distribution.value} {made.engine_version}" if made.engine_version else made.distribution.value
    chosen = [f"{c.component} {c.backend}" for c in made.backends if c.chosen_by is not ChosenBy.ENGINE]
    expected = [f"{c.component} {c.backend}" for c in made.backends if c.chosen_by is ChosenBy.ENGINE]
    kernels = ", ".join(chosen)
    if expected:
        kernels += f"{'; ' if chosen else ''}{', '.join(expected)} by vLLM's own choice"
    notes = made.notes if with_notes else []
    note = f" Note: {notes[0]}" if notes else ""
    more = f" ({len(notes) - 1} more in status.plan.notes)" if len(notes) > 1 else ""
    return f"Planned for {where}, {what} per replica, {engine}: {kernels or 'kernels are left to vLLM'}.{note}{more}"
