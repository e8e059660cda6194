"""Choice of the kernel backend of each component, and the settings that request it.

For each component the first of these decides: the user's pin (a field of `spec.backends`, or a flag or variable of the engine), quirks,
choices, vLLM's default. If vLLM's default is the chosen backend, nothing is set: every set variable is part of the key of the engine's
compile cache, and some variables at their default value differ from unset ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_operator.api.conditions import Reason, Verdict
from vllm_operator.api.labels import ALLOW_KNOWN_BAD_ANNOTATION
from vllm_operator.api.plan import BackendChoice, ChosenBy, PlannedArgument, PlannedVariable
from vllm_operator.api.spec import BackendsSpec
from vllm_operator.api.status import ConditionStatus
from vllm_operator.catalog.backends import Invocation, Setting, canonical
from vllm_operator.catalog.notes import Note
from vllm_operator.catalog.rule_matching import Component, RuleInput
from vllm_operator.catalog.rules import Rule, RuleKind, Rules, RulesOfVersion, Severity
from vllm_operator.catalog.selectors import Selection
from vllm_operator.catalog.versions import VersionTable
from vllm_operator.planning.engine.pins import FIELDS, LABELS, Pin, PinCheck
from vllm_operator.planning.engine.questions import COMPONENTS, attention_component
from vllm_operator.planning.engine.version import ResolvedVersion

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
        ways = tuple(way for way in self.rules.invocations[component] if self._holds(way))
        pin = self._pin(component, ways)
        if pin is not None:
            if no_effect := self.check.no_effect(pin):
                self._note(Severity.NO_EFFECT, no_effect)
            elif taken := self.check.ignored(pin):
                self._choose_instead(pin, taken)
            elif pin.setting is None:
                self._set_pinned(pin, ways)
            else:
                self._choose_pinned(pin, ways)
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
            setting = self._setting(rule.backend, ways)
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

    def _setting(self, backend: str, ways: tuple[Invocation, ...]) -> Setting | None:
        return next((setting for way in ways if (setting := way.setting(backend, self.table)) is not None), None)

    def _pin(self, component: Component, ways: tuple[Invocation, ...]) -> Pin | None:
        """Return the user's pin of a component. A field of `spec.backends` takes precedence over a flag or variable."""
        if component in self.pinned:
            return Pin(component, canonical(self.pinned[component], ways))
        if component in COMPONENTS.values() and component is not attention_component(self.rule_input):
            return None  # one flag applies to all kinds of attention
        for way in ways:
            if asked := way.asked(self.rule_input, self.table):
                name = canonical(asked[0], ways)
                return Pin(component, name if name in way.backends(self.table) else asked[0], asked[1][:_SETTING_LENGTH])
        return None

    def _set_pinned(self, pin: Pin, ways: tuple[Invocation, ...]) -> None:
        setting = self._setting(pin.backend, ways)
        if setting is None:
            self.refusals.append(self.check.not_offered(pin, ways, self.chosen))
            return
        self._choose_pinned(pin, ways)
        if refusing := self.check.refused_setting(setting, self.rules.others, self.chosen, self.by_user):
            self.unsuited[pin.component] = (
                f"{pin.where} sets {_spell(setting)}, with which vLLM does not start here. {refusing.because} {pin.advice()}"
            )
            return
        self._set(setting, f"{pin.where} is {pin.backend}.")

    def _choose_pinned(self, pin: Pin, ways: tuple[Invocation, ...]) -> None:
        if unsuited := self.check.unsuited(pin, ways, self.chosen):
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
