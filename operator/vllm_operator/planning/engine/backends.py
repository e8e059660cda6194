"""Choice of the kernel backend of each component, and the settings that request it.

For each component the first of these decides: the user's pin (a field of `spec.backends`, or a flag or variable of the engine), quirks,
choices, vLLM's default. If vLLM's default is the chosen backend, nothing is set: every set variable is part of the key of the engine's
compile cache, and some variables at their default value differ from unset ones.

A pinned backend is accepted, refused, without effect, or unknown. An unknown backend is always planned with a note, because vLLM exits on a
pin that its selectors do not accept.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from vllm_operator.api.labels import ALLOW_UNSUPPORTED_ANNOTATION
from vllm_operator.api.plan import BackendChoice, ChosenBy, PlannedArgument, PlannedVariable
from vllm_operator.api.spec import Attention, BackendsSpec, Distribution, Quantization
from vllm_operator.catalog.backends import Invocation, Kernel, Selection, Selectors, Setting, canonical, load_questions, nearest
from vllm_operator.catalog.notes import Note, Severity, note, say
from vllm_operator.catalog.rule_matching import AUTOMATIC, KV_CACHE_FLAG, Component, RuleInput
from vllm_operator.catalog.rules import Rivals, Rule, RuleKind, Rules, RulesOfVersion
from vllm_operator.catalog.versions import VersionTable
from vllm_operator.planning.engine.image import ALLOW_ANYWAY, ResolvedVersion
from vllm_operator.planning.engine.rule_input import (
    COMPONENTS,
    DEEP_GEMM,
    attention_cases,
    attention_component,
    describe_shape,
    gemm_cases,
    moe_cases,
    prefill_cases,
)
from vllm_operator.text.wording import listed

AUTO = "auto"
QUESTIONS: Mapping[Component, Callable[[RuleInput], Sequence[str]]] = {
    **{component: partial(attention_cases, component) for component in COMPONENTS.values()},
    Component.MLA_PREFILL: prefill_cases,
    Component.GEMM: gemm_cases,
}
"""Function that returns the possible cases of a table for a deployment, by component."""
UNANSWERED = Selection(None, (), {})
CACHE_TYPES = "kvCacheDtype"
"""The list of a version with the values of `--kv-cache-dtype`."""
_LATENT = frozenset({Component.MLA_DECODE, Component.SPARSE_ATTENTION})


@dataclass(frozen=True, slots=True)
class BackendDecision:
    """The backends and their settings. With `refusal`, nothing may start. `rules` are the IDs of the rules that applied."""

    choices: tuple[BackendChoice, ...] = ()
    env: tuple[PlannedVariable, ...] = ()
    args: tuple[PlannedArgument, ...] = ()
    refusal: str | None = None
    notes: tuple[Note, ...] = ()
    rules: tuple[str, ...] = ()
    rivals: Rivals | None = None


@lru_cache(maxsize=128)
def choose_backends(
    version: ResolvedVersion,
    rule_input: RuleInput,
    rules: Rules,
    backends: BackendsSpec | None = None,
    *,
    model: str = "The model",
    allow_unsupported: bool = False,
    measured: Sequence[Rule] = (),
    with_rivals: bool = False,
) -> BackendDecision:
    """Choose the backend of every component with rules. With `allow_unsupported`, a combination that fails is noted, not refused.

    `measured` rules precede other choices, if their backends work.
    """
    given = backends.to_json() if backends is not None else {}
    fields = load_questions().fields
    asked = {component: given.get(name, AUTO) for component, name in fields.items() if _has_choice(component, rule_input)}
    pinned = {component: name for component, name in asked.items() if name.lower() != AUTO}
    if version.table is None:
        if not pinned:
            return BackendDecision()
        names = ", ".join(f"{_label(component)} {name}" for component, name in pinned.items())
        where = ", ".join(f"spec.backends.{fields[component]}" for component in pinned)
        return BackendDecision(refusal=say("pin.no-table", version=version.version, names=names, fields=where))
    choosing = _Choosing(version, version.table, rule_input, rules.of(version.table.release), pinned, model, measured)
    for component in Component:
        choosing.decide(component)
    decision = choosing.result(allow_unsupported)
    return replace(decision, rivals=Rivals(describe_shape(rule_input), choosing.rivals())) if with_rivals else decision


def _has_choice(component: Component, rule_input: RuleInput) -> bool:
    """Return whether pins are for this component: one field and one flag apply to all kinds of attention."""
    return component not in COMPONENTS.values() or component is attention_component(rule_input)


def _label(component: Component) -> str:
    return load_questions().labels.get(component, component.value)


@dataclass(frozen=True, slots=True)
class Pin:
    """A backend that the user pins with `setting`, a flag or variable in `spec.engine`, or with `spec.backends` if it is None."""

    component: Component
    backend: str
    setting: str | None = None

    @property
    def where(self) -> str:
        """The source of the pin: `spec.backends.moe`, or `--moe-backend triton in spec.engine`."""
        return f"spec.backends.{load_questions().fields[self.component]}" if self.setting is None else f"{self.setting} in spec.engine"

    def advice(self, offered: Iterable[str] = ()) -> str:
        """Return advice for the user as a sentence. `offered` are other backends that can be pinned."""
        others = list(offered)
        if self.setting is None:
            return f"Set {self.where} to {listed([*others, 'Auto'], 'or')}."
        text = f"Remove {self.setting} from spec.engine."
        if others and self.component in load_questions().fields:
            text += f" To pin a backend, set spec.backends.{load_questions().fields[self.component]} to {listed(others, 'or')}."
        return text

    def __str__(self) -> str:
        if self.component is Component.KV_CACHE and self.setting:
            return self.setting
        return f"{_label(self.component)} backend {self.backend}"


@dataclass(slots=True)
class _Choosing:
    version: ResolvedVersion
    table: VersionTable
    rule_input: RuleInput
    rules: RulesOfVersion
    pinned: Mapping[Component, str]
    model: str
    measured: Sequence[Rule] = ()
    chosen: dict[str, str] = field(default_factory=dict)
    by_user: dict[str, str] = field(default_factory=dict)
    choices: list[BackendChoice] = field(default_factory=list)
    env: dict[str, PlannedVariable] = field(default_factory=dict)
    args: dict[str, PlannedArgument] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    unsuited: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    followed: list[str] = field(default_factory=list)

    def decide(self, component: Component) -> None:
        """Choose the backend of one component if rules cover it."""
        pin = self._pin(component)
        if pin is not None:
            self._follow_pin(pin)
            return
        measured = [it for it in self.measured if it.component is component and self._works(component, it.backend or "")]
        choosing = sorted([*measured, *self.rules.choosing[component]], key=lambda rule: list(RuleKind).index(rule.kind))
        applying = [rule for rule in choosing if self._holds(rule)]
        default = next((rule for rule in applying if rule.kind is RuleKind.ENGINE), None)
        selection = self._selection(component)
        first = next(iter(applying), None)
        if selection.raises and (first is default or (first and first.backend in selection.refuses)):
            self._refuse(component, selection.raises)
        selected = None if self._prefers_rule(default, selection, component) else selection.takes
        taken = selected or (default.backend if default else None)
        for rule in applying:
            assert rule.backend is not None  # every rule of `choosing` has one
            if rule.kind is RuleKind.ENGINE and selected:
                break
            if rule.kind is RuleKind.ENGINE or rule.backend == taken:
                self._choose(component, rule.backend, "Engine", rule.because, f"{rule.id}: {rule.source}", rule.alternatives)
                self._follow(rule)
                return
            setting = self._setting(component, rule.backend)
            if setting is not None:
                because = rule.because if taken is None else f"{rule.because} The vLLM default is {taken}."
                self._choose(component, rule.backend, "Rule", because, f"{rule.id}: {rule.source}")
                self._follow(rule)
                if default is not None and not selected:
                    self.followed.append(default.id)
                self._set(setting, f"{component.value} {rule.backend}: {rule.because}", rule.kind)
                return
            wanted = f"{_label(component)} backend {rule.backend}"
            text = say("backend.no-setting", backend=wanted, version=self.version.version, because=rule.because)
            self.notes.append(Note(_severity(rule.kind), text))
        if selected:
            self._choose_selected(component, selected, selection.others)

    def result(self, allow_unsupported: bool) -> BackendDecision:
        """Apply the rules that set, warn and refuse, and return the decision."""
        for rule in self.rules.others:
            if self._holds(rule):
                self._follow(rule)
        found = [*self.unsuited.values(), *self.unsupported]
        unsupported = [] if allow_unsupported else found
        if allow_unsupported:
            self.notes += [note("backend.unsupported", annotation=ALLOW_UNSUPPORTED_ANNOTATION, text=text) for text in found]
        refusals = [*self.refusals, *unsupported, *([ALLOW_ANYWAY] if unsupported else ())]
        return BackendDecision(
            choices=tuple(self.choices),
            env=tuple(self.env[name] for name in sorted(self.env)),
            args=tuple(self.args[name] for name in sorted(self.args)),
            refusal=" ".join(refusals) or None,
            notes=tuple(dict.fromkeys(self.notes)),
            rules=tuple(dict.fromkeys(self.followed)),
        )

    def rivals(self) -> list[tuple[str, str]]:
        """Return the backends that would work instead, where the user pins none: first one of each component, if possible one of a rule."""
        found, fixed = list[tuple[int, str, str]](), {*self.by_user, Component.SAMPLER}  # greedy answers of the load need no sampler
        for component in (each for each in load_questions().fields if each in self.chosen and each not in fixed):
            named = [rule.backend for rule in self.rules.choosing[component]]
            offered = {name for each in self._invocations(component) for name in each.backends(self.table)} & {*self._working(component)}
            working = sorted((name not in named, name) for name in offered - {self.chosen[component]} if self._works(component, name))
            found += [(place, component.value, name) for place, (_, name) in enumerate(working)]
        return [(component, name) for _, component, name in sorted(found, key=lambda each: each[0])]

    def _works(self, component: Component, backend: str) -> bool:
        """Return whether the catalog knows that vLLM accepts a backend here and that it works."""
        pin, setting = Pin(component, backend), self._setting(component, backend)
        if setting is None or self._refusing(setting) or self._missing(pin) or self._replacement(pin):
            return False
        return not (self._unsuited(pin) or self._gap(pin))

    def _holds(self, entry: Rule | Invocation) -> bool:
        return entry.when.holds(self._about(entry.component), self.chosen, self.by_user)

    def _about(self, component: Component) -> RuleInput:
        """Return the facts for a component. Dense layers have 16 bits if only the experts are quantized."""
        known = self.rule_input
        if component is not Component.GEMM or known.dense_quantized is not False:
            return known
        return replace(known, quantization=Quantization.BF16, quantization_scheme=None)

    def _invocations(self, component: Component) -> tuple[Invocation, ...]:
        return tuple(each for each in self.rules.invocations[component] if self._holds(each))

    def _setting(self, component: Component, backend: str) -> Setting | None:
        settings = (each.setting(backend, self.table) for each in self._invocations(component))
        return next((setting for setting in settings if setting is not None), None)

    # --- pins

    def _pin(self, component: Component) -> Pin | None:
        """Return the user's pin of a component. A field of `spec.backends` takes precedence over a flag or variable."""
        invocations = self._invocations(component)
        if component in self.pinned:
            return Pin(component, canonical(self.pinned[component], invocations))
        for each in invocations if _has_choice(component, self.rule_input) else ():
            if asked := each.asked(self.rule_input, self.table):
                name = canonical(asked[0], invocations)
                return Pin(component, name if name in each.backends(self.table) else asked[0], asked[1][:120])
        return None

    def _follow_pin(self, pin: Pin) -> None:
        if missing := self._missing(pin):
            self.notes.append(note("pin.no-effect", model=self.model, missing=missing, where=pin.where))
            return
        if taken := self._replacement(pin):
            self._choose_instead(pin, taken)
            return
        setting = self._setting(pin.component, pin.backend) if pin.setting is None else None
        if pin.setting is None and setting is None:
            self.refusals.append(self._not_offered(pin))
            return
        asks = pin.component in load_questions().fields or pin.component is Component.KV_CACHE
        if unsuited := self._unsuited(pin):
            self.unsuited[pin.component] = unsuited
        elif asks and (gap := self._gap(pin)):
            self.notes.append(self._unknown(pin, gap))
        self._choose(pin.component, pin.backend, "User", f"Set by {pin.where}.{self._alternative(pin)}"[:1024])
        self.by_user[pin.component] = pin.backend
        if setting is None:
            return
        if refusing := self._refusing(setting):
            names = ", ".join([*(f"{name}={value}" for name, value in setting.environment.items()), *setting.arguments])
            text = say("pin.refused-setting", where=pin.where, setting=names, because=refusing.because, advice=pin.advice())
            self.unsuited[pin.component] = text
            return
        self._set(setting, f"{pin.where} is {pin.backend}.")

    def _missing(self, pin: Pin) -> str | None:
        """Return what the model lacks, so that a pin has no effect; None if it has what the pin is for."""
        attention = self.rule_input.attention
        if pin.component in (Component.MOE, Component.ALL_TO_ALL) and self.rule_input.mixture_of_experts is False:
            return "has no experts"
        if pin.component is Component.MLA_PREFILL and attention in (Attention.MHA, Attention.GQA, Attention.HYBRID):
            return "does not use MLA"
        if pin.component is Component.LINEAR_ATTENTION and attention not in (None, Attention.HYBRID):
            return "has no linear attention"
        return None

    def _replacement(self, pin: Pin) -> str | None:
        """Return the backend that vLLM takes instead of a pinned one; None if it does not replace it."""
        kernel = self._kernel(pin)
        if kernel is not None and kernel.fallback is not None:
            works = any(when.possible(self.rule_input, self.chosen) for when in kernel.works)
            return None if works else kernel.fallback
        return self._selection(pin.component).ignores.get(pin.backend)

    def _choose_instead(self, pin: Pin, taken: str) -> None:
        version, on = self.version.version, self.rule_input.architecture
        self.notes.append(note("pin.ignored", version=version, taken=taken, architecture=on, where=pin.where, advice=pin.advice()))
        kernel = self._kernel(pin)
        if pin.component in load_questions().selectors or kernel is None:
            self._choose_selected(pin.component, taken)
            return
        reason = f"vLLM takes it in place of {pin.backend}, which does not work here."
        self._choose(pin.component, taken, "Engine", reason, kernel.source)

    def _not_offered(self, pin: Pin) -> str:
        """Return a message that this version has no setting for a backend of `spec.backends`, and which backends can be pinned."""
        label, quantization = _label(pin.component), self._about(pin.component).quantization
        unknown = "" if self.version.is_known else f"The catalog does not know vLLM {self.version.version}. "
        offered = sorted({name for each in self._invocations(pin.component) for name in each.backends(self.table)} - {"AUTO"})
        choices = [name for name in offered if name in self._working(pin.component)] or offered
        by_format = any("quantization" in each.when.members for each in self.rules.invocations[pin.component])
        if not offered and by_format and quantization is None:
            return unknown + say("pin.unknown-quantization", label=label, version=self.table.version, where=pin.where)
        of_format = f" of {quantization} models" if by_format and quantization not in ("BF16", "FP16") else ""
        what = str(pin) if offered else f"the {label} backend{of_format}"
        return f"{unknown}vLLM {self.table.version} has no setting for {what}. {pin.advice(choices)}"

    def _unsuited(self, pin: Pin) -> str | None:
        """Return why vLLM does not start with a pinned backend, with advice; None if it starts, or if that is unknown."""
        kernels, kernel, version = self.rules.kernels, self._kernel(pin), self.version.version
        working, selection = self._working(pin.component), self._selection(pin.component)
        accepted = advice = pin.advice(self._settable(working, pin))
        if pin.component is Component.KV_CACHE:
            if kernel is not None and pin.backend in working:
                return None
            accepted = advice = self._cache_advice() or advice
        on = f" on {self.rule_input.architecture}" if self.rule_input.architecture else ""
        if self._is_refused_by_flag(pin):
            return f"vLLM {version} does not accept {pin.setting}. {advice}"
        if selection is not UNANSWERED:
            # Some kernels of dense layers accept a GPU that they were not built for.
            runs = pin.component is not Component.GEMM
            if runs and pin.backend in selection.accepts:
                return None
            names = (name for name in selection.accepts if runs or name in working or kernels.find(pin.component, name) is None)
            accepted = pin.advice(self._settable(names, pin))
            if pin.backend in selection.refuses:
                return f"vLLM {version} refuses {pin}{on}: {selection.refuses[pin.backend].rstrip('.')}. {accepted}"
        capital = f"{str(pin)[:1].upper()}{str(pin)[1:]}"
        if kernel is not None and pin.backend in working:
            return None
        if kernel is not None and kernel.scope is not None:
            return f"{pin.setting or pin} is {kernel.scope}, and vLLM {version} does not start with it here. {accepted}"
        if kernel is not None:
            quantization = self._about(pin.component).quantization
            weights = f" for {quantization} models" if quantization else ""
            return f"{capital} does not work with vLLM {version}{on}{weights}. {accepted}"
        kinds = load_questions().kinds
        meant = next((component for component in kinds if kernels.find(component, pin.backend)), None)
        if pin.component not in kinds or self.rule_input.attention is None or meant is None:
            return None
        return f"{capital} is for {kinds[meant]}. {self.model} uses {kinds[pin.component]}. {advice}"

    def _unknown(self, pin: Pin, gap: str) -> Note:
        engine = f"{self.version.distribution.value} {self.version.version}"
        what = f"whether {engine} accepts {pin} here"
        if pin.setting is not None and pin.setting == pin.backend:
            what = f"which {_label(pin.component)} backend {engine} uses with {pin.setting}"
        advice = f"{pin.advice()[:1].lower()}{pin.advice()[1:]}"
        on = f" {self.rule_input.architecture}" if self.rule_input.architecture else ""
        return note("pin.unknown", what=what, gap=gap, advice=advice, architecture=on, version=self.table.version)

    def _gap(self, pin: Pin) -> str | None:
        """Return why the catalog does not know whether vLLM accepts a pinned backend; None if it knows."""
        kernel, selection = self._kernel(pin), self._selection(pin.component)
        answered = pin.backend in selection.accepts or pin.backend in selection.refuses
        if kernel is None and not answered and not self._is_covered(pin):
            return f"it has no entry for this {'value' if pin.component is Component.KV_CACHE else 'backend'}"
        if not self.version.is_known:
            return f"it has no entry for this version, only for {self.table.version}"
        named = kernel is not None and any("distribution" in when.members for when in kernel.works)
        if self.version.distribution is Distribution.NVLLM and not named:
            return "it has no entry for nvLLM, only for vLLM"
        if kernel is None or answered:
            return None
        if pin.component is Component.KV_CACHE:
            attention = attention_component(self.rule_input)
            unknown = not named and attention not in self.by_user and self._selection(attention) is UNANSWERED
            return "it has no entry for the attention of this model" if unknown else None
        possible = [when for when in kernel.works if when.possible(self.rule_input, self.chosen)]
        if any(when.holds(self.rule_input, self.chosen, {}) for when in possible):
            return None
        lacking = {fact for when in possible for fact in (*when.members, *when.numbers) if getattr(self.rule_input, fact) is None}
        facts = [name for fact, name in load_questions().facts.items() if fact in lacking]
        return f"{listed(facts, 'and')} {'is' if len(facts) == 1 else 'are'} unknown" if facts else None

    def _is_covered(self, pin: Pin) -> bool:
        """Return whether a rule chooses the backend here, or covers the pin."""
        component, backend = pin.component, pin.backend
        choosing = (rule for rule in self.rules.choosing[component] if backend in (rule.backend, *rule.alternatives))
        about = (rule for rule in self.rules.others if backend in rule.when.forced.get(component, ()))
        pinned: dict[str, str] = {component: backend}
        return any(rule.when.holds(self.rule_input, {**self.chosen, **pinned}, pinned) for rule in (*choosing, *about))

    def _is_refused_by_flag(self, pin: Pin) -> bool:
        """Return whether a flag of the user has a value that exactly this version lacks."""
        setting = pin.setting or ""
        taking = (each for each in self._invocations(pin.component) if each.flag and setting.startswith(f"{each.flag} "))
        known = {name.upper() for each in taking for name in each.backends(self.table)}
        is_checked = self.version.has_exact_names and pin.component in (*load_questions().fields, Component.KV_CACHE)
        return is_checked and bool(known) and pin.backend.upper() not in {*known, "AUTO"}

    def _refusing(self, setting: Setting) -> Rule | None:
        """Return the rule that would refuse a variable if the user set the variables of a pin; None if there is none."""
        if not setting.environment:
            return None
        as_if = replace(self.rule_input, environment={**self.rule_input.environment, **setting.environment})
        about = (rule for rule in self.rules.others if rule.refuse and setting.environment.keys() & rule.when.environment.keys())
        return next((rule for rule in about if rule.when.holds(as_if, self.chosen, self.by_user)), None)

    def _alternative(self, pin: Pin) -> str:
        rule = next((rule for rule in self.rules.choosing[pin.component] if self._holds(rule)), None)
        selection = self._selection(pin.component)
        is_engine = rule is None or rule.kind is RuleKind.ENGINE
        backend = rule and rule.backend
        if is_engine and selection.takes and not self._prefers_rule(rule, selection, pin.component):
            backend = selection.takes
        if backend is None:
            return ""
        return f" Without it, {'vLLM' if is_engine else 'the operator'} would choose {'the same' if backend == pin.backend else backend}."

    def _kernel(self, pin: Pin) -> Kernel | None:
        return self.rules.kernels.find(pin.component, pin.backend)

    def _working(self, component: Component) -> Sequence[str]:
        return self.rules.kernels.working(component, self._about(component), self.chosen)

    def _settable(self, backends: Iterable[str], pin: Pin) -> list[str]:
        return sorted(name for name in backends if self._setting(pin.component, name) is not None)

    # --- answers of vLLM's selectors

    def _selection(self, component: Component, cache: str | None = None) -> Selection:
        """Return the answer for the layers of a component; with `cache`, for another `--kv-cache-dtype`."""
        known = self._about(component)
        if cache is not None:
            known = replace(known, arguments={**known.arguments, KV_CACHE_FLAG: cache})
        if component is Component.MOE:
            # the DeepGEMM variables that pins of other layers set affect experts too
            set_for_others = {name: self.env[name].value or "" for name in DEEP_GEMM if name in self.env}
            cases = moe_cases(replace(known, environment={**set_for_others, **known.environment}), self.chosen)
        elif component in QUESTIONS:
            cases = QUESTIONS[component](known)
        else:
            return UNANSWERED
        selectors = self.rules.selectors.get(component, Selectors())
        found = selectors.find(self.table.release, known.architecture or "", cases) or UNANSWERED
        if component in COMPONENTS.values() and _cache_type(known) not in self.table.backends.get(CACHE_TYPES, ()):
            return UNANSWERED
        asked = component is Component.MLA_DECODE and known.mla_dims in load_questions().mla_heads
        if found is UNANSWERED or asked or known.deepseek_heads is not False or component not in _LATENT:
            return found
        # the MLA questions were asked for the head sizes of DeepSeek R1, with which alone some backends work
        with_them = self.rules.kernels.working(component, replace(self.rule_input, deepseek_heads=True), self.chosen)
        without = set(with_them).difference(self._working(component))
        taken = None if found.takes in without else found.takes
        accepts = tuple(name for name in found.accepts if name not in without)
        raises = "No valid attention backend found" if not accepts and _cache_type(known) != AUTOMATIC else found.raises
        return replace(found, takes=taken, accepts=accepts, raises=raises)

    def _is_readable(self, cache: str) -> bool:
        component, arguments = attention_component(self.rule_input), {**self.rule_input.arguments, KV_CACHE_FLAG: cache}
        found, as_if = self._selection(component, cache), replace(self.rule_input, arguments=arguments)
        pin, kernel = self.by_user.get(component), self.rules.kernels.find(Component.KV_CACHE, cache.upper())
        works = kernel is None or any(when.possible(as_if, self.chosen) for when in kernel.works)
        if found is UNANSWERED and cache != AUTOMATIC:
            return False
        chosen = {**self.chosen, component: pin or found.takes or self.chosen.get(component, "")}
        refused = any(rule.refuse and rule.when.holds(as_if, chosen, self.by_user) for rule in self.rules.others)
        return works and not refused and not found.raises and pin not in found.refuses

    def _cache_advice(self) -> str:
        """Return a sentence with the types of the KV cache that work here; empty if none is known."""
        types = [name for name in self.table.backends.get(CACHE_TYPES, ()) if self._is_readable(name)]
        given = KV_CACHE_FLAG in self.rule_input.arguments
        known = self.rule_input
        narrow = known.quantization == Quantization.FP16 or (known.architecture or "").startswith("sm_7")
        names = [name for name in types if name != AUTOMATIC and (narrow or name != "float16")]  # else the weights need not be in it
        ways = [f"set {KV_CACHE_FLAG} to {listed(names, 'or')}"] if names else []
        ways += [f"remove {KV_CACHE_FLAG}"] if given and AUTOMATIC in types else []
        advice = ", or ".join(ways)
        return f"{advice[:1].upper()}{advice[1:]}." if advice else ""

    def _refuse(self, component: Component, reason: str) -> None:
        cache, version, on = _cache_type(self.rule_input), self.version.version, self.rule_input.architecture
        if component in COMPONENTS.values() and cache != AUTOMATIC and (advice := self._cache_advice()):
            is_set = KV_CACHE_FLAG in self.rule_input.arguments
            by = f"{KV_CACHE_FLAG} {cache}" if is_set else f"the KV cache type {cache} of the checkpoint"
            self.unsuited[Component.KV_CACHE] = say("cache.unread", version=version, by=by, model=self.model, on=on, advice=advice)
            return
        use = "Use another vLLM version, other GPUs, or a model with another quantization."
        if component is Component.MOE and self.rule_input.exchanges_tokens:
            use = f"Set spec.backends.allToAll to another backend, or use {use.removeprefix('Use ')}"
        self.unsuited[component] = f"vLLM {version} does not start with {self.model} on {on}: {reason.rstrip('.')}. {use}"

    def _prefers_rule(self, default: Rule | None, selection: Selection, component: Component) -> bool:
        """Return whether to cite the rule about vLLM's default: it agrees with the selector, or is more exact about the model."""
        if default is None or (component in COMPONENTS.values() and default.backend in selection.refuses):
            return False
        if component is Component.MOE:  # its questions name the families; alternatives are for formats that are not known exactly
            possible = default.backend in selection.others and selection.takes in default.alternatives
            return default.backend == selection.takes or possible
        known = self.rule_input
        asked = component in COMPONENTS.values() and (known.attention_sinks or known.image_prefix or _cache_type(known) != AUTOMATIC)
        if "family" in default.when.members and not asked:
            return True
        said = (default.backend,) if component is Component.GEMM else (default.backend, *default.alternatives)
        return selection.takes in said or default.backend in selection.others

    def _choose_selected(self, component: Component, backend: str, others: Sequence[str] = ()) -> None:
        asked = nearest(self.rules.selectors.get(component, Selectors()).versions, self.table.release)
        versions = ", ".join(".".join(map(str, release)) for release in asked)
        reason = f"It is the vLLM default on {self.rule_input.architecture}."
        source = f"{load_questions().selectors[component]} ({versions}), run by hack/oracle"
        self._choose(component, backend, "Engine", reason, source, others)

    # --- rules

    def _choose(
        self, component: Component, backend: str, by: ChosenBy, reason: str, source: str | None = None, others: Sequence[str] = ()
    ) -> None:
        self.chosen[component] = backend
        source, names = source and source[:512], list(others) or None
        choice = BackendChoice(component=component, backend=backend[:128], chosen_by=by, reason=reason, source=source, alternatives=names)
        self.choices.append(choice)

    def _follow(self, rule: Rule) -> None:
        self.followed.append(rule.id)
        setting = Setting(environment=rule.environment, arguments={name: value or "" for name, value in rule.arguments.items()})
        self._set(setting, rule.because, rule.kind)
        if rule.refuse:
            self.unsupported.append(self._fill(rule.refuse))
            for component in (rule.component, *rule.when.forced):
                self.unsuited.pop(component, None)  # the message of the rule is more precise
        if rule.warn:
            self.notes.append(Note(rule.severity, self._fill(rule.warn)))

    def _fill(self, text: str) -> str:
        known = self.rule_input
        since = ".".join(map(str, known.class_since or ()))
        values = {
            "version": self.version.version,
            "architecture": known.architecture or "this GPU",
            "class": known.model_class,
            "since": since,
            "cacheTypes": self._cache_advice() if "{cacheTypes}" in text else None,
        }
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", value or "")
        return text

    def _set(self, setting: Setting, reason: str, kind: RuleKind = RuleKind.CHOICE) -> None:
        """Plan the settings of a backend, except those that the user sets to another value."""
        given = self.rule_input
        for name, value in setting.environment.items():
            if name not in given.environment:
                self.env[name] = PlannedVariable(name=name, value=value, reason=reason[:1024])
        for name, value in setting.arguments.items():
            if name not in given.arguments:
                self.args[name] = PlannedArgument(name=name, value=value or None, reason=reason[:1024])
        ours, theirs = {**setting.environment, **setting.arguments}, {**given.arguments, **given.environment}
        for name in ours:
            if name in theirs and ours[name] != theirs[name]:
                yours, would = f"{name} to {theirs[name]}" if theirs[name] else name, f"use {ours[name]}" if ours[name] else "set it"
                self.notes.append(Note(_severity(kind), say("backend.overridden", yours=yours, would=would, reason=reason)))


def _cache_type(known: RuleInput) -> str:
    return known.effective_arguments.get(KV_CACHE_FLAG, AUTOMATIC)


def _severity(kind: RuleKind) -> Severity:
    """Return the severity if a rule cannot be followed. A quirk avoids a failure."""
    return Severity.RISK if kind is RuleKind.QUIRK else Severity.INFO
