"""Exposed, Autoscaled and Protected: the objects that the spec asks for and that have no effect; and the URL of the engine."""

from collections.abc import Mapping

from vllm_operator.api.conditions import FALSE, TRUE, Reason, Verdict
from vllm_operator.rendering.exposure import render_disruption_budget, render_exposure
from vllm_operator.status.observation import ObjectProblem, Observation
from vllm_operator.status.ready import service_url

GATEWAY_SECONDS = 30
"""Interval between reads of an HTTPRoute that no Gateway has accepted yet. HTTPRoutes are not watched."""
_BUDGET = "PodDisruptionBudget"
_RELEASES = "https://github.com/kubernetes-sigs"
_KEDA = "https://github.com/kedacore/keda/releases/download/v2.20.2/keda-2.20.2.yaml"
_MANIFESTS: Mapping[str, str] = {
    "HTTPRoute": f"-f {_RELEASES}/gateway-api/releases/download/v1.6.1/standard-install.yaml",
    "InferencePool": f"-f {_RELEASES}/gateway-api-inference-extension/releases/download/v1.6.0/manifests.yaml",
    "ScaledObject": f"--server-side -f {_KEDA}",
}
"""Arguments of `kubectl apply` that install the CustomResourceDefinition, by kind."""
_FIELDS: Mapping[str, str] = {"gateway": "spec.gateway", "keda": "spec.autoscaling.keda"}
"""The spec field that needs each integration."""
_MESSAGES: Mapping[str, str] = {
    Reason.KIND_NOT_INSTALLED: "exposed.not_installed",
    Reason.INTEGRATION_DISABLED: "exposed.disabled",
    Reason.METRICS_API_MISSING: "autoscaled.no_metrics",
    Reason.AUTOSCALER_EXISTS: "autoscaled.exists",
}


def exposed(observed: Observation) -> Verdict | None:
    """Judge Exposed: the first problem; None if the spec asks for nothing."""
    say, metadata = observed.messages.say, observed.resource.metadata
    if observed.exposure.problems:
        return _judge(observed, observed.exposure.problems[0])
    if observed.exposure.awaits_gateway:
        text = say("exposed.not_accepted", deployment=metadata.name, namespace=metadata.namespace)
        return Verdict(FALSE, Reason.ROUTE_NOT_ACCEPTED, text)
    kinds = [manifest["kind"] for manifest in render_exposure(observed.resource)]
    return Verdict(TRUE, Reason.IN_EFFECT, say("exposed.in_effect", kinds=kinds)) if kinds else None


def autoscaled(observed: Observation) -> Verdict | None:
    """Judge Autoscaled: the first problem with the autoscaler; None if the spec asks for none."""
    for problem in observed.scaling:
        if problem.kind != _BUDGET:
            return _judge(observed, problem)
    spec = observed.resource.spec.autoscaling
    if spec is None:
        return None
    kind = "HorizontalPodAutoscaler" if spec.keda is None else "ScaledObject"
    return Verdict(TRUE, Reason.IN_EFFECT, observed.messages.say("autoscaled.in_effect", kind=kind, most=spec.max_replicas))


def protected(observed: Observation) -> Verdict | None:
    """Judge Protected: the problem with the PodDisruptionBudget; None if there is only one replica to protect."""
    for problem in observed.scaling:
        if problem.kind == _BUDGET:
            return _judge(observed, problem)
    is_asked = render_disruption_budget(observed.resource) is not None
    return Verdict(TRUE, Reason.IN_EFFECT, observed.messages.say("protected.in_effect", serving=observed.serving)) if is_asked else None


def _judge(observed: Observation, problem: ObjectProblem) -> Verdict:
    text = observed.messages.say(
        _MESSAGES.get(problem.reason, "exposed.refused"),
        kind=problem.kind,
        detail=problem.detail,
        manifests=_MANIFESTS.get(problem.kind),
        field=_FIELDS.get(problem.detail),
    )
    return Verdict(FALSE, problem.reason, text)


def url(observed: Observation) -> str | None:
    """Return the URL of a host that a Gateway serves, else the Service's URL; None without one, or before the first replica serves."""
    if not observed.serving and observed.previous.url is None:
        return None
    return observed.exposure.url or service_url(observed)
