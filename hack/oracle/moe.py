"""Which Mixture-of-Experts backend vLLM takes, which it accepts, and why it refuses the others.

The oracles of vLLM (vllm/model_executor/layers/fused_moe/oracle) are asked as the quantization methods ask them. What a method or a
model decides elsewhere is not answered.
"""

import importlib
import importlib.util
import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args
from unittest.mock import patch

from oracle.answers import Answer, Asked, answer, attempt
from oracle.experts import RANKS, SCHEMES, SETTINGS, Case, Model, all_cases, canonical
from oracle.machine import cached_functions, forget

OTHER_PLATFORMS = re.compile(r"^(mori|rocm|rdna|aiter|flydsl|xpu|cpu|zentorch)")
IN_THE_MODEL = frozenset({"deep_gemm_mega_moe", "flashinfer_moe_ep_cutedsl", "flashinfer_moe_ep_mega_deep_gemm"})
"""Pins that a model may obey before it asks a selector."""
EXCHANGE = "allgather_reducescatter"
"""The default of `--all2all-backend`."""
FLAG_NAMES = {"deep_gemm": "DEEPGEMM", "deep_gemm_mega_moe": "DEEPGEMM_MEGA_MOE", "cutlass": "VLLM_CUTLASS"}
"""As catalog/data/invocations.yaml names them."""


class Selector:
    """vLLM's selectors of experts in this process; see `Machine.boot`."""

    def __init__(self) -> None:
        import torch
        from vllm.config.kernel import MoEBackend
        from vllm.model_executor.layers.fused_moe import config
        from vllm.model_executor.layers.fused_moe.activation import MoEActivation
        from vllm.model_executor.layers.fused_moe.router.router_factory import create_fused_moe_router

        self._torch, self._config = torch, config
        self._activations, self._make_router = MoEActivation, create_fused_moe_router
        self._keys = importlib.import_module("vllm.model_executor.layers.quantization.utils.quant_utils")
        self._flag = [name for name in get_args(MoEBackend) if name != "auto" and not OTHER_PLATFORMS.search(name)]
        self._layouts = ("Tensor", f"Tensor{RANKS}", "Data", f"Data{RANKS}", "Expert", "Expert-EPLB", *_exchanges())
        self._functions = {scheme.name: _find(scheme.selector) for scheme in SCHEMES}
        self._asks = {name: inspect.signature(function).parameters for name, function in self._functions.items()}
        self._parallel = {layout: self._spread(layout) for layout in self._layouts}
        self._given: Any = None
        self._layers: dict[tuple[str, str, str], Any] = {}

    def import_backends(self) -> None:
        """Import the modules of all experts: selectors do that when they are asked."""
        self.answer_all()

    def answer_all(self) -> dict[str, Answer]:
        from vllm.config import VllmConfig, set_current_vllm_config

        caches, self._layers = cached_functions(), {}
        self._given = VllmConfig()
        found = {}
        with set_current_vllm_config(self._given):
            for setting, variables in SETTINGS.items():
                with patch.dict(os.environ, variables):
                    forget(caches)  # what vLLM found out with others
                    for case in all_cases(self._layouts):
                        if case.setting == setting:
                            pins = {_pinned(name): self._ask(case, name) for name in self._flags(case)}
                            found[case.name] = answer(self._ask(case), pins)
        return found

    def _flags(self, case: Case) -> list[str]:
        return [name for name in self._flag if name not in IN_THE_MODEL or not case.model.name.startswith("DeepSeekV4")]

    def _ask(self, case: Case, pin: str = "auto") -> Asked:
        """The backend, or the reason why there is none. A backend that is a variant of the pin is the pin."""
        taken, reason = attempt(lambda: self._take(case, pin), _reason)
        return (_pinned(pin), None) if taken is not None and taken == canonical(_pinned(pin)) else (taken, reason)

    def _take(self, case: Case, pin: str) -> str:
        self._given.__dict__["model_config"] = _model_config(case.model)
        given = self._arguments(case, pin)
        found = self._functions[case.scheme.name](**{name: given[name]() for name in self._asks[case.scheme.name] if name in given})
        return canonical((found[0] if isinstance(found, tuple) else found).name)

    def _arguments(self, case: Case, pin: str) -> Mapping[str, Callable[[], Any]]:
        scheme, parallel = case.scheme, self._parallel[case.layout]

        def key(name: str | None) -> Any:
            if name == "kInt4Static32" and not hasattr(self._keys, name):
                return self._group_of_32()
            return None if name is None else getattr(self._keys, name)

        def config() -> Any:
            same = (scheme.name, case.layout, case.model.name)
            if same not in self._layers:
                self._layers[same] = self._layer(case, parallel)
            layer = self._layers[same]
            layer.moe_backend = pin
            return layer

        return {
            "config": config,
            "moe_config": config,
            "weight_key": lambda: key(scheme.weight),
            "activation_key": lambda: key(scheme.activation),
            "allow_vllm_cutlass": lambda: scheme.vllm_cutlass,
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
            "all2all_backend": _exchange(detail) if kind == "Exchange" else EXCHANGE,
            "enable_eplb": detail == "EPLB",
        }
        names = [one.name for one in fields(self._config.FusedMoEParallelConfig)]
        return self._config.FusedMoEParallelConfig(**{name: known.get(name, 0) for name in names})

    def _layer(self, case: Case, parallel: Any) -> Any:
        model, dtype = case.model, self._torch.bfloat16
        known = {
            "num_experts": model.experts,
            "experts_per_token": model.top_k,
            "hidden_dim": model.hidden,
            "intermediate_size": 1024 * parallel.tp_size,
            "num_local_experts": model.experts // parallel.ep_size,
            "num_logical_experts": model.experts,
            "activation": self._activations.from_str(model.activation),
            "device": "cuda",
            "routing_method": self._routing(model),
            "moe_parallel_config": parallel,
            "in_dtype": dtype,
            "router_logits_dtype": self._torch.float32 if _wants_float32(model) else None,
            "max_num_tokens": 256,
            "has_bias": model.bias,
            "swiglu_limit": model.swiglu_limit,
        }
        wanted = {one.name for one in fields(self._config.FusedMoEConfig) if one.init}
        return self._config.FusedMoEConfig(**{name: value for name, value in known.items() if name in wanted})

    def _routing(self, model: Model) -> Any:
        if model.routing is not None:
            return self._config.RoutingMethodType[model.routing]
        given = dict(model.router)
        if "e_score_correction_bias" in given:
            given["e_score_correction_bias"] = self._torch.zeros(model.experts)
        return self._make_router(top_k=model.top_k, global_num_experts=model.experts, renormalize=True, **given).routing_method_type


def _find(selector: str) -> Any:
    module, _, name = selector.partition(":")
    return getattr(importlib.import_module(f"vllm.model_executor.layers.fused_moe.oracle.{module}"), name)


def _pinned(flag: str) -> str:
    return FLAG_NAMES.get(flag, flag.upper())


def _four_bits(group: int) -> Any:
    """How a checkpoint in the format compressed-tensors describes its weights."""
    from compressed_tensors.quantization import QuantizationArgs

    return QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=group)


def _exchanges() -> list[str]:
    from vllm.config.parallel import All2AllBackend

    return [f"Exchange-{name}" for name in get_args(All2AllBackend) if not OTHER_PLATFORMS.search(name)]


def _exchange(name: str) -> str:
    """What vLLM makes of a name: versions replace those that were removed."""
    from vllm.config import ParallelConfig

    return str(ParallelConfig(all2all_backend=name).all2all_backend)


def _model_config(model: Model) -> Any:
    text = SimpleNamespace(model_type=model.model_type)
    return SimpleNamespace(hf_text_config=text, hf_config=text, quantization_config=None)


def _wants_float32(model: Model) -> bool:
    spec = None if model.source is None else importlib.util.find_spec(f"vllm.model_executor.models.{model.source}")
    return spec is not None and spec.origin is not None and "router_logits_dtype=torch.float32" in Path(spec.origin).read_text()


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
