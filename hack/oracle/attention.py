"""Which attention backend vLLM takes, which it accepts, and why it refuses the others."""

import contextlib
import inspect
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from oracle.answers import Answer, attempt, listed_reasons
from oracle.tables import without_the_machine

DENSE_HEADS = (64, 80, 96, 112, 128, 192, 256)
PREFIX_HEADS = (128, 256)
"""Of models that attend to images in both directions."""
MLA_HEAD = 576
OTHER_MLA = (192, 64, 256)
"""Sizes of the nope, rope and value heads of GLM-4.7-Flash: some backends are only for those of DeepSeek R1."""
QUERY_HEADS = (16, 128)
"""Of a GPU, after tensor parallelism: selectors of sparse MLA ask whether there are at most 16."""
ELSEWHERE = re.compile(
    r"^(ROCM|XPU|CPU|AMX|IPEX|HPU|PALLAS|TORCH_SDPA|NO_ATTENTION|CUSTOM|FLYDSL|RDNA)|_VLLM_V1$|^DUAL_CHUNK|^DIFFERENTIAL|^MINIMAX"
)
"""Backends of other platforms, for encoders, of one model that names them itself, or of the engine before V1."""
OTHER_KIND = re.compile(r"(^|; )(non-)?(MLA|sparse) not supported")


@dataclass(frozen=True, slots=True)
class Case:
    """A layer that attends, as a selector sees it."""

    kind: str
    head_size: int = 128
    cache: str = "auto"
    query_heads: int = 32
    sinks: bool = False
    prefix: bool = False
    dims: tuple[int, int, int] | None = None

    @property
    def name(self) -> str:
        """How a table names it; `planning` names its own questions in the same way."""
        mark = "sinks" if self.sinks else "prefix" if self.prefix else "plain"
        size = "-".join(map(str, self.dims)) if self.dims else self.head_size if self.kind == "Dense" else self.query_heads
        return f"{self.kind}/{size}/{mark}/{self.cache}"


def all_cases() -> Iterator[Case]:
    from vllm.config.cache import CacheDType

    for cache in typing.get_args(CacheDType):
        for head in DENSE_HEADS:
            yield Case("Dense", head, cache)
        for head in PREFIX_HEADS:
            yield Case("Dense", head, cache, prefix=True)
        yield Case("Dense", 64, cache, sinks=True)
        for heads in QUERY_HEADS:
            yield Case("MLA", MLA_HEAD, cache, heads)
            yield Case("SparseMLA", MLA_HEAD, cache, heads)
        yield Case("MLA", MLA_HEAD, cache, 16, dims=OTHER_MLA)


class Selector:
    """vLLM's selector in this process; see `Machine.boot`."""

    def __init__(self) -> None:
        import torch
        from vllm.platforms import current_platform
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        self._select = current_platform.get_attn_backend_cls
        self._asks = inspect.signature(self._select).parameters
        self._torch = torch
        self._platform = current_platform
        self._backends = [backend for backend in AttentionBackendEnum if not ELSEWHERE.search(backend.name)]
        self._names = {_path(backend): backend.name for backend in self._backends if _path(backend)}

    def import_backends(self) -> None:
        """Import the modules of all backends, which takes seconds; what cannot be imported is asked all the same."""
        for backend in self._backends:
            with contextlib.suppress(Exception):
                backend.get_class()

    def answer_all(self) -> dict[str, Answer]:
        from vllm.config import VllmConfig, set_current_vllm_config

        found: dict[str, Answer] = {}
        for dims in (None, OTHER_MLA):
            config = VllmConfig()
            if dims is not None:
                config.__dict__["model_config"] = _model_config(dims, self._dtype())
            with set_current_vllm_config(config):
                found |= {case.name: self._answer(case) for case in all_cases() if case.dims == dims}
        return found

    def _answer(self, case: Case) -> Answer:
        """Refusals of backends for another kind of attention are left out: why they do not fit needs no table."""
        pins = {backend.name: attempt(partial(self._ask, backend, case), listed_reasons) for backend in self._backends}
        path, _ = attempt(lambda: self._ask(None, case), listed_reasons)
        refuses = {name: reason for name, (_, reason) in pins.items() if reason is not None and not OTHER_KIND.search(reason)}
        known = len(without_the_machine(refuses)) == len(refuses)
        return Answer(
            takes=self._names.get(path, path.rpartition(".")[2]) if path is not None and known else None,
            accepts=tuple(name for name, (taken, _) in pins.items() if taken is not None),
            refuses=refuses,
            raises="No valid attention backend found" if path is None and known else None,
        )

    def _dtype(self) -> Any:
        return self._torch.bfloat16 if self._platform.has_device_capability(80) else self._torch.float16

    def _ask(self, backend: Any, case: Case) -> str:
        from vllm.v1.attention.selector import AttentionSelectorConfig

        known = {
            "head_size": case.head_size,
            "dtype": self._dtype(),
            "kv_cache_dtype": case.cache,
            "block_size": None,
            "use_mla": case.kind != "Dense",
            "use_sparse": case.kind == "SparseMLA",
            "has_sink": case.sinks,
            "use_mm_prefix": case.prefix,
        }
        config = AttentionSelectorConfig(**{name: value for name, value in known.items() if name in AttentionSelectorConfig._fields})
        given = {"num_heads": case.query_heads} if "num_heads" in self._asks else {}
        return str(self._select(backend, config, **given))


def _model_config(dims: tuple[int, int, int], dtype: Any) -> Any:
    nope, rope, value = dims
    text = SimpleNamespace(qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=value, kv_lora_rank=512, model_type="")
    sizes = {"get_head_size": lambda: MLA_HEAD, "get_num_attention_heads": lambda *_: 20, "get_num_kv_heads": lambda *_: 1}
    return SimpleNamespace(dtype=dtype, hf_text_config=text, hf_config=text, is_diffusion=False, **sizes)


def _path(backend: Any) -> str | None:
    try:
        return str(backend.get_path())
    except (AttributeError, ValueError):
        return None
