"""Choice of the kernel backend of each component, and the settings that request it.

For each component the first of these decides: the user's pin (a field of `spec.backends`, or a flag or variable of the engine), quirks,
choices, vLLM's default. If vLLM's default is the chosen backend, nothing is set: every set variable is part of the key of the engine's
compile cache, and some variables at their default value differ from unset ones.

A pinned backend is accepted, refused, without effect, or unknown. An unknown backend is always planned with a note, because vLLM exits on a
pin that its selectors do not accept.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from vllm_operator.api.conditions import Reason, Verdict
from vllm_operator.api.labels import ALLOW_KNOWN_BAD_ANNOTATION
from vllm_operator.api.plan import BackendChoice, ChosenBy, PlannedArgument, PlannedVariable
from vllm_operator.api.spec import Attention, BackendsSpec, Distribution
from vllm_operator.api.status import ConditionStatus
from vllm_operator.catalog.backends import Invocation, Kernel, Selection, Selectors, Setting, canonical, nearest
from vllm_operator.catalog.notes import Note
from vllm_operator.catalog.rule_matching import Component, RuleInput
from vllm_operator.catalog.rules import Rule, RuleKind, Rules, RulesOfVersion, Severity
from vllm_operator.catalog.versions import VersionTable
from vllm_operator.planning.engine.image import ResolvedVersion
from vllm_operator.planning.engine.rule_input import (
    COMPONENTS,
    DEEP_GEMM,
    MLA_HEADS,
    attention_cases,
    attention_component,
    gemm_cases,
    moe_cases,
    prefill_cases,
)
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

    def not_offered(self, pin: Pin, invocations: tuple[Invocation, ...], chosen: dict[str, str]) -> str:
        """Return a message that this version has no setting for a backend of `spec.backends`, and which backends can be pinned."""
        offered = sorted({name for invocation in invocations for name in invocation.backends(self.table)} - {"AUTO"})
        working = self.rules.kernels.working(pin.component, self.rule_input, chosen)
        version = f"vLLM {self.table.version}"
        unknown = "" if self.is_known_version else f"The catalog does not know vLLM {self.version.version}. "
        if offered:
            choices = [name for name in offered if name in working] or offered
            return f"{unknown}{version} has no setting for {pin}. {pin.advice(choices)}"
        label = LABELS[pin.component]
        others = any("quantization" in invocation.when.members for invocation in self.rules.invocations[pin.component])
        if not others or self.rule_input.quantization in ("BF16", "FP16"):
            return f"{unknown}{version} has no setting for the {label} backend. {pin.advice()}"
        if self.rule_input.quantization is None:
            return (
                f"{unknown}The setting for the {label} backend of {version} depends on the quantization of the model, which is unknown. "
                f"Set spec.model.facts.quantization, or set {pin.where} to Auto."
            )
        return f"{unknown}{version} has no setting for the {label} backend of {self.rule_input.quantization} models. {pin.advice()}"

    def unsuited(self, pin: Pin, invocations: tuple[Invocation, ...], chosen: dict[str, str]) -> str | None:
        """Return why a pinned backend is known not to work, or None."""
        kernels = self.rules.kernels
        working = kernels.working(pin.component, self.rule_input, chosen)
        offered = self._settable(working, invocations)
        on = f" on {self.rule_input.architecture}" if self.rule_input.architecture else ""
        if self._is_refused_by_flag(pin, invocations):
            return f"vLLM {self.version.version} does not accept {pin.setting}. {pin.advice(offered)}"
        selection = self.selection(pin.component)
        if selection is not None and pin.backend in selection.accepts and pin.component is not Component.GEMM:
            return None
        if selection is not None and pin.backend in selection.refuses:
            reason = selection.refuses[pin.backend].rstrip(".")
            advice = pin.advice(self._settable(self._running(pin.component, selection.accepts, working), invocations))
            return f"vLLM {self.version.version} refuses {pin}{on}: {reason}. {advice}"
        if kernels.find(pin.component, pin.backend) is not None:
            if pin.backend in working:
                return None
            if selection is not None:
                offered = self._settable(self._running(pin.component, selection.accepts, working), invocations)
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

    def _settable(self, backends: Iterable[str], invocations: tuple[Invocation, ...]) -> list[str]:
        return sorted(name for name in backends if any(invocation.setting(name, self.table) is not None for invocation in invocations))

    def selection(self, component: Component) -> Selection | None:
        """Return the answer of vLLM's selector for this model and GPU; None without an answer."""
        if component is Component.MOE:
            cases = moe_cases(self._with_deep_gemm_set(), self.chosen)
        elif component in QUESTIONS:
            cases = QUESTIONS[component](self.rule_input)
        else:
            return None
        found = self.rules.selectors.get(component, Selectors()).find(self.table.release, self.rule_input.architecture or "", cases)
        asked = component is Component.MLA_DECODE and self.rule_input.mla_dims in MLA_HEADS
        if found is None or asked or self.rule_input.deepseek_heads is not False or component not in _LATENT:
            return found
        return self._without(found, self._for_deepseek_heads(component))

    def asked(self, component: Component) -> str:
        """Return the versions whose selectors answer for this one: the version itself, or its neighbours."""
        releases = nearest(self.rules.selectors.get(component, Selectors()).versions, self.table.release)
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

    def _is_refused_by_flag(self, pin: Pin, invocations: tuple[Invocation, ...]) -> bool:
        """Return whether a flag of the user has a value that exactly this version lacks."""
        taking = [
            invocation
            for invocation in invocations
            if invocation.flag is not None and pin.setting is not None and pin.setting.startswith(f"{invocation.flag} ")
        ]
        known = {name.upper() for invocation in taking for name in invocation.backends(self.table)}
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


AUTO = "auto"
ALLOW_ANYWAY = f'To start it anyway, set the annotation {ALLOW_KNOWN_BAD_ANNOTATION} to "true".'
SELECTORS = {
    **dict.fromkeys(COMPONENTS.values(), "vllm/platforms/cuda.py get_attn_backend_cls"),
    Component.MLA_PREFILL: "vllm/v1/attention/backends/mla/prefill/selector.py, before 0.22 the layers of MLA",
    Component.GEMM: "vllm/model_executor/layers/quantization",
    Component.MOE: "vllm/model_executor/layers/fused_moe/oracle",
}
"""vLLM's selector for each component that has a table."""
_SETTING_LENGTH = 120
"""Maximum characters of a user's flag or variable in a message."""


@dataclass(frozen=True, slots=True)
class BackendDecision:
    """The backends, their settings, and notes for the user.

    If `refusal` is set, the combination is known to fail and nothing may start. `env` and `args` contain only settings that
    this vLLM version knows and the user did not set. `rules` are the IDs of the rules that applied.
    """

    choices: tuple[BackendChoice, ...] = ()
    env: tuple[PlannedVariable, ...] = ()
    args: tuple[PlannedArgument, ...] = ()
    refusal: Verdict | None = None
    notes: tuple[Note, ...] = ()
    rules: tuple[str, ...] = ()


def choose_backends(
    version: ResolvedVersion,
    rule_input: RuleInput,
    rules: Rules,
    backends: BackendsSpec | None = None,
    *,
    model: str = "The model",
    allow_known_bad: bool = False,
) -> BackendDecision:
    """Choose a backend for every component that the rules say something about.

    Args:
        version: The vLLM version.
        rule_input: Model, GPU, parallelism and the user's settings of the engine; see `describe_rule_input`.
        rules: All rules.
        backends: The user's pins.
        model: Name of the model in messages.
        allow_known_bad: Whether to report combinations that are known to fail as notes instead of refusals.
    """
    pinned = pinned_backends(backends, rule_input)
    if version.table is None:
        return _without_table(version, pinned)
    of_version = rules.of(version.table.release)
    chosen: dict[str, str] = {}
    environment: dict[str, PlannedVariable] = {}
    check = PinCheck(version, version.table, rule_input, of_version, model, chosen, environment)
    choosing = _Choosing(version, version.table, rule_input, of_version, pinned, check, chosen, environment)
    for component in Component:
        choosing.decide(component)
    return choosing.result(allow_known_bad)


def pinned_backends(backends: BackendsSpec | None, rule_input: RuleInput) -> dict[Component, str]:
    """Return the set fields of `spec.backends` by component, without Auto."""
    if backends is None:
        return {}
    named = {
        attention_component(rule_input): backends.attention,
        Component.MLA_PREFILL: backends.mla_prefill,
        Component.GEMM: backends.gemm,
        Component.MOE: backends.moe,
        Component.ALL_TO_ALL: backends.all_to_all,
        Component.SAMPLER: backends.sampler,
    }
    return {component: name for component, name in named.items() if name is not None and name.lower() != AUTO}


def _without_table(version: ResolvedVersion, pinned: Mapping[Component, str]) -> BackendDecision:
    if not pinned:
        return BackendDecision()
    names = ", ".join(f"{LABELS[component]} {name}" for component, name in pinned.items())
    fields = ", ".join(f"spec.backends.{FIELDS[component]}" for component in pinned)
    message = (
        f"The catalog does not know how vLLM {version.version} selects {names}. Remove {fields} and set the flag or variable of that "
        "version in spec.engine.args or spec.engine.env, or use a newer vLLM."
    )
    return BackendDecision(refusal=_refusal(message))


def _refusal(message: str) -> Verdict:
    return Verdict(ConditionStatus.FALSE, Reason.KNOWN_BAD, message)


@dataclass(slots=True)
class _Choosing:
    version: ResolvedVersion
    table: VersionTable
    rule_input: RuleInput
    rules: RulesOfVersion
    pinned: Mapping[Component, str]
    check: PinCheck
    chosen: dict[str, str]
    env: dict[str, PlannedVariable]
    by_user: dict[str, str] = field(default_factory=dict)
    choices: list[BackendChoice] = field(default_factory=list)
    args: dict[str, PlannedArgument] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    known_bad: list[str] = field(default_factory=list)
    unsuited: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    followed: list[str] = field(default_factory=list)

    def decide(self, component: Component) -> None:
        """Choose the backend of one component if rules cover it."""
        invocations = tuple(invocation for invocation in self.rules.invocations[component] if self._holds(invocation))
        pin = self._pin(component, invocations)
        if pin is not None:
            if no_effect := self.check.no_effect(pin):
                self._note(Severity.NO_EFFECT, no_effect)
            elif taken := self.check.ignored(pin):
                self._choose_instead(pin, taken)
            elif pin.setting is None:
                self._set_pinned(pin, invocations)
            else:
                self._choose_pinned(pin, invocations)
            return
        applying = [rule for rule in self.rules.choosing[component] if self._holds(rule)]
        default = next((rule for rule in applying if rule.kind is RuleKind.ENGINE), None)
        selection = self.check.selection(component)
        first = next(iter(applying), None)
        if selection is not None and selection.raises and (first is default or (first and first.backend in selection.refuses)):
            self.unsuited[component] = self.check.raising(component, selection.raises)
        selected = None if selection is None or self._is_said(default, selection, component) else selection.takes
        taken = selected or (default.backend if default else None)
        for rule in applying:
            assert rule.backend is not None  # `applying` returns only rules with a backend
            if rule.kind is RuleKind.ENGINE and selected:
                break
            if rule.kind is RuleKind.ENGINE or rule.backend == taken:
                self._choose(component, rule.backend, ChosenBy.ENGINE, rule)
                return
            setting = self._setting(rule.backend, invocations)
            if setting is not None:
                self._choose(component, rule.backend, ChosenBy.RULE, rule, None if selected else default, taken)
                self._set(setting, f"{component.value} {rule.backend}: {rule.because}", rule.kind)
                return
            wanted = f"{LABELS[component]} backend {rule.backend}"
            text = f"The operator would choose {wanted}, but vLLM {self.version.version} has no setting for it. {rule.because}"
            self._note(_severity(rule.kind), text)
        if selection is not None and selected:
            self._choose_selected(component, selected, selection.others)

    def result(self, allow_known_bad: bool) -> BackendDecision:
        """Apply the rules that set, warn and refuse, and return the decision."""
        for rule in self.rules.others:
            if self._holds(rule):
                self._follow(rule)
        found = [*self.unsuited.values(), *self.known_bad]
        known_bad = [] if allow_known_bad else found
        if allow_known_bad:
            for text in found:
                self._note(Severity.FAILURE, f"Known to fail, started because of the annotation {ALLOW_KNOWN_BAD_ANNOTATION}: {text}")
        refusals = [*self.refusals, *known_bad, *([ALLOW_ANYWAY] if known_bad else ())]
        return BackendDecision(
            choices=tuple(self.choices),
            env=tuple(self.env[name] for name in sorted(self.env)),
            args=tuple(self.args[name] for name in sorted(self.args)),
            refusal=_refusal(" ".join(refusals)) if refusals else None,
            notes=tuple(dict.fromkeys(self.notes)),
            rules=tuple(dict.fromkeys(self.followed)),
        )

    def _holds(self, entry: Rule | Invocation) -> bool:
        return entry.when.holds(self.rule_input, self.chosen, self.by_user)

    def _note(self, severity: Severity, text: str) -> None:
        self.notes.append(Note(severity, text))

    def _setting(self, backend: str, invocations: tuple[Invocation, ...]) -> Setting | None:
        return next((setting for invocation in invocations if (setting := invocation.setting(backend, self.table)) is not None), None)

    def _pin(self, component: Component, invocations: tuple[Invocation, ...]) -> Pin | None:
        """Return the user's pin of a component. A field of `spec.backends` takes precedence over a flag or variable."""
        if component in self.pinned:
            return Pin(component, canonical(self.pinned[component], invocations))
        if component in COMPONENTS.values() and component is not attention_component(self.rule_input):
            return None  # one flag applies to all kinds of attention
        for invocation in invocations:
            if asked := invocation.asked(self.rule_input, self.table):
                name = canonical(asked[0], invocations)
                return Pin(component, name if name in invocation.backends(self.table) else asked[0], asked[1][:_SETTING_LENGTH])
        return None

    def _set_pinned(self, pin: Pin, invocations: tuple[Invocation, ...]) -> None:
        setting = self._setting(pin.backend, invocations)
        if setting is None:
            self.refusals.append(self.check.not_offered(pin, invocations, self.chosen))
            return
        self._choose_pinned(pin, invocations)
        if refusing := self.check.refused_setting(setting, self.rules.others, self.chosen, self.by_user):
            self.unsuited[pin.component] = (
                f"{pin.where} sets {_spell(setting)}, with which vLLM does not start here. {refusing.because} {pin.advice()}"
            )
            return
        self._set(setting, f"{pin.where} is {pin.backend}.")

    def _choose_pinned(self, pin: Pin, invocations: tuple[Invocation, ...]) -> None:
        if unsuited := self.check.unsuited(pin, invocations, self.chosen):
            self.unsuited[pin.component] = unsuited
        elif unknown := self.check.unknown(pin, self.chosen):
            self._note(Severity.RISK, unknown)
        reason = f"Set by {pin.where}.{self._alternative(pin)}"[:1024]
        self.chosen[pin.component] = self.by_user[pin.component] = pin.backend
        choice = BackendChoice(component=pin.component, backend=pin.backend[:128], chosen_by=ChosenBy.USER, reason=reason)
        self.choices.append(choice)

    def _choose_instead(self, pin: Pin, taken: str) -> None:
        text = f"vLLM {self.version.version} takes {taken} for this model on {self.rule_input.architecture}, so {pin.where} has no effect."
        self._note(Severity.NO_EFFECT, f"{text} {pin.advice()}")
        kernel = self.rules.kernels.find(pin.component, pin.backend)
        if pin.component in SELECTORS or kernel is None:
            self._choose_selected(pin.component, taken)
            return
        self.chosen[pin.component] = taken
        reason = f"vLLM takes it in place of {pin.backend}, which does not work here."
        choice = BackendChoice(component=pin.component, backend=taken, chosen_by=ChosenBy.ENGINE, reason=reason, source=kernel.source[:512])
        self.choices.append(choice)

    def _alternative(self, pin: Pin) -> str:
        """Return the backend without the pin, if known."""
        rule = next((rule for rule in self.rules.choosing[pin.component] if self._holds(rule)), None)
        selection = self.check.selection(pin.component)
        is_engine = rule is None or rule.kind is RuleKind.ENGINE
        backend = rule and rule.backend
        if is_engine and selection is not None and selection.takes and not self._is_said(rule, selection, pin.component):
            backend = selection.takes
        if backend is None:
            return ""
        return f" Without it, {'vLLM' if is_engine else 'the operator'} would choose {'the same' if backend == pin.backend else backend}."

    def _is_said(self, default: Rule | None, selection: Selection, component: Component) -> bool:
        """Return whether the rule about vLLM's default names the selector's result, or is more exact about the model."""
        if default is None:
            return False
        if component is Component.MOE:  # its questions name the families; alternatives are for formats that are not known exactly
            possible = default.backend in selection.others and selection.takes in default.alternatives
            return default.backend == selection.takes or possible
        asked = component in COMPONENTS.values() and (self.rule_input.attention_sinks or self.rule_input.image_prefix)
        if "family" in default.when.members and not asked:
            return True
        said = (default.backend,) if component is Component.GEMM else (default.backend, *default.alternatives)
        return selection.takes in said or default.backend in selection.others

    def _choose_selected(self, component: Component, backend: str, others: tuple[str, ...] = ()) -> None:
        self.chosen[component] = backend
        self.choices.append(
            BackendChoice(
                component=component,
                backend=backend,
                chosen_by=ChosenBy.ENGINE,
                reason=f"It is the vLLM default on {self.rule_input.architecture}.",
                source=f"{SELECTORS[component]} ({self.check.asked(component)}), run by hack/oracle",
                alternatives=list(others) or None,
            )
        )

    def _choose(
        self,
        component: Component,
        backend: str,
        chosen_by: ChosenBy,
        rule: Rule,
        default: Rule | None = None,
        taken: str | None = None,
    ) -> None:
        self.chosen[component] = backend
        self._follow(rule)
        reason = rule.because
        if default is not None:
            self.followed.append(default.id)
        if taken is not None:
            reason += f" The vLLM default is {taken}."
        self.choices.append(
            BackendChoice(
                component=component,
                backend=backend,
                chosen_by=chosen_by,
                reason=reason,
                source=f"{rule.id}: {rule.source}"[:512],
                alternatives=(list(rule.alternatives) or None) if chosen_by is ChosenBy.ENGINE else None,
            )
        )

    def _follow(self, rule: Rule) -> None:
        self.followed.append(rule.id)
        setting = Setting(environment=rule.environment, arguments={name: value or "" for name, value in rule.arguments.items()})
        self._set(setting, rule.because, rule.kind)
        if rule.refuse:
            self.known_bad.append(self._fill(rule.refuse))
            for component in (rule.component, *rule.when.forced):
                self.unsuited.pop(component, None)  # the message of the rule is more precise
        if rule.warn:
            self._note(rule.severity, self._fill(rule.warn))

    def _fill(self, text: str) -> str:
        return text.replace("{version}", self.version.version).replace("{architecture}", self.rule_input.architecture or "this GPU")

    def _set(self, setting: Setting, reason: str, kind: RuleKind = RuleKind.CHOICE) -> None:
        for name, value in setting.environment.items():
            if name in self.rule_input.environment:
                self._overridden(name, value, self.rule_input.environment[name], reason, kind)
            else:
                self.env[name] = PlannedVariable(name=name, value=value, reason=reason[:1024])
        for name, value in setting.arguments.items():
            if name in self.rule_input.arguments:
                self._overridden(name, value, self.rule_input.arguments[name], reason, kind)
            else:
                self.args[name] = PlannedArgument(name=name, value=value or None, reason=reason[:1024])

    def _overridden(self, name: str, ours: str, theirs: str, reason: str, kind: RuleKind) -> None:
        if ours == theirs:
            return
        would = f"use {ours}" if ours else "set it"
        self._note(_severity(kind), f"spec.engine sets {name}{f' to {theirs}' if theirs else ''}. The operator would {would}: {reason}")


def _spell(setting: Setting) -> str:
    return ", ".join([f"{name}={value}" for name, value in setting.environment.items()] + list(setting.arguments))


def _severity(kind: RuleKind) -> Severity:
    """Return the severity if a rule cannot be followed. A quirk avoids a failure."""
    return Severity.RISK if kind is RuleKind.QUIRK else Severity.INFO
