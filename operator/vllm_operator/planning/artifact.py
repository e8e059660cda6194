"""Check of the artifact in a spec against the operator's settings. An artifact is code that runs in the engine."""

from dataclasses import dataclass

from vllm_operator.api.conditions import Reason, Verdict
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.status import ConditionStatus


@dataclass(frozen=True, slots=True)
class ArtifactTrust:
    """The allowed artifacts.

    Attributes:
        repositories: Allowed repositories with all repositories below them; all if empty.
        needs_digest: Whether an artifact must be named by digest.
    """

    repositories: tuple[str, ...] = ()
    needs_digest: bool = False


def refuse_artifact(resource: VLLMDeployment, trust: ArtifactTrust) -> Verdict | None:
    """Return why the artifact of a spec is refused; None if it is allowed or absent."""
    artifact = resource.spec.cache.artifact if resource.spec.cache else None
    if artifact is None:
        return None
    named = [name for name in (artifact.repository, (artifact.reference or "").partition("@")[0]) if name]
    refused = [name for name in named if trust.repositories and not any(_is_below(name, allowed) for allowed in trust.repositories)]
    if refused:
        allowed = ", ".join(trust.repositories[:8])
        message = f"spec.cache.artifact names {refused[0]}. The administrator of this operator allows only {allowed} and what is below."
        return Verdict(ConditionStatus.FALSE, Reason.ARTIFACT_NOT_ALLOWED, message)
    if trust.needs_digest and artifact.reference is None:
        message = (
            "The administrator of this operator allows only artifacts that are named by digest. Set spec.cache.artifact.reference to "
            "REPOSITORY@sha256:..., for example to the digest in the condition CachePublished of the object that published it."
        )
        return Verdict(ConditionStatus.FALSE, Reason.ARTIFACT_NOT_ALLOWED, message)
    return None


def _is_below(repository: str, allowed: str) -> bool:
    return f"{repository}/".startswith(f"{allowed.rstrip('/')}/")
