"""Deployments that pose the questions of the selectors' tables, one for each case of a table, and what must hold for their pins."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

from support.backends import chosen, knowledge, notes_of
from vllm_operator.api.spec import BackendsSpec
from vllm_operator.catalog.backends import Selection, load_questions, load_selectors
from vllm_operator.catalog.rule_matching import Component, RuleInput
from vllm_operator.catalog.versions import Release, VersionTable
from vllm_operator.planning.engine.backends import QUESTIONS, BackendDecision, choose_backends
from vllm_operator.planning.engine.image import ResolvedVersion
from vllm_operator.planning.engine.rule_input import moe_cases

DENSE: Mapping[str, Any] = {"attention": "GQA", "mixture_of_experts": False, "experts": 0}
R1: Mapping[str, Any] = {"deepseek_heads": True, "mla_dims": (128, 64, 128), "heads_per_rank": 128}
LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "Tensor": {},
    "Tensor8": {"tensor": 8, "expert_tensor": 8},
    "Data": {"data": 2, "expert_tensor": 2},
    "Data8": {"data": 8, "expert_tensor": 8},
    "Expert": {"tensor": 8, "expert_parallel": True},
    "Expert-EPLB": {"tensor": 8, "expert_parallel": True, "arguments": {"--enable-eplb": ""}},
}
FORMATS: Mapping[str, Mapping[str, Any]] = {
    "FP8": {"quantization": "FP8", "quantization_scheme": "tensor"},
    "FP8Dynamic": {"quantization": "FP8", "quantization_scheme": "token"},
    "FP8Channel": {"quantization": "FP8", "quantization_scheme": "compressed"},
    "MXFP4DeepSeek": {"quantization": "MXFP4"},
    "INT4Group32": {"quantization": "INT4", "family": "kimi-k2-thinking"},
}
FAMILIES = {"GptOss": "gpt-oss", "Nemotron": "nemotron-3-super", "Qwen3.5": "qwen3.5-moe", "DeepSeekV4": "deepseek-v4"}
ROUTINGS = {"GptOss": "Renormalize", "Nemotron": "DeepSeekV3", "Qwen3.5": "Renormalize"}
MODELS = ("DeepSeekV3", "DeepSeekV4", "MiniMax2", "Renormalize", "Qwen3.5", "Llama4", "Nemotron", "GptOss")
SETTINGS = ("Unset", "VLLM_USE_DEEP_GEMM=0", "VLLM_USE_DEEP_GEMM=1")
SCHEMES = ("BF16", "FP8Block", "FP8", "FP8Dynamic", "FP8Channel", "NVFP4", "MXFP8", "INT4", "INT4Group32")
_EXPERT_CASES = [
    *("/".join(parts) for parts in product(SCHEMES, SETTINGS, LAYOUTS, MODELS[:-1])),
    *(f"NVFP4/Unset/{layout}/{model}-hidden" for layout in LAYOUTS for model in MODELS[:-1]),
    *(
        f"{scheme}/Unset/{layout}/{model}"
        for layout in LAYOUTS
        for scheme, model in (("MXFP4", "GptOss"), ("MXFP4DeepSeek", "DeepSeekV4")) * 4
    ),
]
ATTENTION_LAYERS = (
    *(f"Dense/{size}/plain" for size in (64, 80, 96, 112, 128, 192, 256)),
    *("Dense/128/prefix", "Dense/256/prefix", "Dense/64/sinks"),
    *("MLA/16/plain", "MLA/128/plain", "MLA/192-64-256/plain", "SparseMLA/16/plain", "SparseMLA/128/plain"),
)
HIDDEN = 2688
"""A hidden size that is no multiple of 512."""


@dataclass(frozen=True, slots=True)
class Question:
    """A case of a table on one architecture of one version, and a deployment that poses it."""

    component: Component
    version: str
    architecture: str
    case: str
    rule_input: RuleInput

    def selection(self) -> Selection | None:
        """What the table answers; None if planning poses another question, or if the selector was not asked."""
        cases = moe_cases(self.rule_input, {}) if self.component is Component.MOE else QUESTIONS[self.component](self.rule_input)
        return load_selectors()[self.component].find(self.rule_input.release, self.architecture, cases) if self.case in cases[:1] else None

    def plan(self, backend: str | None) -> BackendDecision:
        resolved = ResolvedVersion(self.version, _tables()[self.rule_input.release], "an image")
        pinned = BackendsSpec.model_validate({load_questions().fields[self.component]: backend}) if backend else None
        return choose_backends(resolved, self.rule_input, knowledge()[2], pinned)

    def plan_setting(self, backend: str) -> BackendDecision | None:
        """The plan if the user pins a backend with a flag or variable of this version; None if there is none."""
        table, rules = _tables()[self.rule_input.release], knowledge()[2]
        ways = [way for way in rules.of(self.rule_input.release).invocations[self.component] if way.when.holds(self.rule_input, {}, {})]
        setting = next((found for way in ways if (found := way.setting(backend, table)) is not None), None)
        if setting is None or not (setting.environment or setting.arguments):
            return None
        given = replace(
            self.rule_input,
            environment={**self.rule_input.environment, **setting.environment},
            arguments={**self.rule_input.arguments, **setting.arguments},
        )
        return choose_backends(ResolvedVersion(self.version, table, "an image"), given, rules)

    def can_run(self, backend: str) -> bool:
        """Whether a kernel that a selector accepts is built for this GPU, as far as is known: some of dense layers are not."""
        kernels = knowledge()[2].kernels
        known = self.component is Component.GEMM and kernels.find(self.component, backend) is not None
        return not known or backend in kernels.working(self.component, self.rule_input, {})


def sample(component: Component, count: int) -> list[Question]:
    """Some of the cases of a component's table that a deployment can pose: always the same; all if there are fewer."""
    table = load_selectors()[component]
    places = [
        (release, architecture, place)
        for release, by_architecture in table.versions.items()
        for architecture, place in by_architecture.items()
    ]
    dice = random.Random(17)
    if component is Component.MOE:
        drawn = [(*dice.choice(places)[:2], case) for case in dice.choices(_EXPERT_CASES, k=count)]
    else:
        all_of_them = [
            (*place[:2], case)
            for place in places
            for case in (_attention_cases(place[0]) if table.are_trees else table.cases[place[2]])
            if _facts(component, case) is not None and _is_posed(place[0], case)
        ]
        drawn = dice.sample(all_of_them, min(count, len(all_of_them)))
    return [_question(component, *each) for each in drawn]


def _attention_cases(release: Release) -> list[str]:
    types = _tables()[release].backends["kvCacheDtype"]
    return [f"{layer}/{cache_type}" for layer in ATTENTION_LAYERS for cache_type in types]


def _question(component: Component, release: Release, architecture: str, case: str) -> Question:
    rule_input = RuleInput(release=release, architecture=architecture, **_facts(component, case) or {})
    return Question(component, _tables()[release].version, architecture, case, rule_input)


def disagreements(question: Question) -> list[str]:
    """Where plans differ from the table: without a pin, and with each pin that the version has a setting for."""
    selection = question.selection()
    if selection is None:
        return []
    found = []
    without_pin = question.plan(None)
    if selection.raises and without_pin.refusal is None and not _is_chosen_by_rule(question, without_pin):
        found.append(f"vLLM raises, and nothing is said: {selection.raises}")
    decided = without_pin.refusal is None and selection.takes and not _is_chosen_by_rule(question, without_pin)
    if decided and (expected := _backend(question, without_pin)) not in (selection.takes, *selection.others):
        found.append(f"vLLM takes {selection.takes}, but {expected} is expected")
    for backend in (*selection.accepts, *selection.refuses, *selection.ignores):
        for decision in (question.plan(backend), question.plan_setting(backend)):
            if decision is not None and (
                wrong := _disagreement(question, selection, backend, decision, refused=without_pin.refusal is not None)
            ):
                found.append(wrong)
    return found


def _disagreement(question: Question, selection: Selection, backend: str, decision: BackendDecision, *, refused: bool) -> str | None:
    """Where the plan with a pin differs from the table. `refused`: so is the plan without a pin."""
    if backend in selection.refuses:
        silent = decision.refusal is None and not any(backend in note or backend.lower() in note for note in notes_of(decision))
        return f"{backend} is refused ({selection.refuses[backend]}), but planned in silence" if silent else None
    if not _has_setting(decision):
        return None
    if backend in selection.accepts:
        planned = refused or not question.can_run(backend) or _is_planned(question, backend, decision)
        return None if planned else f"{backend} is accepted, but: {_said(decision)}"
    instead = selection.ignores[backend]
    right = decision.refusal is not None or _backend(question, decision) == instead
    return None if right else f"in place of {backend} vLLM takes {instead}, but: {_said(decision)}"


def _has_setting(decision: BackendDecision) -> bool:
    return decision.refusal is None or " has no setting for " not in decision.refusal


def _backend(question: Question, decision: BackendDecision) -> str | None:
    return next((choice.backend for choice in decision.choices if choice.component == question.component), None)


def _is_chosen_by_rule(question: Question, decision: BackendDecision) -> bool:
    return any(choice.component == question.component and choice.chosen_by == "Rule" for choice in decision.choices)


def _is_planned(question: Question, backend: str, decision: BackendDecision) -> bool:
    """Whether a pin is planned, or a rule with a reason of its own speaks against it."""
    if decision.refusal is not None:
        rules = knowledge()[2].of(question.rule_input.release).others
        return any(rule.refuse for rule in rules if rule.id in decision.rules)
    unknown = [note for note in notes_of(decision) if "does not know" in note]
    return (_backend(question, decision), unknown) == (backend, [])


def _said(decision: BackendDecision) -> str:
    return decision.refusal if decision.refusal else " ".join([str(chosen(decision)), *notes_of(decision)])


@cache
def _tables() -> Mapping[Release, VersionTable]:
    return {table.release: table for table in knowledge()[0].tables}


def _facts(component: Component, case: str) -> dict[str, Any] | None:
    """What a deployment must be to pose a question; None if it is one about another component."""
    first, *rest = case.split("/")
    if component in (Component.ATTENTION, Component.MLA_DECODE, Component.SPARSE_ATTENTION):
        return _attention(component, first, rest)
    if component is Component.MLA_PREFILL:
        nope, rope, value = map(int, rest[0].split("-"))
        return {"attention": "MLA", "quantization": "BF16", "mla_dims": (nope, rope, value), "deepseek_heads": nope == 128}
    if component is Component.GEMM:
        scheme = rest[0] if rest and first != "FP8Block" else None
        environment = {"VLLM_USE_DEEP_GEMM": "0"} if rest == ["no-deep-gemm"] else {}
        return {**DENSE, "quantization": first, "quantization_scheme": scheme, "environment": environment}
    return _experts(first, *rest)


def _attention(component: Component, kind: str, rest: Sequence[str]) -> dict[str, Any] | None:
    if {"Dense": Component.ATTENTION, "MLA": Component.MLA_DECODE, "SparseMLA": Component.SPARSE_ATTENTION}[kind] is not component:
        return None
    size, mark, cache_type = rest
    facts: dict[str, Any] = {"quantization": "BF16", "arguments": {} if cache_type == "auto" else {"--kv-cache-dtype": cache_type}}
    if kind == "Dense":
        return {**DENSE, **facts, "head_size": int(size), "attention_sinks": mark == "sinks", "image_prefix": mark == "prefix"}
    if "-" in size:
        nope, rope, value = map(int, size.split("-"))
        return {**facts, "attention": kind, "heads_per_rank": 20, "mla_dims": (nope, rope, value), "deepseek_heads": False}
    return {**R1, **facts, "attention": kind, "heads_per_rank": int(size)}


def _is_posed(release: Release, case: str) -> bool:
    """Whether a model poses the question: with sparse MLA, some types of the cache are replaced before a selector is asked."""
    replaced = [types for since, types in load_questions().sparse_cache_types.items() if since <= release]
    return not (case.startswith("SparseMLA/") and case.rpartition("/")[2] in replaced[-1])


def _experts(scheme: str, setting: str, layout: str, model: str) -> dict[str, Any]:
    name, _, hidden = model.partition("-")
    facts = {"quantization": scheme, **FORMATS.get(scheme, {}), **LAYOUTS[layout]}
    family = FAMILIES.get(name, facts.get("family"))
    return {
        "attention": "GQA",
        "mixture_of_experts": True,
        "experts": 128,
        **facts,
        "family": family,
        "routing": ROUTINGS.get(name, name),
        "hidden_size": HIDDEN if hidden else None,
        "environment": dict([setting.split("=")]) if "=" in setting else {},
    }
