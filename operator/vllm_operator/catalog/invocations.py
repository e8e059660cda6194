"""How a backend is asked for: by a flag where the version has one, else by variables.

The way has changed often: MoE kernels were chosen by VLLM_USE_FLASHINFER_MOE_FP8 and others up to 0.16 and by
--moe-backend since 0.17.1. Backends go here by one name for all versions; an invocation knows how its version
spells it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.catalog.resources import read_data
from vllm_operator.catalog.rule_matching import RuleInput, RuleMatch, parse_match
from vllm_operator.catalog.versions import VersionTable


@dataclass(frozen=True, slots=True)
class Setting:
    """Variables and flags that together ask for a backend."""

    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Invocation:
    """One way to ask for the backends of a component.

    Either `flag` takes a name out of the version's list `accepts` (spelled in lower case if `lower`, with the
    exceptions in `names`), or `settings` holds what each backend needs.
    """

    component: str
    when: RuleMatch
    flag: str | None = None
    accepts: str | None = None
    lower: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Setting] = field(default_factory=dict)

    def spell(self, backend: str) -> str:
        """The backend's name as this flag takes it."""
        return self.names.get(backend) or (backend.lower() if self.lower else backend)

    def setting(self, backend: str, table: VersionTable) -> Setting | None:
        """What asks for the backend; None if this version cannot be asked for it this way."""
        if self.flag is None:
            return self.settings.get(backend)
        name = self.spell(backend)
        return Setting(arguments={self.flag: name}) if name in table.backends.get(self.accepts or "", ()) else None

    def backends(self, table: VersionTable) -> tuple[str, ...]:
        """The backends that can be asked for, by our names, sorted."""
        if self.flag is None:
            return tuple(sorted(self.settings))
        ours = {theirs: name for name, theirs in self.names.items()}
        return tuple(sorted(ours.get(name, name.upper() if self.lower else name) for name in table.backends.get(self.accepts or "", ())))

    def asked(self, rule_input: RuleInput, table: VersionTable) -> tuple[str, str] | None:
        """The backend that the user's own flags or variables ask for, and by what; None if they ask for none."""
        if self.flag is not None:
            value = rule_input.arguments.get(self.flag)
            if value is None:
                return None
            match = next((name for name in self.backends(table) if self.spell(name) == value), value)
            return match, f"{self.flag} {value}"
        if not rule_input.environment and not rule_input.arguments:
            return None
        used: dict[str, str] = {}
        for setting in self.settings.values():
            used |= {name: rule_input.environment[name] for name in setting.environment if name in rule_input.environment}
            used |= {name: rule_input.arguments[name] for name in setting.arguments if name in rule_input.arguments}
        if not used:
            return None
        exact = (name for name, setting in self.settings.items() if {**setting.environment, **setting.arguments} == used)
        by = ", ".join(f"{name}={value}" for name, value in sorted(used.items()))
        return next(exact, by), by


def canonical(name: str, invocations: tuple[Invocation, ...]) -> str:
    """Our name of a backend that a user may spell in vLLM's way: `deep_gemm`, `flashinfer-cutlass`."""
    upper = name.upper().replace("-", "_")
    theirs = {spelled.upper().replace("-", "_"): ours for one in invocations for ours, spelled in one.names.items()}
    return theirs.get(upper, upper)


def _invocation(data: Mapping[str, Any]) -> Invocation:
    return Invocation(
        component=data["component"],
        when=parse_match(data.get("when", {})),
        flag=data.get("flag"),
        accepts=data.get("accepts"),
        lower=data.get("spelling") == "lower",
        names=data.get("names", {}),
        settings={
            backend: Setting(
                {name: str(value) for name, value in setting.get("environment", {}).items()},
                {name: str(value) for name, value in setting.get("arguments", {}).items()},
            )
            for backend, setting in data.get("backends", {}).items()
        },
    )


def load_invocations() -> tuple[Invocation, ...]:
    """Read the invocations that ship with the operator.

    Raises:
        ValueError: A condition cannot be read.
    """
    return tuple(_invocation(data) for data in read_data("invocations.yaml"))
