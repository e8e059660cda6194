"""The user's variables and flags of the engine. They override the plan, and a note reports it."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.plan import PlannedArgument, PlannedVariable
from vllm_operator.api.reading import mapping, read_text, sequence
from vllm_operator.api.spec import Distribution, EngineArgument, EngineSpec, VLLMDeploymentSpec
from vllm_operator.catalog.loader import Catalog
from vllm_operator.catalog.notes import Note, notes_of
from vllm_operator.catalog.rules import Severity
from vllm_operator.catalog.versions import normalize_flag
from vllm_operator.planning.engine.command_line import given_arguments
from vllm_operator.planning.engine.version import ResolvedVersion
from vllm_operator.text.wording import similar

Named = TypeVar("Named", PlannedVariable, PlannedArgument)
ENGINE_VARIABLE_PREFIX = "VLLM_"
UNRECORDED = frozenset({"VLLM_HOST_IP", "VLLM_PLUGINS", "VLLM_SPEC_WORKERS_MULTIPROC_METHOD"})
"""Variables that vLLM reads outside of its table of variables, or that a plugin may read."""
UNKNOWN_LIMIT = 16
"""Maximum number of unknown variables, and of unknown flags, in messages. Each search for a similar name takes milliseconds."""
SCRIPT_FLAGS: Mapping[Distribution, frozenset[str]] = {Distribution.NVLLM: frozenset({"--tq", "--debug"})}
"""Flags of a distribution's start script, which `vllm serve` lacks. Rules set the equivalent vLLM flags; these flags are not passed on.
Source: nvLLM scripts/serve.sh.
"""


@dataclass(frozen=True, slots=True)
class Overrides:
    """The user's variables and flags. The value is None for a variable with `valueFrom` and for a flag without a value.

    Flags are spelled `--like-this`. `image`, `replaces_arguments` and `node_selector` are the effects of `spec.podTemplate` on the image,
    the command line and the nodes.
    """

    variables: Mapping[str, str | None]
    arguments: Mapping[str, str | None]
    image: str | None = None
    replaces_arguments: bool = False
    node_selector: Mapping[str, str] = field(default_factory=dict)

    def known_values(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the variables and flags with a value in the spec. A flag without a value has the empty string."""
        variables = {name: value for name, value in self.variables.items() if value is not None}
        return variables, {name: value or "" for name, value in self.arguments.items()}


def read_overrides(spec: VLLMDeploymentSpec) -> Overrides:
    """Collect the settings in `spec.engine` and in the engine container of `spec.podTemplate`, which takes precedence."""
    engine = spec.engine
    variables = {} if engine is None else {v.name: None if v.value_from is not None else v.value or "" for v in engine.env or ()}
    arguments = {normalize_flag(given.name): given.text for given in given_arguments(engine)}
    pod = mapping(spec.pod_template, "spec")
    container = next((entry for raw in sequence(pod.get("containers")) if (entry := mapping(raw)).get("name") == CONTAINER), {})
    return Overrides(
        variables={**variables, **_variables_of(container)},
        arguments=arguments,
        image=read_text(container.get("image")),
        replaces_arguments="args" in container or "command" in container,
        # A null removes the named entry, here and below.
        node_selector={str(key): str(value) for key, value in mapping(pod.get("nodeSelector")).items() if value is not None},
    )


def passed_arguments(engine: EngineSpec | None) -> tuple[EngineArgument, ...]:
    """Return the user's flags for `vllm serve`, in their order."""
    if engine is None:
        return ()
    of_script = SCRIPT_FLAGS.get(engine.distribution or Distribution.VLLM, frozenset())
    return tuple(argument for argument in given_arguments(engine) if normalize_flag(argument.name) not in of_script)


def _variables_of(container: Mapping[str, Any]) -> dict[str, str | None]:
    entries = ({key: value for key, value in mapping(raw).items() if value is not None} for raw in sequence(container.get("env")))
    return {str(e["name"]): None if "valueFrom" in e else str(e.get("value", "")) for e in entries if "name" in e}


def drop_overridden(
    env: Iterable[PlannedVariable], args: Iterable[PlannedArgument], overrides: Overrides
) -> tuple[list[PlannedVariable], list[PlannedArgument], list[str]]:
    """Remove settings of the user from the plan. Return also a sentence for each value that differs."""
    texts: list[str] = []
    kept_env: list[PlannedVariable] = []
    for variable in env:
        if variable.name not in overrides.variables:
            kept_env.append(variable)
            continue
        value = overrides.variables[variable.name]
        if value != variable.value:
            yours = "from another source" if value is None else f"to {value!r}"
            texts.append(f"You set {variable.name} {yours}. The operator would use {variable.value!r}.{_why(variable.reason)}")
    subjects = {subject_of(flag): (flag, value) for flag, value in overrides.arguments.items()}
    kept_args: list[PlannedArgument] = []
    for argument in args:
        given = next((subjects[subject] for subject in subjects_of(argument.name) if subject in subjects), None)
        if given is None:
            kept_args.append(argument)
        elif given != (argument.name, argument.text):
            ours = _show(argument.name, argument.text)
            texts.append(f"You set {_show(*given)}. The operator would use {ours}.{_why(argument.reason)}")
    return kept_env, kept_args, texts


def keep_first(planned: Iterable[Named]) -> list[Named]:
    """Keep the first entry of each name."""
    first: dict[str, Named] = {}
    for each in planned:
        first.setdefault(each.name, each)
    return list(first.values())


@dataclass(frozen=True, slots=True)
class NameCheck:
    """Problems with names that the user sets. `refusal` names a flag that is known to prevent the start."""

    notes: tuple[Note, ...] = ()
    refusal: str | None = None


def check_names(overrides: Overrides, version: ResolvedVersion, catalog: Catalog) -> NameCheck:
    """Check whether this version of vLLM has the variables and flags that the user sets, and whether they are passed to it.

    vLLM exits on an unknown flag. Only images of the vLLM project are refused, because other images may add flags with a plugin.
    """
    table = version.table
    if overrides.replaces_arguments:
        text = "spec.podTemplate replaces the command line of the engine, so no flag of this plan reaches it."
        return NameCheck((Note(Severity.RISK, text),))
    if table is None:
        return NameCheck()
    variables = [
        name
        for name in overrides.variables
        if name.startswith(ENGINE_VARIABLE_PREFIX) and name not in UNRECORDED and not table.knows_variable(name)
    ]
    known = _flags_of(version.distribution, catalog)
    flags = [flag for flag in overrides.arguments if flag.startswith("--") and not table.knows_flag(flag) and flag not in known]
    flags += [field for flag, value in overrides.arguments.items() for field in _fields(flag, value) if not table.knows_flag(field)]
    vllm = f"vLLM {table.version}"
    no_effect = [
        f"{vllm} does not know the variable {name}, so it has no effect.{instead_of(name, catalog.replacements, table.variables)}"
        for name in variables[:UNKNOWN_LIMIT]
    ]
    failing = [
        f"{vllm} does not know the flag {flag} and does not start with it, unless a plugin in the image adds the flag."
        f"{instead_of(flag, catalog.replacements, table.flags)}"
        for flag in flags[:UNKNOWN_LIMIT]
    ]
    exact = version.is_known and version.distribution is Distribution.VLLM
    notes = [*notes_of(Severity.FAILURE if exact else Severity.RISK, failing), *notes_of(Severity.NO_EFFECT, no_effect)]
    if more := len(variables) + len(flags) - len(notes):
        notes.append(Note(Severity.RISK, f"{vllm} does not know {more} more variables and flags."))
    wrong = [flag for flag in flags if "." not in flag and not any(each.startswith(flag) for each in table.flags)]
    if not (wrong and exact and catalog.images.is_official(version.image)):
        return NameCheck(tuple(notes))
    instead = instead_of(wrong[0], catalog.replacements, table.flags) or " Remove it from spec.engine."
    return NameCheck(tuple(notes), f"{vllm} does not know the flag {wrong[0]} and does not start with it.{instead}")


def _flags_of(distribution: Distribution, catalog: Catalog) -> frozenset[str]:
    if distribution is Distribution.VLLM:
        return frozenset()
    ways = (way for way in catalog.rules.invocations if distribution in way.when.members.get("distribution", ()))
    flags = frozenset(flag for way in ways for setting in way.settings.values() for flag in setting.arguments)
    return flags | SCRIPT_FLAGS.get(distribution, frozenset())


def _fields(flag: str, value: str | None) -> list[str]:
    """Return the fields of a flag with a JSON value, each in the form `--flag.field`."""
    try:
        content = json.loads(value) if value and value.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return []  # vLLM reports invalid JSON
    return [f"{flag}.{name}" for name in content] if isinstance(content, dict) else []


def instead_of(name: str, replacements: Mapping[str, str], known: Collection[str]) -> str:
    """Return a sentence with the replacement of a flag or variable, or the known name that it misspells."""
    if name in replacements:
        return f" Use {replacements[name]} instead."
    alike = similar(name, known, likeness=0.8)
    return f" Did you mean {alike[0]}?" if alike else ""


def subject_of(flag: str) -> str:
    """Return the option that a flag sets. `--no-enable-prefix-caching` and `enable_prefix_caching` set the same option."""
    stem, dot, field = flag.lstrip("-").partition(".")
    return stem.replace("_", "-").removeprefix("no-") + dot + field


def subjects_of(flag: str) -> list[str]:
    """Return the option that a flag sets, and the options that contain it: `--kernel-config.moe-backend` is part of `--kernel-config`."""
    parts = subject_of(flag).split(".")
    return [".".join(parts[: length + 1]) for length in range(len(parts))]


def _show(flag: str, value: str | None) -> str:
    return flag if value is None else f"{flag} {value}"


def _why(reason: str | None) -> str:
    return f" Reason: {reason}" if reason else ""


def engine_of(engine: EngineSpec | None, overrides: Overrides) -> EngineSpec | None:
    """Return the engine of the spec, with the image of `spec.podTemplate` if it sets one."""
    return (engine or EngineSpec()).model_copy(update={"image": overrides.image}) if overrides.image else engine
