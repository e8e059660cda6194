"""The user's variables and flags: `spec.engine.env`, `args` and `extraArgs`. They override the plan, with a note."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from vllm_operator.api.conditions import Verdict
from vllm_operator.api.crd import owned_flags
from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.plan import PlannedArgument, PlannedVariable
from vllm_operator.api.reading import mapping, named, read_text, sequence
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import Distribution, EngineArgument, EngineSpec, VLLMDeploymentSpec
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.notes import Note, Severity, note, say
from vllm_operator.catalog.versions import VersionTable, load_engine_facts, normalize_flag
from vllm_operator.planning.engine.image import ResolvedVersion
from vllm_operator.planning.pod_template import SpecError
from vllm_operator.sizing.parallelism import resolve_shape
from vllm_operator.text.wording import similar

VARIABLE = "CUDA_VISIBLE_DEVICES"
MIG_UUID, GPU_UUID = re.compile(r"MIG-[0-9A-Za-z/-]{1,60}"), re.compile(r"GPU-[0-9A-Za-z-]{1,60}")
UUIDS_LIMIT = 64

Named = TypeVar("Named", PlannedVariable, PlannedArgument)
ENGINE_VARIABLE_PREFIX = "VLLM_"
UNRECORDED = frozenset({"VLLM_HOST_IP", "VLLM_PLUGINS", "VLLM_SPEC_WORKERS_MULTIPROC_METHOD"})
"""Variables that vLLM reads outside of its table of variables, or that a plugin may read."""
UNKNOWN_LIMIT = 16
"""Maximum number of unknown variables, and of unknown flags, in messages. Each search for a similar name takes milliseconds."""
SCRIPT_FLAGS: Mapping[Distribution, frozenset[str]] = {Distribution.NVLLM: frozenset({"--tq", "--debug"})}
"""Flags of a distribution's start script (nvLLM scripts/serve.sh), which are not passed on. Rules set the flags of vLLM instead."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """The user's variables (None: `valueFrom`), flags `--like-this` (None: no value), and what a template changes in the container."""

    variables: Mapping[str, str | None]
    arguments: Mapping[str, str | None]
    image: str | None = None
    replaces_arguments: bool = False
    node_selector: Mapping[str, str] = field(default_factory=dict)
    resources: tuple[str, ...] = ()

    def expanded(self, table: VersionTable | None) -> "Overrides":
        """Return full names for unambiguous abbreviations of flags. Raises SpecError for a flag for which the spec has a field."""
        full = {flag: table.full_flag(flag) if table is not None else flag for flag in self.arguments}
        owned = owned_flags()
        for flag, name in full.items():
            if name != flag and name in owned:
                raise SpecError(f"spec.engine sets {flag}, which is short for {name}; {owned[name]}")
        return replace(self, arguments={full[flag]: value for flag, value in self.arguments.items()})


def read_overrides(spec: VLLMDeploymentSpec) -> Overrides:
    """Collect the settings in `spec.engine` and in the engine container of `spec.podTemplate`, which takes precedence."""
    engine, pod = spec.engine or EngineSpec(), mapping(spec.pod_template, "spec")
    container = named(pod, CONTAINER, "containers", key="name")
    variables = {v.name: None if v.value_from is not None else v.value or "" for v in engine.env or ()}
    for entry in map(mapping, sequence(container.get("env"))):
        given = {key: value for key, value in entry.items() if value is not None}  # a null removes the field
        if "name" in given:
            variables[str(given["name"])] = None if "valueFrom" in given else str(given.get("value", ""))
    return Overrides(
        variables=variables,
        arguments={normalize_flag(given.name): given.text for given in engine.flags},
        image=read_text(container.get("image")) or engine.image,
        replaces_arguments="args" in container or "command" in container,
        resources=tuple(str(name) for kind in ("requests", "limits") for name in mapping(container, "resources", kind)),
        node_selector={str(key): str(value) for key, value in mapping(pod.get("nodeSelector")).items() if value is not None},
    )


def passed_arguments(engine: EngineSpec | None) -> tuple[EngineArgument, ...]:
    """Return the user's flags for `vllm serve`, in their order."""
    if engine is None:
        return ()
    of_script = SCRIPT_FLAGS.get(engine.distribution or Distribution.VLLM, frozenset())
    return tuple(argument for argument in engine.flags if normalize_flag(argument.name) not in of_script)


def drop_overridden(
    env: Sequence[PlannedVariable], args: Sequence[PlannedArgument], overrides: Overrides
) -> tuple[list[PlannedVariable], list[PlannedArgument], list[Note]]:
    """Remove settings of the user from the plan. Return also a note for each value that differs."""
    notes: list[Note] = []
    kept_env = [variable for variable in env if variable.name not in overrides.variables]
    kept_args: list[PlannedArgument] = []

    def differs(yours: str, ours: str, reason: str | None) -> None:
        notes.append(note("override", yours=yours, ours=ours, why=f" The operator's reason: {reason}" if reason else ""))

    for variable in env:
        value = overrides.variables.get(variable.name)
        if variable.name in overrides.variables and value != variable.value:
            differs(f"{variable.name} {'from another source' if value is None else f'to {value!r}'}", repr(variable.value), variable.reason)
    subjects = {subject_of(flag): (flag, value) for flag, value in overrides.arguments.items()}
    for argument in args:
        given = next((subjects[subject] for subject in subjects_of(argument.name) if subject in subjects), None)
        if given is None:
            kept_args.append(argument)
        elif given != (argument.name, argument.text):
            differs(_show(*given), _show(argument.name, argument.text), argument.reason)
    return kept_env, kept_args, notes


def keep_first(planned: Iterable[Named]) -> list[Named]:
    """Keep the first entry of each name."""
    first: dict[str, Named] = {}
    for each in planned:
        first.setdefault(each.name, each)
    return list(first.values())


def check_names(overrides: Overrides, version: ResolvedVersion, catalog: Catalog) -> tuple[list[Note], str | None]:
    """Return notes about variables and flags that this version of vLLM lacks, and a refusal for a flag that prevents the start.

    vLLM exits on an unknown flag. Only images of the vLLM project are refused, because other images may add flags with a plugin.
    """
    table = version.table
    if overrides.replaces_arguments:
        return [note("names.replaced")], None
    if table is None:
        return [], None
    read = (name for name in overrides.variables if name.startswith(ENGINE_VARIABLE_PREFIX) and name not in UNRECORDED)
    variables = [name for name in read if not table.knows_variable(name)]
    known = _flags_of(version.distribution, catalog)
    flags = [flag for flag in overrides.arguments if flag.startswith("--") and not table.knows_flag(flag) and flag not in known]
    flags += [field for flag, value in overrides.arguments.items() for field in _fields(flag, value) if not table.knows_flag(field)]
    exact = version.has_exact_names
    severity = Severity.FAILURE if exact else Severity.RISK
    notes = []
    for flag in flags[:UNKNOWN_LIMIT]:
        text = say("names.unknown-flag", version=table.version, flag=flag, instead=instead_of(flag, table.flags))
        notes.append(Note(severity, text))
    for name in variables[:UNKNOWN_LIMIT]:
        notes.append(note("names.unknown-variable", version=table.version, name=name, instead=instead_of(name, table.variables)))
    if more := len(variables) + len(flags) - len(notes):
        notes.append(note("names.more", version=table.version, more=more))
    wrong = [flag for flag in flags if "." not in flag and not any(each.startswith(flag) for each in table.flags)]
    if not (wrong and exact and catalog.images.is_official(version.image)):
        return notes, None
    instead = instead_of(wrong[0], table.flags) or " Remove it from spec.engine."
    return notes, (f"vLLM {table.version} does not know the flag {wrong[0]} and does not start with it.{instead}")


def _flags_of(distribution: Distribution, catalog: Catalog) -> frozenset[str]:
    if distribution is Distribution.VLLM:
        return frozenset()
    invocations = (each for each in catalog.rules.invocations if distribution in each.when.members.get("distribution", ()))
    flags = frozenset(flag for each in invocations for setting in each.settings.values() for flag in setting.arguments)
    return flags | SCRIPT_FLAGS.get(distribution, frozenset())


def _fields(flag: str, value: str | None) -> list[str]:
    """Return the fields of a flag with a JSON value, each in the form `--flag.field`."""
    try:
        content = json.loads(value) if value and value.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return []  # vLLM reports invalid JSON
    return [f"{flag}.{name}" for name in content] if isinstance(content, dict) else []


def instead_of(name: str, known: Collection[str]) -> str:
    """Return a sentence with the replacement of a flag or variable, or the known name that it misspells."""
    if (successor := load_engine_facts().replacements.get(name)) is not None:
        return f" Use {successor} instead."
    alike = similar(name, known, likeness=0.8)
    return f" Did you mean {alike[0]}?" if alike else ""


def subject_of(flag: str) -> str:
    """Return the option that a flag sets. `--no-enable-lora`, `--disable-lora` and `enable_lora` set the same option."""
    stem, dot, field = flag.lstrip("-").partition(".")
    return re.sub("^(no-)?((en|dis)able-)?", "", stem.replace("_", "-")) + dot + field


def subjects_of(flag: str) -> list[str]:
    """Return the option that a flag sets, and the options that contain it: `--kernel-config.moe-backend` is part of `--kernel-config`."""
    parts = subject_of(flag).split(".")
    return [".".join(parts[: length + 1]) for length in range(len(parts))]


def _show(flag: str, value: str | None) -> str:
    return flag if value is None else f"{flag} {value}"


@dataclass(frozen=True, slots=True)
class Translation:
    """The VLLMDeployment to plan, the UUIDs that were moved, and notes for the user."""

    resource: VLLMDeployment
    uuids: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


def translate(resource: VLLMDeployment) -> Translation:
    """Move the UUIDs in CUDA_VISIBLE_DEVICES to `spec.accelerator`, for a new plan. The plan records them, so scaling does not change Pods.

    In a Pod, the variable only hides devices of the Pod, and vLLM before 0.24 crashes on a UUID. With dynamic resource allocation, the
    ResourceClaim can request exactly these devices instead. In all other cases the rules refuse the variable or warn about it.

    The VLLMDeployment is unchanged if the variable has no UUIDs of the devices that the spec requests (whole GPUs or MIG slices), if the
    spec names other devices, or if the replicas need more devices.
    """
    spec = resource.spec
    accelerator, engine = spec.accelerator, spec.engine
    if accelerator is None or accelerator.allocation != "DRA" or engine is None:
        return Translation(resource)
    given = next((variable.value for variable in engine.env or () if variable.name == VARIABLE), None)
    named = [part.strip() for part in (given or "").split(",")]
    form = MIG_UUID if accelerator.sliced else GPU_UUID
    if len(set(named)) != len(named) or len(named) > UUIDS_LIMIT or not all(form.fullmatch(name) for name in named):
        return Translation(resource)
    pinned = accelerator.mig.uuids if accelerator.mig and accelerator.sliced else accelerator.uuids
    shape = resolve_shape(spec)
    too_few = isinstance(shape, Verdict) or len(named) < spec.replicas * shape.count
    if too_few or (pinned is not None and set(pinned) != set(named)):
        return Translation(resource)
    devices, field = ("MIG devices", "accelerator.mig.uuids") if accelerator.sliced else ("GPUs", "accelerator.uuids")
    moved = note("uuids.moved", variable=VARIABLE, devices=devices, field=f"spec.{field}")
    return Translation(with_uuids(resource, named), tuple(named), (moved,))


def with_uuids(resource: VLLMDeployment, uuids: Sequence[str]) -> VLLMDeployment:
    """Return the VLLMDeployment with these UUIDs in `spec.accelerator` and without the variable; unchanged if there are no UUIDs."""
    spec = resource.spec
    accelerator, engine = spec.accelerator, spec.engine
    if not uuids or accelerator is None or engine is None:
        return resource
    kept = [variable for variable in engine.env or () if variable.name != VARIABLE]
    pinned: dict[str, object] = {"uuids": list(uuids), "mig": None}
    if accelerator.mig is not None and accelerator.sliced:
        pinned = {"mig": accelerator.mig.model_copy(update={"uuids": list(uuids)})}
    changes = {"accelerator": accelerator.model_copy(update=pinned), "engine": engine.model_copy(update={"env": kept or None})}
    return resource.model_copy(update={"spec": spec.model_copy(update=changes)})
