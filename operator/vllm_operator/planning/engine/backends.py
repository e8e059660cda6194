"""Which kernel backend each part of the engine shall use, and what must be set for it.

For each component four kinds of knowledge are asked, in this order: what the user forces (a field of
`spec.backends`, or a flag or variable of the engine); quirks; choices; what vLLM does by itself. Where the
engine arrives at the choice by itself nothing is set: every variable that is set is part of the key of the
engine's compile cache, and for some of them even their default value means something else than leaving them out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_operator.api.conditions import Reason
from vllm_operator.api.labels import ALLOW_KNOWN_BAD_ANNOTATION
from vllm_operator.api.spec import Attention, BackendsSpec
from vllm_operator.api.status import BackendChoice, ChosenBy, ConditionStatus, PlannedArgument, PlannedVariable
from vllm_operator.catalog.backends import Invocation, Setting, canonical
from vllm_operator.catalog.rule_matching import Component, RuleInput
from vllm_operator.catalog.rules import Rule, RuleKind, Rules, RulesOfVersion
from vllm_operator.catalog.versions import VersionTable
from vllm_operator.planning.engine.version import ResolvedVersion
from vllm_operator.planning.outcome import Verdict

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class BackendDecision:
    """The backends, what must be set for them, and what the user should know.

    If `refusal` is set the combination asked for is known to fail and nothing may be started.
    `env` and `args` hold only what this vLLM version knows and the user did not set. `rules` names the rules that
    had a part in it.
    """

    choices: tuple[BackendChoice, ...] = ()
    env: tuple[PlannedVariable, ...] = ()
    args: tuple[PlannedArgument, ...] = ()
    refusal: Verdict | None = None
    notes: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


def choose_backends(
    version: ResolvedVersion,
    rule_input: RuleInput,
    rules: Rules,
    backends: BackendsSpec | None = None,
    *,
    allow_known_bad: bool = False,
) -> BackendDecision:
    """Choose a backend for every component that the rule_input says something about.

    Args:
        version: The vLLM version.
        rule_input: Model, GPU, parallelism and what the user set on the engine; see `describe_rule_input`.
        rules: All rules.
        backends: What the user forces.
        allow_known_bad: Whether the user insists on combinations that are known to fail; they are then noted.
    """
    forced = forced_backends(backends, rule_input)
    if version.table is None:
        return _without_table(version, forced)
    choosing = _Choosing(version, version.table, rule_input, rules.of(version.table.release), forced)
    for component in Component:
        choosing.decide(component)
    return choosing.result(allow_known_bad)


def forced_backends(backends: BackendsSpec | None, rule_input: RuleInput) -> dict[Component, str]:
    """The fields of `spec.backends` by component; Auto and absent fields are left out."""
    if backends is None:
        return {}
    attention = {Attention.MLA: Component.MLA_DECODE, Attention.SPARSE_MLA: Component.SPARSE_ATTENTION}
    named = {
        attention.get(Attention(rule_input.attention), Component.ATTENTION)
        if rule_input.attention
        else Component.ATTENTION: backends.attention,
        Component.MLA_PREFILL: backends.mla_prefill,
        Component.GEMM: backends.gemm,
        Component.MOE: backends.moe,
        Component.ALL_TO_ALL: backends.all_to_all,
        Component.SAMPLER: backends.sampler,
    }
    return {component: name for component, name in named.items() if name is not None and name.lower() != AUTO}


def _without_table(version: ResolvedVersion, forced: Mapping[Component, str]) -> BackendDecision:
    if not forced:
        return BackendDecision()
    names = ", ".join(f"{component.value}: {name}" for component, name in forced.items())
    return BackendDecision(
        refusal=_refusal(
            f"How to ask vLLM {version.version} for {names} is not known. Leave it out and set the flag or variable of that version "
            "in spec.engine.args or spec.engine.env, or use a newer vLLM."
        )
    )


def _refusal(message: str) -> Verdict:
    return Verdict(ConditionStatus.FALSE, Reason.KNOWN_BAD, message)


@dataclass(slots=True)
class _Choosing:
    """One run through the components; collects what it finds."""

    version: ResolvedVersion
    table: VersionTable
    rule_input: RuleInput
    rules: RulesOfVersion
    forced: Mapping[Component, str]
    chosen: dict[str, str] = field(default_factory=dict)
    by_user: dict[str, str] = field(default_factory=dict)
    choices: list[BackendChoice] = field(default_factory=list)
    env: dict[str, PlannedVariable] = field(default_factory=dict)
    args: dict[str, PlannedArgument] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    known_bad: list[str] = field(default_factory=list)
    unsuited: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    followed: list[str] = field(default_factory=list)

    def decide(self, component: Component) -> None:
        """Choose the backend of one component, if anything is known about it."""
        ways = tuple(way for way in self.rules.invocations[component] if self._holds_way(way))
        if component in self.forced:
            self._force(component, canonical(self.forced[component], ways), ways)
            return
        for way in ways:
            if asked := way.asked(self.rule_input, self.table):
                self._user(component, asked[0], f"set by {asked[1]} in spec.engine", ways)
                return
        applying = [rule for rule in self.rules.choosing[component] if self._holds(rule)]
        engine = next((rule for rule in applying if rule.kind is RuleKind.ENGINE), None)
        for rule in applying:
            assert rule.backend is not None  # `applying` holds only such rules
            if rule.kind is RuleKind.ENGINE or (engine and rule.backend == engine.backend):
                self._choice(component, rule.backend, ChosenBy.ENGINE, rule)
                return
            setting = self._setting(rule.backend, ways)
            if setting is not None:
                self._choice(component, rule.backend, ChosenBy.RULE, rule, instead_of=engine)
                self._set(setting, f"{component.value} {rule.backend}: {rule.because}")
                return
            missing = f"vLLM {self.version.version} cannot be asked for it"
            self.notes.append(f"{component.value}: {rule.backend} would be better here, but {missing}. {rule.because}")

    def result(self, allow_known_bad: bool) -> BackendDecision:
        """Apply the rules that set, warn and refuse, and sum up."""
        for rule in self.rules.others:
            if self._holds(rule):
                self._follow(rule)
        found = [*self.unsuited.values(), *self.known_bad]
        known_bad = [] if allow_known_bad else found
        if allow_known_bad:
            self.notes += [f"Started although known to fail, as the annotation asks: {text}" for text in found]
        insist = f' To start it all the same, set the annotation {ALLOW_KNOWN_BAD_ANNOTATION} to "true".' if known_bad else ""
        refusals = [*self.refusals, *known_bad]
        return BackendDecision(
            choices=tuple(self.choices),
            env=tuple(self.env[name] for name in sorted(self.env)),
            args=tuple(self.args[name] for name in sorted(self.args)),
            refusal=_refusal(" ".join(refusals) + insist) if refusals else None,
            notes=tuple(dict.fromkeys(self.notes)),
            rules=tuple(dict.fromkeys(self.followed)),
        )

    def _holds(self, rule: Rule) -> bool:
        return rule.when.holds(self.rule_input, self.chosen, self.by_user)

    def _holds_way(self, way: Invocation) -> bool:
        return way.when.holds(self.rule_input, self.chosen, self.by_user)

    def _setting(self, backend: str, ways: tuple[Invocation, ...]) -> Setting | None:
        return next((setting for way in ways if (setting := way.setting(backend, self.table)) is not None), None)

    def _force(self, component: Component, backend: str, ways: tuple[Invocation, ...]) -> None:
        setting = self._setting(backend, ways)
        if setting is None:
            offered = sorted({name for way in ways for name in way.backends(self.table)} - {"AUTO"})
            working = self.rules.kernels.working(component, self.rule_input, self.chosen)
            fitting = [name for name in offered if name in working] or offered
            known = f"it takes {', '.join(fitting)}{' here' if fitting != offered else ''}" if offered else "it has no way to choose one"
            self.refusals.append(
                f"{component.value} backend {backend} cannot be asked of vLLM {self.version.version}: {known}. Choose one of these or Auto."
            )
            return
        self._user(component, backend, "forced in spec.backends", ways)
        self._set(setting, f"{component.value} {backend} is forced in spec.backends.")

    def _user(self, component: Component, backend: str, how: str, ways: tuple[Invocation, ...]) -> None:
        self._check_kernel(component, backend, ways)
        reason = f"It is {how}.{self._otherwise(component, backend)}"[:1024]
        self.chosen[component] = self.by_user[component] = backend
        self.choices.append(BackendChoice(component=component, backend=backend[:128], chosen_by=ChosenBy.USER, reason=reason))

    def _otherwise(self, component: Component, backend: str) -> str:
        """What would be taken if the user left it open, as far as that is known."""
        rule = next((rule for rule in self.rules.choosing[component] if self._holds(rule)), None)
        if rule is None:
            return ""
        who = "vLLM" if rule.kind is RuleKind.ENGINE else "the operator"
        return f" Without that {who} would take {'the same' if rule.backend == backend else rule.backend}."

    def _check_kernel(self, component: Component, backend: str, ways: tuple[Invocation, ...]) -> None:
        """Note that a backend of the user's choice does not work here, as far as that is known."""
        if self.rules.kernels.find(component, backend) is None:
            return
        working = self.rules.kernels.working(component, self.rule_input, self.chosen)
        if backend in working:
            return
        facts = (f"vLLM {self.version.version}", self.rule_input.architecture, self.rule_input.quantization)
        offered = sorted(name for name in working if self._setting(name, ways) is not None)
        instead = f"What can be asked for here: {', '.join(offered)}; or leave it at Auto." if offered else "Leave it at Auto."
        where = ", ".join(fact for fact in facts if fact)
        self.unsuited[component] = f"{component.value} backend {backend} does not work here ({where}). {instead}"

    def _choice(self, component: Component, backend: str, chosen_by: ChosenBy, rule: Rule, instead_of: Rule | None = None) -> None:
        self.chosen[component] = backend
        self._follow(rule)
        reason = rule.because
        if instead_of is not None:
            self.followed.append(instead_of.id)
            reason += f" vLLM by itself would take {instead_of.backend}."
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
        self._set(
            Setting(environment=rule.environment, arguments={name: value or "" for name, value in rule.arguments.items()}), rule.because
        )
        if rule.refuse:
            self.known_bad.append(self._fill(rule.refuse))
            for component in (rule.component, *rule.when.forced):
                self.unsuited.pop(component, None)  # the rule says it better
        if rule.warn:
            self.notes.append(self._fill(rule.warn))

    def _fill(self, text: str) -> str:
        return text.replace("{version}", self.version.version).replace("{architecture}", self.rule_input.architecture or "this GPU")

    def _set(self, setting: Setting, reason: str) -> None:
        for name, value in setting.environment.items():
            if name in self.rule_input.environment:
                self._beaten(name, value, self.rule_input.environment[name], reason)
            else:
                self.env[name] = PlannedVariable(name=name, value=value, reason=reason[:1024])
        for name, value in setting.arguments.items():
            if name in self.rule_input.arguments:
                self._beaten(name, value, self.rule_input.arguments[name], reason)
            else:
                self.args[name] = PlannedArgument(name=name, value=value or None, reason=reason[:1024])

    def _beaten(self, name: str, ours: str, theirs: str, reason: str) -> None:
        if ours != theirs:
            self.notes.append(f"{name} stays {theirs or 'set'}, as set in spec.engine; the operator would set {ours or 'it'}: {reason}")
