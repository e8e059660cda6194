"""Measures the engine in the same Pod with a fixed load, before a rollout.

    MEASURE   JSON: `ready`, the engine's readiness probe; `model`, the name that the server serves; `load`, see `Load`

The prompts of the load are random token IDs, which no prefix cache knows. Each client sends the next request when the last one has ended.
The result goes to the termination message: for each number of clients the medians of the time to the first token and of the time for each
further token, in milliseconds, and the output tokens per second; the seconds from the start of the Pod's containers until the engine was
ready; the tokens that its KV cache holds; and digests of greedy answers, four characters of an answer by one digit.
"""

import hashlib
import http.client
import json
import os
import random
import re
import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from vllm_operator.tools.artifact import ArtifactError, connect, run_with_report, wait_for_engine

MEASURE_SECONDS = 900
TIMEOUT_SECONDS = 120.0
TOKEN_IDS = range(10, 250)
"""Token IDs of prompts. Every vocabulary has them."""
QUESTIONS = (
    "The capital of France is",
    "def fibonacci(n):",
    "Water boils at a temperature of",
    "The three primary colors are",
    "To be, or not to be,",
    "The sum of 17 and 25 is",
    "SELECT name FROM users WHERE",
    "In 1969, the first person on the Moon",
)
ANSWER_TOKENS, ANSWER_CHARACTERS, CHARACTERS_PER_DIGIT = 32, 96, 4
_KV_TOKENS = re.compile(r'^vllm:cache_config_info\{[^}]*?\bkv_cache_size_tokens="(\d+)"', re.MULTILINE)
"""vLLM 0.24 and later say it. The `block_size` of 0.20.1 is not that of the engine: it says 16 for FLASHMLA, which takes 64 (H200)."""


@dataclass(frozen=True)
class Load:
    """Tokens of each prompt and answer, the numbers of clients to measure one after the other, and seconds for each."""

    input_tokens: int
    output_tokens: int
    concurrency: tuple[int, ...]
    seconds: float


@dataclass
class Sample:
    """What the clients of one load have seen: seconds to the first, for each further and for all tokens of an answer, and a failure."""

    first: list[float] = field(default_factory=list)
    further: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    failure: ArtifactError | None = None


def main() -> int:
    """Measure the engine; return the exit status."""
    return run_with_report("MEASURE", measure, deadline=MEASURE_SECONDS, good=("Measured",))


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    """Wait for the engine and measure it. Raises ArtifactError if a request fails."""
    since = time.monotonic()
    wait_for_engine(settings, MEASURE_SECONDS)
    start = time.monotonic() - since
    load = Load(**{**settings["load"], "concurrency": tuple(settings["load"]["concurrency"])})
    engine = Engine(settings["ready"], settings["model"], os.environ.get("VLLM_API_KEY", ""))
    answers = "".join(digits(engine.answer(question)) for question in QUESTIONS)
    loads = [run_load(engine, load, clients) for clients in load.concurrency]
    return {"result": "Measured", "startSeconds": round(start, 1), "kvTokens": engine.kv_tokens(), "loads": loads, "answers": answers}


@dataclass(frozen=True)
class Engine:
    """The server in the same Pod."""

    probe: dict[str, Any]
    model: str
    key: str

    def answer(self, question: str) -> str:
        """Return the greedy answer."""
        connection = connect(self.probe, TIMEOUT_SECONDS)
        try:
            response = self.ask(connection, {"prompt": question, "max_tokens": ANSWER_TOKENS, "temperature": 0, "seed": 0})
            return str(json.loads(response.read())["choices"][0]["text"])
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
            raise ArtifactError("Failed", f"The engine gave no answer: {type(error).__name__}: {error}") from None
        finally:
            connection.close()

    def ask(self, connection: http.client.HTTPConnection, request: dict[str, Any]) -> http.client.HTTPResponse:
        """Send a request for a completion. Raises ArtifactError if the server refuses it."""
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {self.key}"} if self.key else {})}
        connection.request("POST", "/v1/completions", json.dumps({"model": self.model, **request}), headers)
        response = connection.getresponse()
        if response.status != 200:
            text = response.read(2000).decode("utf-8", "replace")
            reason = "Unsupported" if 400 <= response.status < 500 else "Failed"
            raise ArtifactError(reason, f"The server answered {response.status} to a request: {text[:400]}")
        return response

    def kv_tokens(self) -> int | None:
        """Return how many tokens the KV cache holds; None if the server does not say."""
        connection = connect(self.probe, TIMEOUT_SECONDS)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return sum(map(int, _KV_TOKENS.findall(text))) or None


def run_load(engine: Engine, load: Load, clients: int) -> dict[str, Any]:
    """Return the figures of the engine under the load of so many clients. Raises ArtifactError if a request fails."""
    warming, sample = Sample(), Sample()
    _run_clients(engine, load, clients, warming, end=0.0)  # one request of each client: kernels are compiled for this size
    if warming.failure is None:
        _run_clients(engine, load, clients, sample, end=time.monotonic() + load.seconds)
    if (failure := warming.failure or sample.failure) is not None:
        raise failure
    return {
        "clients": clients,
        "firstTokenMs": round(1000 * statistics.median(sample.first), 2),
        "tokenMs": round(1000 * statistics.median(sample.further), 3),
        "rate": round(clients * load.output_tokens / statistics.mean(sample.whole), 2),  # wherever the last answers are at the end
    }


def _run_clients(engine: Engine, load: Load, clients: int, sample: Sample, *, end: float) -> None:
    """Send requests until `end`, at least one for each client, and wait for all answers."""
    threads = [threading.Thread(target=_send_requests, args=(engine, load, sample, end, number), daemon=True) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # the signal of the deadline interrupts only short waits
            thread.join(1.0)


def _send_requests(engine: Engine, load: Load, sample: Sample, end: float, seed: int) -> None:
    chosen = random.Random(f"{seed} {end}")
    connection = connect(engine.probe, TIMEOUT_SECONDS)
    try:
        while sample.failure is None:
            prompt = chosen.choices(TOKEN_IDS, k=load.input_tokens)
            limits = {"max_tokens": load.output_tokens, "min_tokens": load.output_tokens, "ignore_eos": True, "temperature": 0}
            sent = time.monotonic()
            response = engine.ask(connection, {"prompt": prompt, "stream": True, **limits})
            times = _read_stream(response)
            sample.first.append(times[0] - sent)
            sample.further.append((times[-1] - times[0]) / max(1, load.output_tokens - 1))
            sample.whole.append(times[-1] - sent)
            if time.monotonic() >= end:
                return
    except ArtifactError as error:
        sample.failure = error
    except (OSError, http.client.HTTPException, ValueError) as error:
        sample.failure = ArtifactError("Failed", f"The engine broke off a request: {type(error).__name__}: {error}")
    finally:
        connection.close()


def _read_stream(response: http.client.HTTPResponse) -> list[float]:
    """Read an answer; return when each of its chunks came. Raises ArtifactError if there is none, or an error."""
    times: list[float] = []
    while line := response.readline(65536):
        if line.startswith(b'data: {"error"'):
            raise ArtifactError("Failed", f"The engine broke off a request: {line[6:400].decode('utf-8', 'replace')}")
        if line.startswith(b"data: {"):
            times.append(time.monotonic())
    if not times:
        raise ArtifactError("Failed", "The engine ended an answer without a token.")
    return times


def digits(answer: str) -> str:
    """Return a hexadecimal digit for each four characters of an answer, and of all before them: a difference changes all that follow."""
    text = answer[:ANSWER_CHARACTERS].ljust(ANSWER_CHARACTERS)
    ends = range(CHARACTERS_PER_DIGIT, ANSWER_CHARACTERS + 1, CHARACTERS_PER_DIGIT)
    return "".join(hashlib.sha256(text[:end].encode("utf-8", "replace")).hexdigest()[0] for end in ends)
