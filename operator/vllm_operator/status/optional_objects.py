"""Isolated, Exposed, Autoscaled and Protected: the objects that the spec asks for and that have no effect; and the URL of the engine."""

from collections.abc import Mapping

from vllm_operator.api.conditions import AUTOSCALED, EXPOSED, FALSE, ISOLATED, PROTECTED, TRUE, Reason, Verdict
from vllm_operator.rendering.exposure import render_disruption_budget, render_exposure
from vllm_operator.status.observation import ObjectProblem, Observation
from vllm_operator.status.ready import service_url

GATEWAY_SECONDS = 30
"""Interval between reads of an HTTPRoute that no Gateway has accepted yet. HTTPRoutes are not watched."""
_BUDGET, _POLICY = "PodDisruptionBudget", "NetworkPolicy"
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


def judge_parts(observed: Observation) -> dict[str, Verdict]:
    """Judge Isolated, Exposed, Autoscaled and Protected: the first problem of each, else that it is in effect if the spec asks for it."""
    say, resource, spec = observed.messages.say, observed.resource, observed.resource.spec
    found = [(ISOLATED if it.kind == _POLICY else EXPOSED, it) for it in observed.exposure.problems]
    found += [(PROTECTED if it.kind == _BUDGET else AUTOSCALED, it) for it in observed.scaling]
    judged = {type: _judge(observed, problem) for type, problem in reversed(found)}
    if observed.exposure.awaits_gateway:
        text = say("exposed.not_accepted", deployment=resource.metadata.name, namespace=resource.metadata.namespace)
        judged.setdefault(EXPOSED, Verdict(FALSE, Reason.ROUTE_NOT_ACCEPTED, text))
    kinds, scales = [kind for made in render_exposure(resource) if (kind := made["kind"]) != _POLICY], spec.autoscaling
    scaler = "ScaledObject" if scales is not None and scales.keda is not None else "HorizontalPodAutoscaler"
    in_effect = {
        ISOLATED: say("isolated.in_effect") if spec.network_policy is not None else "",
        EXPOSED: say("exposed.in_effect", kinds=kinds) if kinds else "",
        AUTOSCALED: say("autoscaled.in_effect", kind=scaler, most=scales.max_replicas) if scales is not None else "",
        PROTECTED: say("protected.in_effect", serving=observed.serving) if render_disruption_budget(resource) is not None else "",
    }
    return {type: Verdict(TRUE, Reason.IN_EFFECT, text) for type, text in in_effect.items() if text} | judged


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
