"""What the user sets on the engine directly, and how it meets the plan: the user's value wins, and the plan says so."""

import difflib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.api.labels import CONTAINER
from vllm_operator.api.spec import VLLMDeploymentSpec
from vllm_operator.api.status import PlannedArgument, PlannedVariable
from vllm_operator.catalog.versions import VersionTable, normalize_flag
from vllm_operator.pods.reading import mapping, read_text, sequence

ENGINE_VARIABLE_PREFIX = "VLLM_"
NAME_LIMIT = 128
UNRECORDED = frozenset({"VLLM_HOST_IP", "VLLM_PLUGINS", "VLLM_SPEC_WORKERS_MULTIPROC_METHOD"})
"""Variables that vLLM reads outside its table of variables, or that a plugin may read."""
UNKNOWN_LIMIT = 16
"""Unknown variables, and flags, that are named each: looking for what one is a misspelling of takes some milliseconds."""
LIKENESS = 0.8
"""From here on a name that is not known is taken for a misspelling (`--max-model-length`), below it for something else."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """The user's variables and flags; a value is None where it is read from elsewhere, or where a flag takes none.

    Flags are spelled `--like-this`. `image`, `replaces_arguments` and `node_selector` are what `spec.podTemplate` does to
    the image, the command line and the choice of nodes.
    """

    variables: Mapping[str, str | None]
    arguments: Mapping[str, str | None]
    image: str | None = None
    replaces_arguments: bool = False
    node_selector: Mapping[str, str] = field(default_factory=dict)

    def known_values(self) -> tuple[dict[str, str], dict[str, str]]:
        """Variables and flags whose value is written in the spec; a flag without value has the empty text."""
        variables = {name: value for name, value in self.variables.items() if value is not None}
        return variables, {name: value or "" for name, value in self.arguments.items()}


def read_overrides(spec: VLLMDeploymentSpec) -> Overrides:
    """Collect what the user sets in `spec.engine` and, beating that, on our container in `spec.podTemplate`."""
    engine = spec.engine
    variables = {} if engine is None else {v.name: None if v.value_from is not None else v.value or "" for v in engine.env or ()}
    arguments = {} if engine is None else {normalize_flag(a.name): a.value for a in engine.args or ()}
    pod = mapping(spec.pod_template, "spec")
    container = next((entry for raw in sequence(pod.get("containers")) if (entry := mapping(raw)).get("name") == CONTAINER), {})
    return Overrides(
        variables={**variables, **_variables_of(container)},
        arguments=arguments,
        image=read_text(container.get("image")),
        replaces_arguments="args" in container or "command" in container,
        # a null removes what it names, here and below
        node_selector={str(key): str(value) for key, value in mapping(pod.get("nodeSelector")).items() if value is not None},
    )


def _variables_of(container: Mapping[str, Any]) -> dict[str, str | None]:
    entries = ({key: value for key, value in mapping(raw).items() if value is not None} for raw in sequence(container.get("env")))
    return {str(e["name"]): None if "valueFrom" in e else str(e.get("value", "")) for e in entries if "name" in e}


def drop_overridden(
    env: Iterable[PlannedVariable], args: Iterable[PlannedArgument], overrides: Overrides
) -> tuple[list[PlannedVariable], list[PlannedArgument], list[str]]:
    """Leave out what the user sets himself; say so where his value is another one."""
    notes: list[str] = []
    kept_env: list[PlannedVariable] = []
    for variable in env:
        if variable.name not in overrides.variables:
            kept_env.append(variable)
            continue
        value = overrides.variables[variable.name]
        if value != variable.value:
            yours = "a value from elsewhere" if value is None else f"{value!r}"
            notes.append(f"You set {variable.name} to {yours}; the operator would set {variable.value!r}.{_why(variable.reason)}")
    subjects = {subject_of(flag): (flag, value) for flag, value in overrides.arguments.items()}
    kept_args: list[PlannedArgument] = []
    for argument in args:
        given = next((subjects[subject] for subject in subjects_of(argument.name) if subject in subjects), None)
        if given is None:
            kept_args.append(argument)
        elif given != (argument.name, argument.value):
            notes.append(
                f"You pass {_show(*given)}; the operator would pass {_show(argument.name, argument.value)}.{_why(argument.reason)}"
            )
    return kept_env, kept_args, notes


def check_names(overrides: Overrides, table: VersionTable | None, replacements: Mapping[str, str]) -> list[str]:
    """Name variables and flags of the user that this version of vLLM does not know, or that do not reach it.

    Args:
        overrides: What the user sets.
        table: What the version knows; None if that is not known.
        replacements: What to use instead of those that are gone.
    """
    if overrides.replaces_arguments:
        return ["spec.podTemplate replaces the command line of the engine: none of the flags of this plan is passed."]
    if table is None:
        return []
    variables = [
        name
        for name in overrides.variables
        if name.startswith(ENGINE_VARIABLE_PREFIX) and name not in UNRECORDED and not table.knows_variable(name)
    ]
    flags = [flag for flag in overrides.arguments if flag.startswith("--") and not table.knows_flag(flag)]
    flags += [field for flag, value in overrides.arguments.items() for field in _fields(flag, value) if not table.knows_flag(field)]
    notes = [
        f"vLLM {table.version} does not know the variable {name}: it has no effect.{_instead(name, replacements, table.variables)}"
        for name in variables[:UNKNOWN_LIMIT]
    ]
    notes += [
        f"vLLM {table.version} does not know the flag {flag}: it refuses to start, unless a plugin of the image adds the flag."
        f"{_instead(flag, replacements, table.flags)}"
        for flag in flags[:UNKNOWN_LIMIT]
    ]
    more = len(variables) + len(flags) - len(notes)
    return [*notes, f"vLLM {table.version} does not know {more} more variables and flags."] if more else notes


def _fields(flag: str, value: str | None) -> list[str]:
    """The fields of a flag that takes JSON, each as the flag of its own that it could be."""
    try:
        content = json.loads(value) if value and value.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return []  # vLLM will say so
    return [f"{flag}.{name}" for name in content] if isinstance(content, dict) else []


def _instead(name: str, replacements: Mapping[str, str], known: Collection[str]) -> str:
    """What took the place of a name, or the known name that it is a misspelling of."""
    if name in replacements:
        return f" Use {replacements[name]} instead."
    alike = difflib.get_close_matches(name[:NAME_LIMIT], sorted(known), 1, LIKENESS)
    return f" Did you mean {alike[0]}?" if alike else ""


def subject_of(flag: str) -> str:
    """What a flag is about: `--no-enable-prefix-caching` and `enable_prefix_caching` are about the same."""
    stem, dot, field = flag.lstrip("-").partition(".")
    return stem.replace("_", "-").removeprefix("no-") + dot + field


def subjects_of(flag: str) -> list[str]:
    """What a flag is about, and what it is a part of: `--kernel-config.moe-backend` is part of `--kernel-config`."""
    parts = subject_of(flag).split(".")
    return [".".join(parts[: length + 1]) for length in range(len(parts))]


def _show(flag: str, value: str | None) -> str:
    return flag if value is None else f"{flag} {value}"


def _why(reason: str | None) -> str:
    return f" ({reason})" if reason else ""
