"""The five situations: what is applied, which recordings there are, and what must be seen in the end."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from demo.history import History

HERE = Path(__file__).parent
MANIFESTS = HERE / "manifests"
RECORDINGS = HERE.parent.parent / "tests" / "corpus" / "h200"
RECORDED_MODEL = "dsv3-fp8"  # in the path of the model whose starts were recorded
COLD = RECORDINGS / "dsv3-fp8-cold-full-newline-bars.log"
WARM = HERE / "recordings" / "dsv3-fp8-warm.log"
MIG_UUID = RECORDINGS / "mig-uuid.log"
NO_MEMORY = RECORDINGS / "gpu-util-too-low.log"
FEWEST_STAGES = 5
SLOWEST_WARM_START = 0.5
"""A warm start must take less than this share of the cold one. It took 8 % on an H200; the operator's and the simulated
kubelet's own seconds are not sped up, and weigh more here."""


@dataclass(frozen=True)
class Situation:
    """One VLLMDeployment of the demo."""

    name: str
    title: str
    manifest: Path
    check: Callable[[dict[str, History]], Iterator[str]]
    after: str | None = None
    """Is applied when this one has settled."""


def check_first_start(histories: dict[str, History]) -> Iterator[str]:
    """Compiled with visible progress, and serves."""
    seen = histories["deepseek"]
    yield from want_conditions(seen, Ready="True")
    yield from want("the chosen GPU", seen.status.get("gpu"), "NVIDIA-H200")
    if "H200" not in seen.status.get("plan", ""):
        yield f"the plan does not speak of H200: {seen.status.get('plan')!r}"
    if not seen.status.get("cache", {}).get("coldStartSeconds"):
        yield "the start was to be a cold one"
    # a stage of some seconds passes in a moment here, and a busy machine may not see it; these two take minutes
    yield from want_stages(seen, "KernelWarmup", "CUDAGraphCapture")
    if len(set(seen.stages)) < FEWEST_STAGES:
        yield f"at least {FEWEST_STAGES} stages were to be seen; seen: {', '.join(seen.stages)}"
    steps = seen.progress.get("KernelWarmup", [])
    if len(steps) < 4 or {total for _, total in steps} != {1735}:
        yield f"the compilation of 1735 kernels was to be seen in at least 4 steps; seen: {steps}"


def check_second_start(histories: dict[str, History]) -> Iterator[str]:
    """Shares the first one's cache, and was much faster."""
    first, seen = histories["deepseek"], histories["deepseek-again"]
    yield from want_conditions(seen, Ready="True")
    key, cache = first.status.get("cache", {}).get("key"), seen.status.get("cache", {})
    yield from want("the state of the cache", cache.get("state"), "Warm")
    yield from want("the key of the cache", cache.get("key"), key)
    if not cache.get("warmStartSeconds"):
        yield "the start was to be a warm one"
    if seen.elapsed(0) > SLOWEST_WARM_START * first.elapsed(0):
        yield f"the second start took {seen.elapsed(0):.1f} s, the first one {first.elapsed(0):.1f} s: that is not warm"


def check_crash(histories: dict[str, History]) -> Iterator[str]:
    seen = histories["tinyllama"]
    yield from want_conditions(seen, Crashed="True/MigUuidNotInteger", Ready="False")
    crash = seen.status.get("lastCrash", {})
    yield from want("the signature of the crash", crash.get("signature"), "MigUuidNotInteger")
    for text in ("excerpt", "command", "pod"):
        if not crash.get(text):
            yield f"lastCrash.{text} is empty"
    yield from want_words(seen, "Ready", "MigUuidNotInteger", "See condition Crashed")
    yield from want_words(seen, "Crashed", "What to do: Remove CUDA_VISIBLE_DEVICES")


def check_no_gpu(histories: dict[str, History]) -> Iterator[str]:
    seen = histories["llama"]
    yield from want_conditions(seen, Ready="False/NoMatchingGPU")
    yield from want_words(seen, "Ready", "sm_103", "sm_90", "sm_100", "sm_120", "sm_121", "accelerator.architectures")
    if seen.stages:
        yield f"nothing was to be started, but these stages were seen: {', '.join(seen.stages)}"


def check_upgrade(histories: dict[str, History]) -> Iterator[str]:
    seen = histories["mistral"]
    yield from want_conditions(seen, RolledBack="True/RevisionFailed", Ready="False/RolledBack", Available="True/Serving")
    yield from want_words(seen, "RolledBack", "went back to revision 1", "set --gpu-memory-utilization to 0.9")


SITUATIONS = (
    Situation("deepseek", "first start of an FP8 model on Hopper: compiles", MANIFESTS / "a-first-start.yaml", check_first_start),
    Situation("deepseek-again", "the same once more: warm caches", MANIFESTS / "b-second-start.yaml", check_second_start, "deepseek"),
    Situation("tinyllama", "a MIG UUID in CUDA_VISIBLE_DEVICES: crashes", MANIFESTS / "c-mig-uuid.yaml", check_crash),
    Situation("llama", "asks for a GPU that no node has", MANIFESTS / "d-no-gpu.yaml", check_no_gpu),
    Situation("mistral", "a model that serves", MANIFESTS / "e-served.yaml", lambda _: iter(()), "deepseek"),
    Situation("mistral", "its upgrade fails, and it comes back by itself", MANIFESTS / "f-upgrade.yaml", check_upgrade, "mistral"),
)
NAMES = tuple(dict.fromkeys(situation.name for situation in SITUATIONS))


def want(what: str, seen: object, wanted: object) -> Iterator[str]:
    if seen != wanted:
        yield f"{what} is {seen!r} and should be {wanted!r}"


def want_conditions(history: History, **wanted: str) -> Iterator[str]:
    """Complain about conditions that are not as wanted: a status, or a status and a reason."""
    for type, both in wanted.items():
        status, _, reason = both.partition("/")
        if not (seen := history.condition(type)):
            yield f"the condition {type} is not set"
            continue
        yield from want(f"the condition {type}", seen["status"], status)
        if reason:
            yield from want(f"the reason of {type}", seen["reason"], reason)


def want_words(history: History, type: str, *words: str) -> Iterator[str]:
    message = str(history.condition(type).get("message", ""))
    for word in words:
        if word not in message:
            yield f"the message of {type} does not speak of {word}: {message!r}"


def want_stages(history: History, *stages: str) -> Iterator[str]:
    """Complain if stages were not seen in this order, others in between allowed."""
    seen = iter(history.stages)
    for stage in stages:
        if stage not in seen:
            yield f"the stages {', '.join(stages)} were to be seen in this order; seen: {', '.join(history.stages)}"
            return


def failures(histories: dict[str, History]) -> list[str]:
    return [f"{situation.name}: {complaint}" for situation in SITUATIONS for complaint in situation.check(histories)]
