"""The sentence about draining Pods in the message of Ready."""

from vllm_operator.api.conditions import Verdict
from vllm_operator.status.observation.observation import ObservedState


def with_draining(observed: ObservedState, ready: Verdict) -> Verdict:
    """Add a sentence about draining Pods to the verdict on Ready, if there are any."""
    pods = observed.observation.draining
    if not pods or not ready.message:
        return ready
    numbers = [pod.requests for pod in pods if pod.requests is not None]
    text = observed.messages.fit(
        "ready.draining",
        shrink=("text",),
        text=ready.message,
        pods=pods,
        # a sum over some of the Pods would be too small
        left=sum(numbers) if len(numbers) == len(pods) else None,
        until=max(pod.until for pod in pods),
    )
    return Verdict(ready.status, ready.reason, text)
