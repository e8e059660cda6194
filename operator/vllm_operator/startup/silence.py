"""Silence in a log: how long it lasts, how long it may, and what it probably means.

FlashInfer compiles kernels without a word, for minutes. That such a compilation is going on can only be inferred:
the engine chose a backend that does so, it is in a stage in which that happens, and it says nothing.
"""

from dataclasses import replace
from datetime import datetime

from vllm_operator.catalog.startup import StartupKnowledge
from vllm_operator.startup.state import Stage, StartupState


def silence_seconds(state: StartupState, now: datetime) -> float:
    """For how many seconds the log has said nothing; 0 if its times are unknown."""
    if state.last_line_at is None:
        return 0.0
    return max(0.0, (now - state.last_line_at).total_seconds())


def allowed_silence_seconds(stage: Stage, knowledge: StartupKnowledge) -> int | None:
    """For how many seconds this stage may say nothing although all is well; None if nothing is known."""
    known = knowledge.stages.silence.get(stage.value)
    return known.seconds if known is not None else None


def infer_silence(state: StartupState, now: datetime, knowledge: StartupKnowledge) -> StartupState:
    """The state with `silent_stage_inferred` and `detail` set if the engine probably compiles kernels silently."""
    stages = knowledge.stages
    silent = (
        state.crash is None
        and state.stage.value in stages.silent_stages
        and silence_seconds(state, now) >= stages.silent_after_seconds
        and any(part in backend.casefold() for _, backend in state.observed_backends for part in stages.silent_backends)
    )
    if not silent:
        return replace(state, silent_stage_inferred=False) if state.silent_stage_inferred else state
    return replace(state, silent_stage_inferred=True, detail="probably compiling FlashInfer kernels, which logs nothing (inferred)")
