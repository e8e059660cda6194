"""Which backend vLLM takes for the prefill of MLA, which it accepts, and why it refuses the others."""

import re
from types import SimpleNamespace
from typing import Any

from oracle.answers import Answer, Asked, answer, attempt, listed_reasons
from oracle.machine import cached_functions, forget

HEADS = ((128, 64, 128), (192, 64, 256))
"""Sizes of the nope, rope and value heads: of DeepSeek R1 and Kimi K2, and of GLM-4.7-Flash."""
ELSEWHERE = re.compile(r"CPU|AITER|ROCM|ZEN|CUSTOM")


class Selector:
    """vLLM's choice of a prefill backend in this process; see `Machine.boot`."""

    def __init__(self) -> None:
        from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum
        from vllm.v1.attention.backends.mla.prefill.selector import get_mla_prefill_backend

        self._backends = {each.name: each for each in MLAPrefillBackendEnum if not ELSEWHERE.search(each.name)}
        self._select = get_mla_prefill_backend

    def import_backends(self) -> None:
        """Ask once, so that everything is imported."""
        self._answer(HEADS[0], [])

    def answer_all(self) -> dict[str, Answer]:
        caches = cached_functions()
        return {f"MLA/{'-'.join(map(str, heads))}": self._answer(heads, caches) for heads in HEADS}

    def _answer(self, heads: tuple[int, int, int], caches: list[Any]) -> Answer:
        def ask(backend: Any) -> Asked:
            forget(caches)
            return attempt(lambda: self._take(heads, backend), listed_reasons)

        return answer(ask(None), {name: ask(backend) for name, backend in self._backends.items()})

    def _take(self, heads: tuple[int, int, int], backend: Any) -> str:
        import torch
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.platforms import current_platform

        config = VllmConfig()
        nope, rope, value = heads
        text = SimpleNamespace(qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=value, model_type="")
        dtype = torch.bfloat16 if current_platform.has_device_capability(80) else torch.float16
        object.__setattr__(config, "model_config", SimpleNamespace(dtype=dtype, hf_text_config=text, hf_config=text, is_diffusion=False))
        with set_current_vllm_config(config):
            config.attention_config.mla_prefill_backend = backend
            return str(self._select(config).get_name())
