"""Backends: requirements, settings that request them, and names in logs.

The requirements of a backend (GPUs, number formats, versions) come from the checks in vLLM's sources. With them the planner refuses a
forced backend before a Pod starts, suggests alternatives, and checks the rules. A backend without an entry is unknown, and not refused.

A backend is requested by a flag if the version has one, else by variables. The settings have changed often: MoE kernels were chosen by
VLLM_USE_FLASHINFER_MOE_FP8 and others up to 0.16 and by --moe-backend since 0.17.1. A backend has one name here for all versions; an
invocation knows how its versions spell it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from vllm_operator.catalog.entry import Entry, load_list
from vllm_operator.catalog.rule_matching import Component, Condition, RuleInput
from vllm_operator.catalog.versions import VersionTable


class Kernel(Entry):
    """A backend of a component, and its alternative requirements, one of which must hold.

    `needs` names additional contents of the image. `fallback` is the backend that vLLM uses, without an error, if this one does not work.
    """

    component: Component
    backend: str
    works: tuple[Condition, ...]
    needs: str | None = None
    fallback: str | None = None
    source: str


@dataclass(frozen=True, slots=True)
class Kernels:
    """All backends that have an entry."""

    entries: tuple[Kernel, ...]

    def find(self, component: str, backend: str) -> Kernel | None:
        """Return the entry of a backend."""
        return next((kernel for kernel in self.entries if (kernel.component, kernel.backend) == (component, backend)), None)

    def working(self, component: str, rule_input: RuleInput, chosen: Mapping[str, str]) -> tuple[str, ...]:
        """Return the backends of a component that no known fact rules out."""
        return tuple(
            kernel.backend
            for kernel in self.entries
            if kernel.component == component and any(condition.possible(rule_input, chosen) for condition in kernel.works)
        )


class Setting(Entry):
    """Variables and flags that together request a backend."""

    environment: Mapping[str, str] = {}
    arguments: Mapping[str, str] = {}


class Invocation(Entry):
    """One way to request the backends of a component.

    Either `flag` takes a name from the version's list `accepts` (in lower case with `spelling: lower`, with the
    exceptions in `names`), or `settings` holds what each backend needs.
    """

    component: Component
    when: Condition = Condition()
    flag: str | None = None
    accepts: str | None = None
    spelling: Literal["lower"] | None = None
    names: Mapping[str, str] = {}
    settings: Mapping[str, Setting] = Field({}, alias="backends")

    def spell(self, backend: str) -> str:
        """Return the backend's name in the spelling of this flag."""
        return self.names.get(backend) or (backend.lower() if self.spelling else backend)

    def _accepted(self, table: VersionTable) -> tuple[str, ...]:
        return table.backends.get(self.accepts or "", ())

    def setting(self, backend: str, table: VersionTable) -> Setting | None:
        """Return the setting that requests the backend; None if this invocation cannot request it from this version."""
        if self.flag is None:
            return self.settings.get(backend)
        name = self.spell(backend)
        return Setting(arguments={self.flag: name}) if name in self._accepted(table) else None

    def backends(self, table: VersionTable) -> tuple[str, ...]:
        """Return the backends that can be requested, by our names, sorted."""
        if self.flag is None:
            return tuple(sorted(self.settings))
        ours = {theirs: name for name, theirs in self.names.items()}
        return tuple(sorted(ours.get(name, name.upper() if self.spelling else name) for name in self._accepted(table)))

    def asked(self, rule_input: RuleInput, table: VersionTable) -> tuple[str, str] | None:
        """Return the backend that the user's flags or variables request, and the setting; None without one."""
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
        exact = next((name for name, setting in self.settings.items() if {**setting.environment, **setting.arguments} == used), None)
        if exact is None and all(name in table.variables and table.variables[name].default == value for name, value in used.items()):
            return None
        by = ", ".join(f"{name}={value}" for name, value in sorted(used.items()))
        return exact or by, by


def canonical(name: str, invocations: tuple[Invocation, ...]) -> str:
    """Return our name of a backend in a spelling of vLLM: `deep_gemm`, `flashinfer-cutlass`."""
    upper = name.upper().replace("-", "_")
    theirs = {spelled.upper().replace("-", "_"): ours for one in invocations for ours, spelled in one.names.items()}
    return theirs.get(upper, upper)


class LoggedName(Entry):
    """A pattern of logged names, and the backends that such a line can mean."""

    pattern: re.Pattern[str]
    backends: tuple[str, ...]


class LoggedNamesOfComponent(Entry):
    """The logged names of one component."""

    component: Component
    source: str
    names: tuple[LoggedName, ...]


@dataclass(frozen=True, slots=True)
class LoggedNames:
    """Names of backends in vLLM's log, with our names.

    The log writes "TRT-LLM ragged DeepSeek", `AgRsAll2AllManager` or `FlashInferCutlassNvFp4LinearKernel`, differently in each version. Our
    names allow a comparison of the engine's choice with the plan.
    """

    components: Mapping[str, tuple[LoggedName, ...]]

    def meant(self, component: str, logged: str) -> tuple[str, ...]:
        """Return the backends, by our names, that a logged name can mean; none if it is unknown."""
        bare = _bare(logged)
        return next((name.backends for name in self.components.get(component, ()) if name.pattern.fullmatch(bare)), ())

    def agree(self, component: str, logged: str, planned: str) -> bool:
        """Return whether a logged name can be the planned backend."""
        meant = self.meant(component, logged)
        return planned in meant if meant else _alike(logged, planned)


def _alike(one: str, other: str) -> bool:
    """Return whether one name contains the other, and both or neither name FlashInfer."""
    first, second = _bare(one), _bare(other)
    return (first in second or second in first) and ("flashinfer" in first) == ("flashinfer" in second)


def _bare(backend: str) -> str:
    return "".join(c for c in backend.casefold() if c.isascii() and c.isalnum())


def load_kernels() -> Kernels:
    """Read the requirements of backends that ship with the operator."""
    return Kernels(load_list(Kernel, "kernels.yaml"))


def load_invocations() -> tuple[Invocation, ...]:
    """Read the invocations that ship with the operator."""
    return load_list(Invocation, "invocations.yaml")


def load_logged_names() -> LoggedNames:
    """Read the logged names that ship with the operator."""
    return LoggedNames({entry.component.value: entry.names for entry in load_list(LoggedNamesOfComponent, "logged_names.yaml")})
