"""Which backend vLLM takes for the prefill of MLA, which it accepts, and why it refuses the others."""

import importlib
import inspect
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

from oracle.gemm import Answer
from oracle.machine import cached_functions

HEADS = ((128, 64, 128), (192, 64, 256))
"""Sizes of the nope, rope and value heads: of DeepSeek R1 and Kimi K2, and of GLM-4.7-Flash."""
SELECTOR = "vllm.v1.attention.backends.mla.prefill.selector"
OLDER = ("vllm.model_executor.layers.attention.mla_attention", "vllm.v1.attention.backends.mla.common")
"""Where the choice was made before there was a selector, the newest first."""
CHOICES = {
    "use_flashinfer_prefill": "FLASHINFER",
    "use_trtllm_ragged_deepseek_prefill": "TRTLLM_RAGGED",
    "use_cudnn_prefill": "CUDNN",
}
"""Its functions; if none of them is true, it takes FlashAttention."""
SETTINGS: Mapping[str, Mapping[str, bool]] = {
    "FLASH_ATTN": {"disable_flashinfer_prefill": True, "use_trtllm_ragged_deepseek_prefill": False},
    "FLASHINFER": {"disable_flashinfer_prefill": False, "use_trtllm_ragged_deepseek_prefill": False},
    "TRTLLM_RAGGED": {"use_trtllm_ragged_deepseek_prefill": True},
    "CUDNN": {"use_cudnn_prefill": True, "use_trtllm_ragged_deepseek_prefill": False},
}
"""What requests each: fields of --attention-config, before 0.13 variables. A version must know the first, and gets those it knows."""
ELSEWHERE = re.compile(r"CPU|AITER|ROCM|ZEN|CUSTOM")
REASONS = re.compile(r"Reason: \[(.*)\]", re.DOTALL)


class Selector:
    """vLLM's choice of a prefill backend in this process; see `Machine.boot`."""

    def __init__(self) -> None:
        self._older: Any = None
        try:
            self._selector = importlib.import_module(SELECTOR)
        except ModuleNotFoundError:
            self._older = _older()

    def import_backends(self) -> None:
        """Ask once, so that everything is imported."""
        for backend in (None, *self._backends()):
            with suppress(Exception):
                self._take(HEADS[0], backend)

    def answer_all(self) -> dict[str, Answer]:
        """Answer for the head sizes of each kind of model."""
        self._caches = cached_functions()
        return {f"MLA/{'-'.join(map(str, heads))}": self._answer(heads) for heads in HEADS}

    def _answer(self, heads: tuple[int, int, int]) -> Answer:
        takes, raises = None, None
        try:
            takes = self._take(heads, None)
        except Exception as error:
            raises = _reason(error)
        accepts, refuses, ignores = [], {}, {}
        for backend in self._backends():
            try:
                taken = self._take(heads, backend)
            except Exception as error:
                refuses[backend] = _reason(error)
            else:
                if taken == backend:
                    accepts.append(backend)
                else:
                    ignores[backend] = taken
        return Answer(takes, tuple(accepts), refuses, ignores, raises)

    def _backends(self) -> list[str]:
        if self._older is None:
            registry = importlib.import_module("vllm.v1.attention.backends.mla.prefill.registry")
            return [each.name for each in registry.MLAPrefillBackendEnum if not ELSEWHERE.search(each.name)]
        return [name for name, settings in SETTINGS.items() if _is_known(next(iter(settings)))]

    def _take(self, heads: tuple[int, int, int], backend: str | None) -> str:
        import torch
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.platforms import current_platform

        for function in getattr(self, "_caches", ()):
            function.cache_clear()
        config = VllmConfig()
        nope, rope, value = heads
        text = SimpleNamespace(qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=value, model_type="")
        dtype = torch.bfloat16 if current_platform.has_device_capability(80) else torch.float16
        object.__setattr__(config, "model_config", SimpleNamespace(dtype=dtype, hf_text_config=text, hf_config=text, is_diffusion=False))
        with set_current_vllm_config(config):
            if self._older is None:
                registry = importlib.import_module("vllm.v1.attention.backends.mla.prefill.registry")
                config.attention_config.mla_prefill_backend = registry.MLAPrefillBackendEnum[backend] if backend else None
                return str(self._selector.get_mla_prefill_backend(config).get_name())
            with _set(config, SETTINGS[backend] if backend else {}):
                return next((CHOICES[name] for name in _order(self._older) if getattr(self._older, name)()), "FLASH_ATTN")


def _older() -> Any:
    for name in OLDER:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        if hasattr(module, "use_flashinfer_prefill"):
            return module
    raise LookupError("this vLLM does not choose the prefill of MLA where it is looked for")


def _order(module: Any) -> list[str]:
    """The functions in the order in which the layer asks them."""
    return re.findall(rf"^ +(?:el)?if ({'|'.join(CHOICES)})\(\):", inspect.getsource(module), re.MULTILINE)


def _variable(setting: str) -> str:
    return f"VLLM_{setting.upper()}"


def _is_known(setting: str) -> bool:
    import vllm.envs as envs
    from vllm.config import VllmConfig

    return hasattr(getattr(VllmConfig(), "attention_config", None), setting) or _variable(setting) in envs.environment_variables


@contextmanager
def _set(config: Any, settings: Mapping[str, bool]) -> Iterator[None]:
    before = dict(os.environ)
    for name, value in settings.items():
        if hasattr(getattr(config, "attention_config", None), name):
            setattr(config.attention_config, name, value)
        elif _is_known(name):
            os.environ[_variable(name)] = str(int(value))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _reason(error: Exception) -> str:
    """The selector's own reasons, without the names around them."""
    text = " ".join(str(error).split())
    found = REASONS.search(text)
    reasons = re.findall(r"'([^']*)'|\"([^\"]*)\"", found[1]) if found else []
    return "; ".join(one or other for one, other in reasons) or f"{type(error).__name__}: {text}"[:300]
