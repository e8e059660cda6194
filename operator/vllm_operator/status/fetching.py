"""Weights that a Job fetches before a start: what Starting and `status.startup` say about it."""

from typing import Any

from vllm_operator.api.conditions import Reason
from vllm_operator.api.status import PodStartup, StartupStatus
from vllm_operator.caches.activity import Fetching, FetchingState
from vllm_operator.observation.observation import ObservedState
from vllm_operator.planning.outcome import Verdict
from vllm_operator.pods import reading
from vllm_operator.startup.state import Progress, Stage
from vllm_operator.status.conditions import FALSE, TRUE

MAX_COUNTED = 10**15
"""More bytes than any model has. The API server refuses a whole status that contains a number beyond 64 bits."""
_GIB = 2**30


def describe_fetching(observed: ObservedState) -> Verdict | None:
    """Judge Starting while weights are fetched; None if none are."""
    fetching = observed.observation.activity.fetching
    if fetching is None:
        return None
    model = observed.observation.resource.spec.model
    say = observed.messages.fit
    facts: dict[str, Any] = {
        "model": model.uri.removeprefix("hf://"),
        "claim": fetching.claim,
        "job_pod": fetching.pod,
        "serving": observed.serving,
    }
    if fetching.state is FetchingState.REFUSED:
        return Verdict(FALSE, Reason.FETCH_FAILED, say("fetching_weights.refused", shrink=("why",), why=fetching.why, **facts))
    progress = _progress(observed, fetching)
    if fetching.state is FetchingState.FAILED and progress is None:
        text = say(
            "fetching_weights.failed",
            shrink=("why",),
            result=fetching.result,
            why=fetching.why,
            revision=model.revision,
            secret=model.token_secret_ref.name if model.token_secret_ref is not None else None,
            needed_gib=fetching.needed_bytes / _GIB if fetching.needed_bytes is not None else None,
            free_gib=fetching.free_bytes / _GIB if fetching.free_bytes is not None else None,
            is_named=bool(observed.observation.resource.spec.weights and observed.observation.resource.spec.weights.claim_name),
            **facts,
        )
        return Verdict(FALSE, Reason.FETCH_FAILED, text)
    return Verdict(
        TRUE, Reason.FETCHING_WEIGHTS, say("fetching_weights.running", shrink=("why",), **_counted(progress), why=fetching.why, **facts)
    )


def fetching_block(observed: ObservedState) -> StartupStatus | None:
    """Return the progress as a start in progress; None without any."""
    fetching = observed.observation.activity.fetching
    progress = _progress(observed, fetching) if fetching is not None else None
    verdict = describe_fetching(observed)
    if fetching is None or progress is None or verdict is None:
        return None
    state = observed.observation.startups[fetching.run]
    stage, restarts = str(Stage.WEIGHT_DOWNLOAD), fetching.run[1]
    return StartupStatus(
        stage=stage,
        completed=progress.completed,
        total=progress.total,
        message=verdict.message,
        stage_since=reading.stamp(state.stage_since),
        update_time=reading.stamp(observed.observation.now),
        eta_seconds=progress.eta_seconds,
        pods=[PodStartup(name=fetching.pod, stage=stage, completed=progress.completed, total=progress.total, restarts=restarts)],
    )


def _progress(observed: ObservedState, fetching: Fetching) -> Progress | None:
    state = observed.observation.startups.get(fetching.run)
    found = state.progress if state is not None and not state.is_final else None
    return found if found is not None and 0 <= found.completed <= found.total and 0 < found.total <= MAX_COUNTED else None


def _counted(progress: Progress | None) -> dict[str, Any]:
    if progress is None:
        return {"completed": None, "total": None, "eta": None}
    return {"completed": progress.completed / _GIB, "total": progress.total / _GIB, "eta": progress.eta_seconds}
