"""Weights that a Job fetches before a start, as shown by Progressing and `status.startup`."""

from typing import Any

from vllm_operator.api import reading
from vllm_operator.api.conditions import Reason, Verdict
from vllm_operator.api.resource import Role
from vllm_operator.api.status import PodStartup, StartupStatus
from vllm_operator.caches.activity import Fetching, FetchingState
from vllm_operator.logs.state import Progress, Stage
from vllm_operator.pods.view import Phase, refine
from vllm_operator.status.conditions import FALSE, TRUE
from vllm_operator.status.observation.observation import ObservedState
from vllm_operator.status.scheduling import why_no_pod

MAX_COUNTED = 10**15
"""More bytes than any model has. The API server rejects a whole status that contains a number beyond 64 bits."""
_GIB = 2**30
_STUCK = frozenset({Phase.UNSCHEDULABLE, Phase.IMAGE_PULL_FAILED, Phase.CONTAINER_FAILED, Phase.FAILED})


def describe_fetching(observed: ObservedState) -> Verdict | None:
    """Judge Progressing while a Job fetches weights; None without such a Job."""
    fetching = observed.observation.activity.fetching
    if fetching is None:
        return None
    model, weights = observed.observation.resource.spec.model, observed.observation.resource.spec.weights
    say = observed.messages.fit
    facts: dict[str, Any] = {
        "model": model.uri.removeprefix("hf://"),
        "claim": fetching.claim,
        "job_pod": fetching.view.name if fetching.view is not None else "",
        "serving": observed.serving,
        "result": fetching.result,
        "is_named": bool(weights and weights.claim_name),
    }
    if fetching.state is FetchingState.IMPOSSIBLE:
        return Verdict(FALSE, Reason.FETCH_FAILED, observed.messages.say("fetching_weights.impossible", **facts))
    if fetching.state is FetchingState.REFUSED:
        return Verdict(FALSE, Reason.FETCH_FAILED, say("fetching_weights.refused", shrink=("why",), why=fetching.why, **facts))
    progress = _progress(observed, fetching)
    if fetching.state is FetchingState.FAILED and progress is None:
        text = say(
            "fetching_weights.failed",
            shrink=("why",),
            why=fetching.why,
            revision=model.revision,
            secret=model.token_secret_ref.name if model.token_secret_ref is not None else None,
            needed_gib=fetching.needed_bytes / _GIB if fetching.needed_bytes is not None else None,
            free_gib=fetching.free_bytes / _GIB if fetching.free_bytes is not None else None,
            **facts,
        )
        return Verdict(FALSE, Reason.FETCH_FAILED, text)
    why, is_stuck = _obstacle(observed, fetching)
    text = say("fetching_weights.running", shrink=("why",), **_counted(progress if not why else None), why=why, **facts)
    return Verdict(FALSE, Reason.FETCH_FAILED, text) if is_stuck else Verdict(TRUE, Reason.FETCHING_WEIGHTS, text)


def _obstacle(observed: ObservedState, fetching: Fetching) -> tuple[str, bool]:
    """Return why the Job does not run (empty if it runs or the reason is unknown), and whether only a change can make it run."""
    if fetching.view is None:
        refused = why_no_pod(observed, Role.FETCHING)
        return refused or fetching.why, bool(refused)
    view = refine(fetching.view, observed.log)
    if view.phase is Phase.NODE_LOST:
        return f"Node {view.node} has stopped reporting.", True
    return view.message, view.phase in _STUCK


def fetching_block(observed: ObservedState) -> StartupStatus | None:
    """Return the download's progress as a start in progress; None if no weights are fetched."""
    fetching = observed.observation.activity.fetching
    progress = _progress(observed, fetching) if fetching is not None else None
    verdict = describe_fetching(observed)
    if fetching is None or fetching.view is None or progress is None or verdict is None:
        return None
    view = fetching.view
    state, stage = observed.observation.startups[view.run], str(Stage.WEIGHT_DOWNLOAD)
    return StartupStatus(
        stage=stage,
        completed=progress.completed,
        total=progress.total,
        message=verdict.message,
        stage_since=reading.stamp(state.stage_since),
        update_time=reading.stamp(observed.observation.now),
        eta_seconds=progress.eta_seconds,
        pods=[PodStartup(name=view.name, stage=stage, completed=progress.completed, total=progress.total, restarts=view.restarts)],
    )


def _progress(observed: ObservedState, fetching: Fetching) -> Progress | None:
    state = observed.observation.startups.get(fetching.view.run) if fetching.view is not None else None
    found = state.progress if state is not None and not state.is_final else None
    return found if found is not None and 0 <= found.completed <= found.total and 0 < found.total <= MAX_COUNTED else None


def _counted(progress: Progress | None) -> dict[str, Any]:
    if progress is None:
        return {"completed": None, "total": None, "eta": None}
    return {"completed": progress.completed / _GIB, "total": progress.total / _GIB, "eta": progress.eta_seconds}
