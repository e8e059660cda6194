"""Which Mixture-of-Experts backend vLLM takes, which it accepts, and why it refuses the others.

The oracles of vLLM (vllm/model_executor/layers/fused_moe/oracle, before 0.14 functions of the quantization methods) are asked as
the quantization methods ask them. What a method or a model decides elsewhere is not answered.
"""

import functools
import importlib
import importlib.util
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from oracle.experts import RANKS, SCHEMES, SETTINGS, UNUSUAL, Case, Model, Scheme, all_cases, canonical
from oracle.machine import cached_functions

OTHER_PLATFORMS = re.compile(r"^(mori|rocm|rdna|aiter|flydsl|xpu|cpu|zentorch)")
IN_THE_MODEL = frozenset({"deep_gemm_mega_moe", "flashinfer_moe_ep_cutedsl", "flashinfer_moe_ep_mega_deep_gemm"})
"""Pins that a model may obey before it asks a selector."""
EXPERTS = "vllm.model_executor.layers.fused_moe"
EXCHANGE = "allgather_reducescatter"
"""The default of `--all2all-backend`."""
FLAG_NAMES = {"deep_gemm": "DEEPGEMM", "deep_gemm_mega_moe": "DEEPGEMM_MEGA_MOE", "cutlass": "VLLM_CUTLASS"}
"""As catalog/data/invocations.yaml names them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a selector says.

    Attributes:
        takes: The backend that it takes by itself; None if it raises.
        accepts: Pins that it follows. Of selectors that do not look at the layer, none: what they take may fail later.
        refuses: Pins on which it raises, each with its reason.
        ignores: Pins in place of which it takes another backend, with that.
        raises: Why it raises without a pin.
    """

    takes: str | None
    accepts: tuple[str, ...]
    refuses: Mapping[str, str]
    ignores: Mapping[str, str] = field(default_factory=dict)
    raises: str | None = None


Asked = tuple[str | None, str | None]
"""A backend, or else the reason why there is none."""


class Selector:
    """vLLM's selectors of experts in this process; see `Machine.boot`."""

    def __init__(self) -> None:
        import torch
        import vllm.envs
        from vllm.model_executor.layers.fused_moe import config

        self._torch = torch
        self._variables = vllm.envs.environment_variables
        self._config = config
        self._activations = _optional(f"{EXPERTS}.activation", "MoEActivation")
        self._make_router = _optional(f"{EXPERTS}.router.router_factory", "create_fused_moe_router")
        self._keys = importlib.import_module("vllm.model_executor.layers.quantization.utils.quant_utils")
        self._flag = [name for name in _flag_values() if name != "auto" and not OTHER_PLATFORMS.search(name)]
        self._layouts = ("Tensor", f"Tensor{RANKS}", "Data", f"Data{RANKS}", "Expert", "Expert-EPLB", *_exchanges())
        found = {scheme.name: function for scheme in SCHEMES if (function := _find(scheme.selectors)) is not None}
        self._asks = {name: inspect.signature(function).parameters for name, function in found.items()}
        self._functions = {name: function for name, function in found.items() if self._can_ask(name)}
        self._parallel = {layout: self._spread(layout) for layout in self._layouts}
        _make_up_humming()
        self._given: Any = None
        self._caches: list[Any] = []
        self._layers: dict[tuple[str, str, str, bool], Any] = {}

    def import_backends(self) -> None:
        """Import the modules of all experts: selectors do that when they are asked."""
        self.answer_all()

    def answer_all(self) -> dict[str, Answer]:
        """Answer for every case that this version has a selector for, by its name."""
        from vllm.config import VllmConfig, set_current_vllm_config

        self._caches, self._layers = cached_functions(), {}
        self._given = VllmConfig()
        cases = [case for case in all_cases(self._layouts) if case.scheme.name in self._functions]
        found = self._answer_marlin()
        with set_current_vllm_config(self._given):
            for setting, variables in SETTINGS.items():
                with self._environment(variables):
                    chosen = [case for case in cases if case.setting == setting]
                    taken = {case.name: self._ask(case) for case in chosen}
                    pins = {case.name: {self._pinned(name): self._ask(case, name) for name in self._flags(case)} for case in chosen}
                if not self._flag and setting == "Unset":
                    self._ask_with_variables(chosen, pins)
                found |= {case.name: self._answer(case, taken[case.name], pins[case.name]) for case in chosen}
        return found

    def _answer_marlin(self) -> dict[str, Answer]:
        """Answer for 4-bit weights of a version whose method for them takes Marlin and does not read `--moe-backend`."""
        package = importlib.util.find_spec("vllm.model_executor.layers.quantization.compressed_tensors")
        assert package is not None
        assert package.origin is not None
        texts = [_text(str(file)) for file in sorted(Path(package.origin).parent.rglob("compressed_tensors_moe*.py"))]
        named = "\nclass CompressedTensorsWNA16MarlinMoEMethod"
        method = next((text.partition(named)[2].partition("\nclass ")[0] for text in texts if named in text), "")
        if not self._flag or not method or "moe_backend" in method:
            return {}
        answer = Answer("MARLIN", ("MARLIN",), {}, {self._pinned(name): "MARLIN" for name in self._flag if name != "marlin"})
        layouts = [layout for layout in self._layouts if not layout.startswith("Exchange")]
        return {case.name: answer for case in all_cases(tuple(layouts)) if case.scheme.name in ("INT4", "INT4Group32")}

    def _ask_with_variables(self, cases: list[Case], pins: dict[str, dict[str, Asked]]) -> None:
        for scheme in SCHEMES:
            for backend, variables in self._pins(scheme).items():
                if variables.keys() <= self._variables.keys():
                    with self._environment(variables):
                        for case in (case for case in cases if case.scheme is scheme):
                            pins[case.name][backend] = self._ask(case)

    def _pins(self, scheme: Scheme) -> Mapping[str, Mapping[str, str]]:
        """The variables that pin a backend; before 0.15 VLLM_USE_FLASHINFER_MOE_FP8 was off by default."""
        if scheme.name != "FP8Block" or "config" in self._asks.get(scheme.name, ()):
            return scheme.pins
        return {**scheme.pins, **{name: {"VLLM_MOE_USE_DEEP_GEMM": value} for name, value in (("DEEPGEMM", "1"), ("TRITON", "0"))}}

    def _can_ask(self, scheme: str) -> bool:
        if scheme == "MXFP4" and importlib.util.find_spec("vllm.third_party.triton_kernels") is None:
            return False  # whether the image has the package triton_kernels is not known from the wheel
        if scheme == "FP8Channel" and "allow_vllm_cutlass" not in self._asks[scheme]:
            return False  # the format compressed-tensors had a selection of its own
        return "weight_bits" not in self._asks[scheme]  # such a selector was not asked for the format compressed-tensors

    def _flags(self, case: Case) -> list[str]:
        return [name for name in self._flag if name not in IN_THE_MODEL or case.model.name != "DeepSeekV4"]

    @staticmethod
    def _pinned(flag: str) -> str:
        return FLAG_NAMES.get(flag, flag.upper())

    def _answer(self, case: Case, taken: Asked, pins: Mapping[str, Asked]) -> Answer:
        looks = bool({"config", "moe_config"} & self._asks[case.scheme.name].keys())
        if not looks and case.scheme.name == "FP8":
            pins = {}  # ModelOpt obeyed them elsewhere
        followed = [name for name, (backend, _) in pins.items() if backend is not None and canonical(name) == backend]
        ignored = {name: backend for name, (backend, _) in pins.items() if backend is not None and canonical(name) != backend}
        refused = {name: reason for name, (_, reason) in pins.items() if reason is not None}
        return Answer(taken[0], tuple(followed) if looks else (), refused, ignored, taken[1])

    @contextmanager
    def _environment(self, variables: Mapping[str, str]) -> Iterator[None]:
        """Set variables, and forget what vLLM found out with others."""
        os.environ |= variables
        _forget(self._caches)
        try:
            yield
        finally:
            for name in variables:
                del os.environ[name]
            _forget(self._caches)

    def _ask(self, case: Case, pin: str = "auto") -> Asked:
        """The backend, or the reason why there is none."""
        function = self._functions[case.scheme.name]
        try:
            self._given.__dict__["model_config"] = _model_config(case.model)
            given = self._arguments(case, pin)
            found = function(**{name: given[name]() for name in self._asks[case.scheme.name] if name in given})
        except Exception as error:
            return None, _reason(error)
        backend = found[0] if isinstance(found, tuple) else found
        return canonical(backend.name), None

    def _arguments(self, case: Case, pin: str) -> Mapping[str, Callable[[], Any]]:
        scheme, parallel = case.scheme, self._parallel[case.layout]

        def key(name: str | None) -> Any:
            if name == "kInt4Static32" and not hasattr(self._keys, name):
                return self._group_of_32()
            return None if name is None else getattr(self._keys, name)

        def config() -> Any:
            same = (scheme.name, case.layout, case.model.name, case.unusual)
            if same not in self._layers:
                self._layers[same] = self._layer(case, parallel)
            layer = self._layers[same]
            layer.moe_backend = pin
            return layer

        return {
            "config": config,
            "moe_config": config,
            "moe_parallel_config": lambda: parallel,
            "weight_key": lambda: key(scheme.weight),
            "activation_key": lambda: key(scheme.activation),
            "allow_vllm_cutlass": lambda: scheme.vllm_cutlass,
            "block_quant": lambda: scheme.name == "FP8Block",
            "tp_size": lambda: parallel.tp_size,
            "with_lora_support": lambda: False,
            "is_act_and_mul": lambda: not case.model.activation.endswith("no_mul"),
            "use_ep": lambda: parallel.use_ep,
            "use_dp": lambda: parallel.dp_size > 1,
            "quant_config": lambda: _four_bits(32 if scheme.name.endswith("32") else 128),
            "may_have_zp": lambda: False,
            "may_have_bias": lambda: False,
            "allow_tile_padding": lambda: True,
        }

    def _group_of_32(self) -> Any:
        """The format of Kimi K2, in versions that have no name for it."""
        keys = self._keys
        scale = keys.ScaleDesc(self._torch.float16, True, keys.GroupShape(1, 32))
        return keys.QuantKey(keys.INT4_DTYPE, scale=scale, symmetric=True)

    def _spread(self, layout: str) -> Any:
        kind, _, detail = layout.partition("-")
        experts = kind in ("Expert", "Exchange")
        data = RANKS if kind in ("Exchange", f"Data{RANKS}") else 2 if kind == "Data" else 1
        parts = {"Tensor": 1, "Data": 2}.get(kind, 1 if experts else RANKS)
        known = {
            "tp_size": parts,
            "dp_size": data,
            "ep_size": RANKS if experts else 1,
            "pcp_size": 1,
            "sp_size": 1,
            "use_ep": experts,
            "is_sequence_parallel": False,
            "all2all_backend": _exchange(detail) if kind == "Exchange" else EXCHANGE,
            "enable_eplb": detail == "EPLB",
        }
        names = [one.name for one in fields(self._config.FusedMoEParallelConfig)]
        return self._config.FusedMoEParallelConfig(**{name: known.get(name, 0) for name in names})

    def _layer(self, case: Case, parallel: Any) -> Any:
        model, dtype = case.model, self._torch.bfloat16
        unusual = UNUSUAL.get(case.scheme.name) if case.unusual else None
        part = 1024 * parallel.tp_size
        known = {
            "num_experts": model.experts,
            "experts_per_token": model.top_k,
            "hidden_dim": 2688 if unusual == "hidden" else model.hidden,
            "intermediate_size": part,
            "intermediate_size_per_partition": part // parallel.tp_size,
            "num_local_experts": model.experts // parallel.ep_size,
            "num_logical_experts": model.experts,
            "activation": self._activations.from_str(model.activation) if self._activations else model.activation,
            "device": "cuda",
            "routing_method": self._routing(model),
            "moe_parallel_config": parallel,
            "in_dtype": dtype,
            "router_logits_dtype": self._torch.float32 if _wants_float32(model) else None,
            "max_num_tokens": 256,
            "has_bias": model.bias,
            "is_act_and_mul": not model.activation.endswith("no_mul"),
            "swiglu_limit": model.swiglu_limit,
        }
        wanted = {one.name for one in fields(self._config.FusedMoEConfig) if one.init}
        wanted -= {"intermediate_size_per_partition"} if "intermediate_size" in wanted else set()
        return self._config.FusedMoEConfig(**{name: value for name, value in known.items() if name in wanted})

    def _routing(self, model: Model) -> Any:
        if model.routing is not None:
            return self._config.RoutingMethodType[model.routing]
        if self._make_router is None:
            raise LookupError("this vLLM has no create_fused_moe_router")
        given = dict(model.router)
        if "e_score_correction_bias" in given:
            given["e_score_correction_bias"] = self._torch.zeros(model.experts)
        return self._make_router(top_k=model.top_k, global_num_experts=model.experts, renormalize=True, **given).routing_method_type


def _forget(caches: Iterable[Any]) -> None:
    for function in caches:
        function.cache_clear()


def _optional(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError):
        return None


def _find(selectors: tuple[str, ...]) -> Any:
    for selector in selectors:
        module, _, name = selector.partition(":")
        package = EXPERTS if module.startswith("oracle.") else "vllm.model_executor.layers"
        if function := _optional(f"{package}.{module}", name):
            return function
    return None


def _four_bits(group: int) -> Any:
    """How a checkpoint in the format compressed-tensors describes its weights."""
    from compressed_tensors.quantization import QuantizationArgs

    return QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=group)


class GemmType(Enum):
    """Humming's enumeration, of which the names are known and the values are what vLLM compares."""

    INDEXED = "indexed"
    GROUPED_CONTIGUOUS = "grouped_contiguous"
    GROUPED_MASKED = "grouped_masked"


def _make_up_humming() -> None:
    """Give Humming, of which only the names are known, the values that vLLM compares."""
    humming = _optional("vllm.utils", "humming")
    if humming is not None:
        humming.GemmType = GemmType


def _flag_values() -> tuple[str, ...]:
    """The values of `--moe-backend`; none in versions without it."""
    literal = _optional("vllm.config.kernel", "MoEBackend")
    return tuple(getattr(literal, "__args__", ()))


def _exchanges() -> list[str]:
    """How tokens can travel to experts on other GPUs, as layouts."""
    literal = _optional("vllm.config.parallel", "All2AllBackend")
    names = getattr(literal, "__args__", ()) or (EXCHANGE, "naive", "pplx", "deepep_high_throughput", "deepep_low_latency")
    return [f"Exchange-{name}" for name in names if not OTHER_PLATFORMS.search(name)]


def _exchange(name: str) -> str:
    """What vLLM makes of a name: versions replace those that were removed."""
    from vllm.config import ParallelConfig

    try:
        return str(ParallelConfig(all2all_backend=name).all2all_backend)
    except (TypeError, AttributeError):  # it was a variable in 0.11.0
        return name


def _model_config(model: Model) -> Any:
    """As much of a model's configuration as selectors read."""
    text = SimpleNamespace(model_type=model.model_type)
    return SimpleNamespace(hf_text_config=text, hf_config=text, quantization_config=None)


def _wants_float32(model: Model) -> bool:
    if model.source is None:
        return False
    spec = importlib.util.find_spec(f"vllm.model_executor.models.{model.source}")
    return spec is not None and spec.origin is not None and "router_logits_dtype=torch.float32" in _text(spec.origin)


@functools.cache
def _text(path: str) -> str:
    return Path(path).read_text()


def _reason(error: Exception) -> str:
    """Why a selector raises, without what it repeats of the question."""
    if not isinstance(error, ValueError | NotImplementedError | RuntimeError):
        return f"{type(error).__name__}: {error}"[:300]
    text = " ".join(str(error).split())
    text = re.sub(r"parallel config FusedMoEParallelConfig\(.*?\)", "this parallel layout", text)
    text = re.sub(r"moe_backend='[^']*' is not supported for ", "not supported for ", text)
    text = re.sub(r"current device( \S+)?", "this GPU", text)
    text = re.sub(r"quantization scheme .*", "this number format", text)
    text = re.sub(r" Expected one of .*| Unsupported reasons: .*| Candidate backends were: .*", "", text)
    return re.sub(r".*does not support the deployment configuration since (.*?)\.?$", r"\1", text)[:200]
