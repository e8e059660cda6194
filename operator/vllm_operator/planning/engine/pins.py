"""Check of backends that the user pins in `spec.backends` or with a flag or variable, against the catalog.

A pinned backend is accepted, refused, without effect, or unknown. An unknown backend is always planned with a note, because vLLM exits on a
pin that its selectors do not accept.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from vllm_operator.api.plan import PlannedVariable
from vllm_operator.api.spec import Attention, Distribution
from vllm_operator.catalog.backends import Invocation, Kernel, Setting
from vllm_operator.catalog.rule_matching import Component, RuleInput
from vllm_operator.catalog.rules import Rule, RulesOfVersion
from vllm_operator.catalog.selectors import NO_SELECTORS, Selection, nearest
from vllm_operator.catalog.versions import VersionTable
from vllm_operator.planning.engine.questions import COMPONENTS, DEEP_GEMM, MLA_HEADS, attention_cases, gemm_cases, moe_cases, prefill_cases
from vllm_operator.planning.engine.version import ResolvedVersion
from vllm_operator.text.wording import listed

FIELDS = {
    Component.ATTENTION: "attention",
    Component.MLA_DECODE: "attention",
    Component.SPARSE_ATTENTION: "attention",
    Component.MLA_PREFILL: "mlaPrefill",
    Component.GEMM: "gemm",
    Component.MOE: "moe",
    Component.ALL_TO_ALL: "allToAll",
    Component.SAMPLER: "sampler",
}
"""The field of `spec.backends` for each component that has one."""
LABELS = {
    **{component: component.value for component in Component},
    Component.ATTENTION: "attention",
    Component.MLA_DECODE: "attention",
    Component.SPARSE_ATTENTION: "attention",
    Component.MLA_PREFILL: "MLA prefill",
    Component.ALL_TO_ALL: "all-to-all",
    Component.SAMPLER: "sampler",
}
_KINDS = {Component.ATTENTION: "attention without MLA", Component.MLA_DECODE: "MLA", Component.SPARSE_ATTENTION: "sparse MLA"}
QUESTIONS: Mapping[Component, Callable[[RuleInput], Sequence[str]]] = {
    **{component: partial(attention_cases, component) for component in COMPONENTS.values()},
    Component.MLA_PREFILL: prefill_cases,
    Component.GEMM: gemm_cases,
}
"""Function that returns the possible cases of a table for a deployment, by component."""
_LATENT = frozenset({Component.MLA_DECODE, Component.SPARSE_ATTENTION})
_FACTS = {
    "architecture": "the GPU architecture",
    "attention": "the attention of the model (spec.model.facts.attention)",
    "quantization": "the quantization of the model (spec.model.facts.quantization)",
    "mixture_of_experts": "the number of experts of the model (spec.model.facts.experts)",
    "family": "the family of the model",
    "routing": "the routing of the model's experts",
    "deepseek_heads": "the head sizes of the model",
}


@dataclass(frozen=True, slots=True)
class Pin:
    """A backend that the user pins. `setting` is the flag or variable in `spec.engine` that pins it; None for `spec.backends`."""

    component: Component
    backend: str
    setting: str | None = None

    @property
    def where(self) -> str:
        """The source of the pin: `spec.backends.moe`, or `--moe-backend triton in spec.engine`."""
        return f"spec.backends.{FIELDS[self.component]}" if self.setting is None else f"{self.setting} in spec.engine"

    def advice(self, offered: Iterable[str] = ()) -> str:
        """Return advice for the user as a sentence. `offered` are other backends that can be pinned."""
        others = list(offered)
        if self.setting is None:
            return f"Set {self.where} to {listed([*others, 'Auto'], 'or')}."
        field = (
            f" To pin a backend, set spec.backends.{FIELDS[self.component]} to {listed(others, 'or')}."
            if others and self.component in FIELDS
            else ""
        )
        return f"Remove {self.setting} from spec.engine.{field}"

    def __str__(self) -> str:
        return f"{LABELS[self.component]} backend {self.backend}"


@dataclass(frozen=True, slots=True)
class PinCheck:
    """Checks pins for one model, GPU and version.

    `model` is the model name in messages. `chosen` and `environment` are the backends chosen so far and their variables.
    """

    version: ResolvedVersion
    table: VersionTable
    rule_input: RuleInput
    rules: RulesOfVersion
    model: str
    chosen: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, PlannedVariable] = field(default_factory=dict)

    def no_effect(self, pin: Pin) -> str | None:
        """Return why the pin is ineffective, or None."""
        missing = None
        if pin.component in (Component.MOE, Component.ALL_TO_ALL) and self.rule_input.mixture_of_experts is False:
            missing = "has no experts"
        elif pin.component is Component.MLA_PREFILL and self.rule_input.attention in (Attention.MHA, Attention.GQA, Attention.HYBRID):
            missing = "does not use MLA"
        elif pin.component is Component.LINEAR_ATTENTION and self.rule_input.attention not in (None, Attention.HYBRID):
            missing = "has no linear attention"
        return missing and f"{self.model} {missing}, so {pin.where} has no effect. Remove it."

    def not_offered(self, pin: Pin, ways: tuple[Invocation, ...], chosen: dict[str, str]) -> str:
        """Return a message that this version has no setting for a backend of `spec.backends`, and which backends can be pinned."""
        offered = sorted({name for way in ways for name in way.backends(self.table)} - {"AUTO"})
        working = self.rules.kernels.working(pin.component, self.rule_input, chosen)
        version = f"vLLM {self.table.version}"
        unknown = "" if self.is_known_version else f"The catalog does not know vLLM {self.version.version}. "
        if offered:
            choices = [name for name in offered if name in working] or offered
            return f"{unknown}{version} has no setting for {pin}. {pin.advice(choices)}"
        label = LABELS[pin.component]
        others = any("quantization" in way.when.members for way in self.rules.invocations[pin.component])
        if not others or self.rule_input.quantization in ("BF16", "FP16"):
            return f"{unknown}{version} has no setting for the {label} backend. {pin.advice()}"
        if self.rule_input.quantization is None:
            return (
                f"{unknown}The setting for the {label} backend of {version} depends on the quantization of the model, which is unknown. "
                f"Set spec.model.facts.quantization, or set {pin.where} to Auto."
            )
        return f"{unknown}{version} has no setting for the {label} backend of {self.rule_input.quantization} models. {pin.advice()}"

    def unsuited(self, pin: Pin, ways: tuple[Invocation, ...], chosen: dict[str, str]) -> str | None:
        """Return why a pinned backend is known not to work, or None."""
        kernels = self.rules.kernels
        working = kernels.working(pin.component, self.rule_input, chosen)
        offered = self._settable(working, ways)
        on = f" on {self.rule_input.architecture}" if self.rule_input.architecture else ""
        if self._is_refused_by_flag(pin, ways):
            return f"vLLM {self.version.version} does not accept {pin.setting}. {pin.advice(offered)}"
        selection = self.selection(pin.component)
        if selection is not None and pin.backend in selection.accepts and pin.component is not Component.GEMM:
            return None
        if selection is not None and pin.backend in selection.refuses:
            reason = selection.refuses[pin.backend].rstrip(".")
            advice = pin.advice(self._settable(self._running(pin.component, selection.accepts, working), ways))
            return f"vLLM {self.version.version} refuses {pin}{on}: {reason}. {advice}"
        if kernels.find(pin.component, pin.backend) is not None:
            if pin.backend in working:
                return None
            if selection is not None:
                offered = self._settable(self._running(pin.component, selection.accepts, working), ways)
            weights = f" for {self.rule_input.quantization} models" if self.rule_input.quantization else ""
            return f"{_capital(str(pin))} does not work with vLLM {self.version.version}{on}{weights}. {pin.advice(offered)}"
        if pin.component not in _KINDS or self.rule_input.attention is None:
            return None
        meant = next((component for component in _KINDS if kernels.find(component, pin.backend)), None)
        if meant is None:
            return None
        return f"{_capital(str(pin))} is for {_KINDS[meant]}. {self.model} uses {_KINDS[pin.component]}. {pin.advice(offered)}"

    def unknown(self, pin: Pin, chosen: dict[str, str]) -> str | None:
        """Return a message that the catalog does not know whether a pinned backend works, and why; None if it knows."""
        if pin.component not in FIELDS:
            return None
        gap = self._gap(pin, self.rules.kernels.find(pin.component, pin.backend), chosen)
        if gap is None:
            return None
        engine = f"{self.version.distribution.value} {self.version.version}"
        what = f"whether {engine} accepts {pin} here"
        if pin.setting is not None and pin.setting == pin.backend:
            what = f"which {LABELS[pin.component]} backend {engine} uses with {pin.setting}"
        architecture = f" {self.rule_input.architecture}" if self.rule_input.architecture else ""
        return (
            f"The catalog does not know {what}: {gap}. If the engine does not start, {_small(pin.advice())} For what is known, see "
            f"`vllm-operator catalog gpus{architecture}` and `vllm-operator catalog versions {self.table.version}`."
        )

    def refused_setting(self, setting: Setting, rules: Iterable[Rule], chosen: Mapping[str, str], forced: Mapping[str, str]) -> Rule | None:
        """Return the rule that would refuse a variable if the user set the variables of a pin; None if there is none."""
        if not setting.environment:
            return None
        as_if = replace(self.rule_input, environment={**self.rule_input.environment, **setting.environment})
        about = (rule for rule in rules if rule.refuse and setting.environment.keys() & rule.when.environment.keys())
        return next((rule for rule in about if rule.when.holds(as_if, chosen, forced)), None)

    def raising(self, component: Component, reason: str) -> str:
        """Return a message why vLLM does not start with the model's layers on this GPU."""
        use = "Use another vLLM version, other GPUs, or a model with another quantization."
        if component is Component.MOE and self.rule_input.exchanges_tokens:
            use = f"Set spec.backends.allToAll to another backend, or use {use.removeprefix('Use ')}"
        on = self.rule_input.architecture
        return f"vLLM {self.version.version} does not start with {self.model} on {on}: {reason.rstrip('.')}. {use}"

    def ignored(self, pin: Pin) -> str | None:
        """Return the backend that vLLM uses instead of a pinned one; None if no replacement is known."""
        kernel = self.rules.kernels.find(pin.component, pin.backend)
        if kernel is not None and kernel.fallback is not None:
            works = any(when.possible(self.rule_input, self.chosen) for when in kernel.works)
            return None if works else kernel.fallback
        selection = self.selection(pin.component)
        return None if selection is None else selection.ignores.get(pin.backend)

    def _running(self, component: Component, accepted: Iterable[str], working: Iterable[str]) -> list[str]:
        """Return the accepted backends that run. Some kernels of dense layers accept a GPU that they were not built for."""
        entry = self.rules.kernels.find
        return [name for name in accepted if component is not Component.GEMM or name in working or entry(component, name) is None]

    def _settable(self, backends: Iterable[str], ways: tuple[Invocation, ...]) -> list[str]:
        return sorted(name for name in backends if any(way.setting(name, self.table) is not None for way in ways))

    def selection(self, component: Component) -> Selection | None:
        """Return the answer of vLLM's selector for this model and GPU; None without an answer."""
        if component is Component.MOE:
            cases = moe_cases(self._with_deep_gemm_set(), self.chosen)
        elif component in QUESTIONS:
            cases = QUESTIONS[component](self.rule_input)
        else:
            return None
        found = self.rules.selectors.get(component, NO_SELECTORS).find(self.table.release, self.rule_input.architecture or "", cases)
        asked = component is Component.MLA_DECODE and self.rule_input.mla_dims in MLA_HEADS
        if found is None or asked or self.rule_input.deepseek_heads is not False or component not in _LATENT:
            return found
        return self._without(found, self._for_deepseek_heads(component))

    def asked(self, component: Component) -> str:
        """Return the versions whose selectors answer for this one: the version itself, or its neighbours."""
        releases = nearest(self.rules.selectors.get(component, NO_SELECTORS).versions, self.table.release)
        return ", ".join(".".join(map(str, release)) for release in releases)

    def _for_deepseek_heads(self, component: Component) -> frozenset[str]:
        """Return the backends that work only with the head sizes of DeepSeek R1, for which the MLA questions were asked."""
        with_them = self.rules.kernels.working(component, replace(self.rule_input, deepseek_heads=True), self.chosen)
        return frozenset(with_them).difference(self.rules.kernels.working(component, self.rule_input, self.chosen))

    @staticmethod
    def _without(selection: Selection, backends: frozenset[str]) -> Selection:
        """Return the answer without these backends."""
        taken = None if selection.takes in backends else selection.takes
        return replace(selection, takes=taken, accepts=tuple(name for name in selection.accepts if name not in backends))

    def _with_deep_gemm_set(self) -> RuleInput:
        """Return the input with the DeepGEMM variables that pins of other layers set, because they affect experts too."""
        set_for_others = {name: self.environment[name].value or "" for name in DEEP_GEMM if name in self.environment}
        if not set_for_others:
            return self.rule_input
        return replace(self.rule_input, environment={**set_for_others, **self.rule_input.environment})

    def _is_refused_by_flag(self, pin: Pin, ways: tuple[Invocation, ...]) -> bool:
        """Return whether a flag of the user has a value that exactly this version lacks."""
        taking = [way for way in ways if way.flag is not None and pin.setting is not None and pin.setting.startswith(f"{way.flag} ")]
        known = {name.upper() for way in taking for name in way.backends(self.table)}
        exact = self.is_known_version and self.version.distribution is Distribution.VLLM and pin.component in FIELDS
        return exact and bool(known) and pin.backend.upper() not in {*known, "AUTO"}

    @property
    def is_known_version(self) -> bool:
        """Whether the catalog has exactly this version, not only a neighbour."""
        return self.version.is_known

    def _gap(self, pin: Pin, kernel: Kernel | None, chosen: dict[str, str]) -> str | None:
        """Return which facts the catalog lacks about a pin; None if it lacks none."""
        selection = self.selection(pin.component)
        answered = selection is not None and (pin.backend in selection.accepts or pin.backend in selection.refuses)
        if kernel is None and not answered and not self._is_covered(pin, chosen):
            return "it has no entry for this backend"
        if not self.is_known_version:
            return f"it has no entry for this version, only for {self.table.version}"
        if self.version.distribution is Distribution.NVLLM and not (
            kernel and any("distribution" in when.members for when in kernel.works)
        ):
            return "it has no entry for nvLLM, only for vLLM"
        if kernel is None or answered:
            return None
        possible = [when for when in kernel.works if when.possible(self.rule_input, chosen)]
        if any(when.holds(self.rule_input, chosen, {}) for when in possible):
            return None
        facts = {fact for when in possible for fact in (*when.members, *when.numbers) if getattr(self.rule_input, fact) is None}
        named = [name for fact, name in _FACTS.items() if fact in facts]
        return f"{listed(named, 'and')} {'is' if len(named) == 1 else 'are'} unknown" if named else None

    def _is_covered(self, pin: Pin, chosen: dict[str, str]) -> bool:
        """Return whether a rule chooses the backend here, or covers the pin."""
        component, backend = pin.component, pin.backend
        choosing = (rule for rule in self.rules.choosing[component] if backend in (rule.backend, *rule.alternatives))
        about = (rule for rule in self.rules.others if backend in rule.when.forced.get(component, ()))
        pinned: dict[str, str] = {component: backend}
        return any(rule.when.holds(self.rule_input, {**chosen, **pinned}, pinned) for rule in (*choosing, *about))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _small(text: str) -> str:
    return text[:1].lower() + text[1:]
