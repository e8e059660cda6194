"""What vLLM builds: its own configuration and model class, on made-up GPUs, and what the layers of the model took.

One process, one vLLM. Questions come as lines of JSON, and each is answered in a fork, so that it changes nothing for the next one.
"""

import contextlib
import gc
import importlib
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from oracle.experts import canonical
from oracle.gemm import kernel_of
from oracle.machine import Machine, Operator, cached_functions

LAYERS = 6
"""Layers of a model that are built: no kind of layer repeats later than this."""
PATTERNS = ("hybrid_override_pattern",)  # with one letter for each layer
ENCODERS = re.compile(r"vision|visual|audio|multi_modal|mm_projector")
FIXED = {"MarlinMoEMethod": "MARLIN", "MoeWNA16Method": "TRITON"}
"""Methods with one backend of experts, by a part of their names (before 0.25)."""
NOT_DENSE = re.compile(r"lm_head|embed|(\.|_)gate$|router|indexer|expert_gate|mtp|conv1d")
"""Layers of which a plan says nothing."""


class Group:
    """The ranks of one kind of parallelism, of which this process is the first."""

    def __init__(self, size: int) -> None:
        self.world_size, self.ranks = size, list(range(size))
        self.rank = self.local_rank = self.rank_in_group = self.first_rank = 0
        self.last_rank = size - 1
        self.is_first_rank = self.is_last_rank = True
        self.unique_name, self.device_communicator, self.mq_broadcaster = "made-up", None, None
        self.device_group = self.cpu_group = SimpleNamespace(size=lambda: size, rank=lambda: 0)
        self.use_device_communicator, self.use_custom_op_call = False, False


def _shorten(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the first layers only."""
    short: dict[str, Any] = {name: _shorten(value) if name in ("text_config", "vision_config") else value for name, value in config.items()}
    if "depth" in short:  # of an encoder
        short["depth"] = 1
    if "num_hidden_layers" in short:
        layers = int(short["num_hidden_layers"])
        cut = {name: value[:LAYERS] for name, value in short.items() if isinstance(value, list) and len(value) == layers}
        cut |= {name: short[name][:LAYERS] for name in PATTERNS if name in short}
        short |= {**cut, "num_hidden_layers": min(LAYERS, layers)}
        if short.get("num_kv_shared_layers"):  # the last ones, which have no cache of their own
            short["num_kv_shared_layers"] = 0
    return short


def _set_groups(tensor: int) -> None:
    from vllm.distributed import parallel_state

    split = {"_TP", "_EP", "_EPLB", "_WORLD", "_INNER_DP_WORLD"}
    for name in (*split, "_PP", "_DP", "_DCP", "_PCP"):
        if hasattr(parallel_state, name):
            setattr(parallel_state, name, Group(tensor if name in split else 1))


def build(question: Mapping[str, Any]) -> dict[str, Any]:
    """Build the model of a question. Raises whatever vLLM raises."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model

    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    with contextlib.suppress(ImportError):  # the workers of newer versions have one
        from vllm.v1.worker.workspace import init_workspace_manager

        init_workspace_manager(torch.device("meta"))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(_shorten(question["config"])))
        parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
        flags = ["--model", folder, "--skip-tokenizer-init", "--load-format", "dummy"]
        for name, value in question["arguments"]:
            if name in parser._option_string_actions:  # the others are for the server
                flags += [name] if value is None else [name, value]
        given = parser.parse_args(flags)
        config = EngineArgs.from_cli_args(given).create_engine_config()
        _set_groups(question["tensor"])
        torch.set_default_dtype(config.model_config.dtype)
        with set_current_vllm_config(config), torch.device("meta"):
            model = initialize_model(config)
            return {"dtype": str(config.model_config.dtype), **_taken(model, config)}


def _taken(model: Any, config: Any) -> dict[str, Any]:
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    found: dict[str, Counter[str]] = {"attention": Counter(), "prefill": Counter(), "moe": Counter(), "gemm": Counter()}
    names = _backend_names()
    for name, layer in model.named_modules():
        if ENCODERS.search(name):
            continue
        backend = getattr(layer, "attn_backend", None)
        if backend is not None and hasattr(backend, "get_name") and hasattr(layer, "kv_cache_dtype"):
            kind = f"{backend.__module__}.{backend.__qualname__}"
            found["attention"][names.get(kind, backend.get_name())] += 1
            prefill = getattr(layer, "prefill_backend", None)
            if prefill is not None:
                found["prefill"][prefill.get_name()] += 1
        elif hasattr(layer, "local_num_experts") and hasattr(layer, "quant_method"):
            found["moe"][_experts(layer)] += 1
        elif isinstance(layer, LinearBase) and not NOT_DENSE.search(name):
            found["gemm"][_dense(layer)] += 1
    found["sampler"] = Counter(["FLASHINFER" if TopKTopPSampler().forward.__name__ == "forward_cuda" else "NATIVE"])
    return {component: dict(counted) for component, counted in found.items()}


def _backend_names() -> dict[str, str]:
    from vllm.v1.attention.backends import registry

    found: dict[str, str] = {}
    for each in registry.AttentionBackendEnum:
        with contextlib.suppress(Exception):
            found.setdefault(each.get_path(), each.name)
    return found


def _experts(layer: Any) -> str:
    method = layer.quant_method
    if named := next((name for words, name in FIXED.items() if words in type(method).__name__), None):
        return named
    holders = [method, getattr(method, "quant_method", None), getattr(layer, "scheme", None)]
    for holder in holders:
        for value in vars(holder).values() if hasattr(holder, "__dict__") else ():
            if isinstance(value, Enum) and "backend" in type(value).__name__.lower():
                return canonical(value.name)
    return type(method).__name__


def _dense(layer: Any) -> str:
    if "Unquantized" in type(layer.quant_method).__name__:
        return "TORCH"
    try:
        return kernel_of(layer.quant_method, layer)
    except NotImplementedError as error:
        return f"? {error}"


def answer(question: Mapping[str, Any], machine: Machine, caches: list[Any]) -> dict[str, Any]:
    """What the layers took, or why there are none."""
    machine.multiprocessors = question["multiprocessors"]
    machine.become(tuple(question["capability"]), caches)
    os.environ |= {name: value for name, value in question["environment"].items() if not value.startswith("/")}
    try:
        return build(question)
    except BaseException as error:
        return {"raises": f"{type(error).__name__}: {' '.join(str(error).split())}"[:1500]}


def serve(vllm: Path, flashinfer: Path) -> None:
    """Answer the questions of the standard input."""
    machine = Machine()
    machine.boot(vllm, flashinfer)
    for name in ("vllm.engine.arg_utils", "vllm.model_executor.model_loader.utils"):
        importlib.import_module(name)
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda function: function()  # another process would not have the made-up machine
    questions = [json.loads(line) for line in sys.stdin]
    for name in sorted({name for question in questions for name in question["config"]["architectures"]}):
        with contextlib.suppress(Exception):
            registry.ModelRegistry.models[name].load_model_cls()  # once, and not in each fork
    Operator.present = True
    caches = cached_functions()
    gc.disable()  # a collection would copy the memory of the parent into each fork
    for question in questions:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            print(json.dumps({"id": question["id"], **answer(question, machine, caches)}), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))
