"""LoRA adapters: flags that serve them from the first request, and the paths of their files.

An engine loads the adapters of `--lora-modules` before it accepts requests, and exits if one of them cannot be loaded
(vllm/entrypoints/openai/models/serving.py 0.20.1 `init_static_loras`). So a Pod that is Ready serves all of them. Adapters on the hub are
downloaded by an init container (`rendering/pod.py`), because the engine can neither pin a revision of an adapter nor use a separate
token for it. The path of an adapter is derived from its name, URI and revision, so a change replaces the Pods.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_operator.api.plan import Plan, PlannedArgument
from vllm_operator.api.reading import mapping, read_integer
from vllm_operator.api.spec import AdapterSpec, VLLMDeploymentSpec
from vllm_operator.catalog.caches import ADAPTER_CLAIM_ROOT, WEIGHTS_ROOT
from vllm_operator.catalog.notes import Note, Severity, note
from vllm_operator.catalog.versions import VersionTable
from vllm_operator.planning.engine.serving import served_name
from vllm_operator.planning.pod_template import SpecError
from vllm_operator.sizing.model_facts import ModelFiles, model_name
from vllm_operator.text.wording import listed

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values of `--max-lora-rank` that every version accepts (vllm/config/lora.py 0.11.0:95 to 0.33.0)."""
DEFAULT_RANK = 16
RANK_FLAG = "--max-lora-rank"
MOST_ACTIVE = 8
"""Maximum number of adapters in one batch (`--max-loras`). Each takes GPU memory; requests for other adapters wait."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """The flags for the adapters of a spec, and notes for the user."""

    arguments: tuple[PlannedArgument, ...] = ()
    notes: tuple[Note, ...] = ()


def check_adapters(spec: VLLMDeploymentSpec) -> None:
    """Refuse an adapter with the name of the model. Raises SpecError, which names the adapter."""
    of_model = served_name(spec.model) or model_name(spec.model)
    taken = next((adapter.name for adapter in spec.adapters or () if adapter.name in (of_model, *(spec.model.aliases or ()))), None)
    if taken is not None:
        field = "servedName" if taken == of_model else "aliases"
        raise SpecError(f"The adapter {taken} in spec.adapters has a name of the model. Rename it, or change spec.model.{field}")


def plan_adapters(spec: VLLMDeploymentSpec, files: Mapping[str, ModelFiles], table: VersionTable | None, in_force: Plan | None) -> Adapters:
    """Plan the flags for `spec.adapters`. `files` are those on the hub by adapter; for the current plan none are read."""
    adapters = sorted(spec.adapters or (), key=lambda adapter: adapter.name)
    if not adapters:
        return Adapters()
    if table is not None and not table.knows_flag("--lora-modules"):
        return Adapters(notes=(note("adapters.not-served", version=table.version),))
    known, active = {each.name: _rank_of(each, files) for each in adapters}, active_adapters(spec)
    planned = (read_integer(each.value) for each in (in_force.args if in_force else ()) if each.name == RANK_FLAG)
    rank = next(planned, None) or _smallest_limit(known.values())
    modules = [json.dumps({"name": each.name, "path": adapter_path(each)}, separators=(",", ":")) for each in adapters]
    arguments = [
        PlannedArgument(name="--enable-lora", reason="From spec.adapters."),
        PlannedArgument(name="--lora-modules", values=modules, reason="From spec.adapters."),
        PlannedArgument(name="--max-loras", value=str(active), reason="The number of adapters, at most 8: each takes memory of the GPU."),
        PlannedArgument(name=RANK_FLAG, value=str(rank), reason="The smallest value that vLLM accepts for these adapters."),
    ]
    if len(adapters) > active:
        reason = "Adapters that are not in the GPU's memory wait in that of the host."
        arguments.append(PlannedArgument(name="--max-cpu-loras", value=str(len(adapters)), reason=reason))
    if in_force is not None:
        return Adapters(tuple(arguments))
    notes = [found for each in adapters for found in _about(each.name, files.get(each.name) or ModelFiles(), spec)]
    if unknown := [name for name, each in known.items() if each is None]:
        which = f"adapter {unknown[0]}" if len(unknown) == 1 else f"adapters {listed(unknown, 'and')}"
        notes.append(note("adapters.unknown-rank", which=which, rank=rank))
    too_large = {name: each for name, each in known.items() if each is not None and each > RANKS[-1]}
    notes += [note("adapters.rank", name=name, rank=each, limit=RANKS[-1]) for name, each in too_large.items()]
    return Adapters(tuple(arguments), tuple(notes))


def active_adapters(spec: VLLMDeploymentSpec) -> int:
    """Return the maximum number of adapters in one batch."""
    return min(len(spec.adapters or ()), MOST_ACTIVE)


def highest_rank(spec: VLLMDeploymentSpec, files: Mapping[str, ModelFiles]) -> int:
    """Return the maximum adapter rank for a new plan; 0 without adapters."""
    return _smallest_limit([_rank_of(each, files) for each in spec.adapters]) if spec.adapters else 0


def adapter_path(adapter: AdapterSpec) -> str:
    """Return the directory of an adapter in the engine container."""
    scheme, _, rest = adapter.uri.partition("://")
    if scheme == "pvc":
        claim, _, path = rest.partition("/")
        return "/".join(part for part in (ADAPTER_CLAIM_ROOT, claim, path.strip("/")) if part)
    source = hashlib.sha256(f"{adapter.uri}@{adapter.revision or ''}".encode()).hexdigest()[:8]
    return f"{WEIGHTS_ROOT}/adapters/{adapter.name}-{source}"


def _smallest_limit(ranks: Collection[int | None]) -> int:
    most = max((DEFAULT_RANK if rank is None else rank for rank in ranks), default=DEFAULT_RANK)
    return next((limit for limit in RANKS if limit >= most), RANKS[-1])


def _rank_of(adapter: AdapterSpec, files: Mapping[str, ModelFiles]) -> int | None:
    """Return the rank in the spec, else the highest one in adapter_config.json; None if unknown. Modules may have own ranks."""
    config = (files.get(adapter.name) or ModelFiles()).config or {}
    ranks = (config.get("r"), *mapping(config, "rank_pattern").values())
    return adapter.rank or max((rank for value in ranks if (rank := read_integer(value))), default=None)


def _about(name: str, files: ModelFiles, spec: VLLMDeploymentSpec) -> list[Note]:
    if files.trouble is not None:
        return [Note(Severity.FAILURE if files.refused else Severity.INFO, f"Adapter {name}: {files.trouble}")]
    config: Mapping[str, Any] = files.config or {}
    notes = []
    if config.get("use_dora") is True:
        notes.append(note("adapters.dora", name=name))
    if config.get("modules_to_save"):
        notes.append(note("adapters.modules", name=name))
    base, own = config.get("base_model_name_or_path"), model_name(spec.model)
    if isinstance(base, str) and base and base.rpartition("/")[2].lower() != own.rpartition("/")[2].lower():
        notes.append(note("adapters.base", name=name, base=base, model=own))
    return notes
