"""From a plan to manifests: plain dicts, one small builder per kind. Pure."""

from vllm_operator.planning.pod_template import PodTemplateError
from vllm_operator.rendering.manifests import render

__all__ = ["PodTemplateError", "render"]
