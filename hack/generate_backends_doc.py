"""Write docs/backends.md, and a page with the rules of each kind of GPU in docs/backends/, from the catalog: `make generate`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generate_docs import DOCS, NOTE, table, table_cell
from vllm_operator.catalog.entry import list_data, read_data
from vllm_operator.catalog.rule_matching import ARCHITECTURES, Component
from vllm_operator.catalog.rules import RuleKind, load_rules
from vllm_operator.catalog.versions import load_versions
from vllm_operator.text.wording import listed

OF_DATA = NOTE.format("catalog/data. Edit the data there")
INTRODUCTION = """# Kernel backends

For each component of the engine that has several backends, the first of these decides:

1. **You**: a field of `spec.backends`, or a flag or variable in `spec.engine`. If your setting is known to fail, it is
   [refused](plans.md#backends-that-you-pin).
2. **Quirks**: combinations that are known to fail, and their workarounds.
3. **Choices**: the best backend for this case, if vLLM's default is a different one.
4. **The engine**: vLLM's default. The operator then sets nothing, because every variable that is set becomes part of the key
   of vLLM's compile cache.

If the GPU, the model or the version is unknown, no rule applies. The rules are on one page for each kind of GPU:

{pages}

sm_8x stands for sm_80, sm_86, sm_87 and sm_88, sm_10x for sm_100 and sm_103, sm_12x for sm_120 and sm_121.

`kubectl vllm status NAME` names the backends that were chosen, `kubectl vllm plan NAME --revision N` also why, and the source.
"""
TITLES = {RuleKind.QUIRK: "Quirks", RuleKind.CHOICE: "Choices", RuleKind.ENGINE: "Defaults of vLLM"}
OF_GPUS = """# {title}

The rules for [kernel backends](../backends.md) that name this kind of GPU. Those [for all GPUs](all-gpus.md) apply as well.
{products}
"""
OF_ALL = """# Rules for all GPUs

The rules for [kernel backends](../backends.md) that depend on the model, the version or your settings, and not on the GPU.

"""


@dataclass(frozen=True)
class Family:
    """GPUs that share a page: its name, its title, and their architectures."""

    name: str
    title: str
    architectures: tuple[str, ...]


FAMILIES = (
    Family("volta-and-turing", "Volta and Turing: sm_70, sm_72, sm_75", ("sm_70", "sm_72", "sm_75")),
    Family("ampere", "Ampere: sm_80, sm_86, sm_87, sm_88", ("sm_80", "sm_86", "sm_87", "sm_88")),
    Family("ada", "Ada: sm_89", ("sm_89",)),
    Family("hopper", "Hopper: sm_90", ("sm_90",)),
    Family("blackwell", "Data-center Blackwell: sm_100, sm_103", ("sm_100", "sm_103")),
    Family("jetson-thor", "Jetson Thor: sm_110", ("sm_110",)),
    Family("workstation-blackwell", "Workstation Blackwell and GB10: sm_120, sm_121", ("sm_120", "sm_121")),
)
SHOWN = 8
"""Maximum number of values of a condition that are listed."""


def files() -> dict[Path, str]:
    everywhere = OF_DATA + OF_ALL + _all_rules(lambda entry: not _architectures(entry))
    by_family = {DOCS / f"backends/{family.name}.md": _of_family(family) for family in FAMILIES}
    return {DOCS / "backends.md": _overview(), DOCS / "backends/all-gpus.md": everywhere, **by_family}


def _overview() -> str:
    links = [f"- [{family.title}](backends/{family.name}.md)" for family in FAMILIES]
    links.append("- [those that do not depend on the GPU](backends/all-gpus.md)")
    parts = [OF_DATA + INTRODUCTION.replace("{pages}", "\n".join(links)), *_versions()]
    for component in Component:
        known = [*_invocations(component), *_kernels(component)]
        parts += [f"## {component.value}\n", *known] if known else []
    return "\n".join(parts).rstrip() + "\n"


def _of_family(family: Family) -> str:
    titles = sorted({gpu["title"] for gpu in read_data("gpus.yaml")["products"] if gpu["architecture"] in family.architectures})
    products = f"\nKnown products: {', '.join(titles)}.\n" if titles else ""

    def belongs(entry: Mapping[str, Any]) -> bool:
        return bool(_architectures(entry) & set(family.architectures))

    return OF_DATA + OF_GPUS.format(title=family.title, products=products) + _all_rules(belongs)


def _architectures(entry: Mapping[str, Any]) -> set[str]:
    """The architectures that a rule names; none if it does not depend on them."""
    named = entry.get("when", {}).get("architectures", [])
    return {each for name in ([named] if isinstance(named, str) else named) for each in ARCHITECTURES.get(name, (name,))}


def _all_rules(belongs: Callable[[Mapping[str, Any]], bool]) -> str:
    rules = load_rules()
    raw = {entry["id"]: entry for name in list_data("rules") for entry in read_data(name)}
    parts: list[str] = []
    for component in Component:
        of_component = [(rule.kind, raw[rule.id]) for rule in rules.rules if rule.component is component and belongs(raw[rule.id])]
        if of_component:
            parts.append(f"## {component.value}\n")
        for kind in RuleKind:
            parts += _rules(TITLES[kind], [entry for each, entry in of_component if each is kind])
    return "\n".join(parts).rstrip() + "\n"


def _versions() -> Iterator[str]:
    yield "## Versions\n"
    yield "`hack/ingest_vllm.py` reads this table from the wheels. A version between two rows is treated like the lower one.\n"
    rows = []
    for known in load_versions().tables:
        bundle = known.bundle
        flashinfer = f"{bundle.flashinfer or 'optional'}{' with prebuilt kernels' if bundle.flashinfer_cubins else ''}"
        vendored = "yes" if bundle.deep_gemm else "no"
        rows.append((known.version, bundle.cuda, bundle.torch, flashinfer, vendored, len(known.variables), len(known.flags)))
    yield from _table("vLLM | CUDA of the image | torch | FlashInfer | DeepGEMM in the wheel | variables | flags", rows)


def _invocations(component: Component) -> Iterator[str]:
    rows = []
    for entry in _entries("invocations.yaml", component):
        if "flag" in entry:
            how = f"`{entry['flag']}`, with any name that the version accepts"
        else:
            how = "<br>".join(f"{backend}: {_settings(setting)}" for backend, setting in entry["backends"].items())
        rows.append((_condition(entry.get("when", {})), how))
    return _table("when | settings", rows, "How to request a backend:")


def _kernels(component: Component) -> Iterator[str]:
    rows = []
    for entry in _entries("kernels.yaml", component):
        works = "<br>or ".join(_condition(condition) for condition in entry["works"]) or "nothing"
        rows.append((entry["backend"], works, entry.get("needs", ""), entry["source"]))
    return _table("backend | works with | needs | source", rows, "Where a backend works:")


def _entries(name: str, component: Component) -> list[dict[str, Any]]:
    return [entry for entry in read_data(name) if entry["component"] == component.value]


def _rules(title: str, entries: list[dict[str, Any]]) -> Iterator[str]:
    rows = []
    for entry in entries:
        then = [" or ".join([f"**{entry['backend']}**", *entry.get("alternatives", ())])] if "backend" in entry else []
        then += [_settings(entry)] if "environment" in entry or "arguments" in entry else []
        then += [f"refused: {entry['refuse']}"] if "refuse" in entry else []
        then += [f"warning: {entry['warn']}"] if "warn" in entry else []
        rows.append((_condition(entry.get("when", {})), "<br>".join(then), entry["because"], f"`{entry['id']}`<br>{entry['source']}"))
    return _table("when | then | because | source", rows, f"### {title}")


def _table(header: str, rows: Iterable[Iterable[Any]], title: str = "") -> Iterator[str]:
    """A table below its title; nothing without rows."""
    cells = [["" if cell is None else table_cell(str(cell)) for cell in row] for row in rows]
    if cells:
        yield from [f"{title}\n"] if title else []
        yield from table(header, cells)
        yield ""


def _settings(setting: dict[str, Any]) -> str:
    variables = [f"`{name}={value}`" for name, value in setting.get("environment", {}).items()]
    flags = [f"`{name}{'' if value in (None, '') else f' {value}'}`" for name, value in setting.get("arguments", {}).items()]
    return ", ".join(variables + flags) or "no setting needed"


WORDS = {
    "modelClasses": "class {}",
    "dtypes": "computes in {}",
    "versions": "vLLM {}",
    "architectures": "{}",
    "attention": "{} attention",
    "quantizations": "{} weights",
    "quantizationSchemes": "published by {}",
    "families": "{}",
    "routing": "{} routing",
    "optimizeFor": "optimizeFor {}",
    "distributions": "{}",
    "tensor": "tensor {}",
    "data": "data {}",
    "pipeline": "pipeline {}",
    "expertTensor": "experts sharded across {} GPUs",
    "experts": "experts {}",
    "routingGroups": "routing groups {}",
    "groupSize": "groups of {} weights with a common scale",
    "headSize": "attention heads of {}",
    "headsPerRank": "heads per GPU {}",
    "weightGigabytes": "weights {} GB",
    "sliceGigabytes": "slice {} GB",
    "sliceCompute": "{} compute slices",
    "checkpointCaches": "the checkpoint requests a KV cache in {}",
}
TRUTHS = {
    "mixtureOfExperts": ("mixture of experts", "dense"),
    "expertParallel": ("expert parallel", "not expert parallel"),
    "exchangesTokens": ("tokens exchanged between GPUs", "no tokens exchanged between GPUs"),
    "descAct": ("ordered by activation", "not ordered by activation"),
    "mig": ("MIG slice", "whole GPU"),
    "deepSeekHeads": ("head sizes of DeepSeek R1", "other head sizes"),
    "unevenHeads": ("heads not divisible by tensor", "heads divisible by tensor"),
    "unevenWidth": ("hidden size not divisible by 128", "hidden size divisible by 128"),
    "unevenExperts": ("experts not divisible by the GPUs", "experts divisible by the GPUs"),
    "unequalHeads": ("heads of keys and values of different sizes", "heads of keys and values of one size"),
    "windowed": ("layers with sliding windows", "no layer with a sliding window"),
    "dualChunk": ("dual chunk attention", "no dual chunk attention"),
    "newerClass": ("a model that only newer versions have", "a model that this version has"),
    "unevenGroups": ("experts not divisible by the groups of scales", "experts divisible by the groups of scales"),
    "unevenBlocks": ("experts not divisible by 128", "experts divisible by 128"),
}


def _condition(when: dict[str, Any]) -> str:
    return "; ".join(_clauses(when)) or "everywhere"


def _clauses(when: dict[str, Any]) -> Iterator[str]:
    for key, value in when.items():
        if key in TRUTHS:
            yield TRUTHS[key][0 if value else 1]
        elif key == "except":
            yield "not " + _condition(value)
        elif key in ("chosen", "forced"):
            yield from (f"{component} {key} as {_list(names)}" for component, names in value.items())
        elif key in ("environment", "arguments"):
            yield from (f"you set `{name}`" + (f" matching `{pattern}`" if pattern else "") for name, pattern in value.items())
        else:
            yield WORDS[key].format(_list(value))


def _list(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    names = [str(each) for each in value]
    return f"{names[0]} or one of {len(names) - 1} others" if len(names) > SHOWN else listed(names, "or")
