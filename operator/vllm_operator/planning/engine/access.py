"""The key that clients of an engine send, and the paths that it protects."""

from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.catalog.notes import Note
from vllm_operator.catalog.rules import Severity
from vllm_operator.catalog.versions import load_engine_facts
from vllm_operator.planning.engine.overrides import Overrides

API_KEY_VARIABLE = "VLLM_API_KEY"


def access_notes(spec: VLLMDeploymentSpec, overrides: Overrides, version: str | None) -> list[Note]:
    """Return notes about the key: which paths it protects in this version, and whether a user setting replaces it."""
    if spec.auth is None:
        return []
    paths = load_engine_facts().paths_with_key(version)
    listed = paths[0] if len(paths) == 1 else f"{', '.join(paths[:-1])} and {paths[-1]}"
    text = (
        f"The key of spec.auth guards only {listed}. Other paths of the engine, such as /metrics, /tokenize and /invocations, stay open: "
        "limit who can reach the Pods, or authenticate in a gateway."
    )
    notes = [Note(Severity.RISK, text)]
    replaced = [name for name in (API_KEY_VARIABLE,) if name in overrides.variables]
    replaced += [flag for flag in ("--api-key",) if flag in overrides.arguments]
    if replaced:
        notes.append(Note(Severity.NO_EFFECT, f"You set {' and '.join(replaced)}, so spec.auth has no effect. Remove one of them."))
    return notes
