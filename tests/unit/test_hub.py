"""The model hub over HTTP: what is read, what is refused, and where a token goes. The server is on loopback."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from vllm_operator.hub.client import SIZE_LIMIT, HttpHub, slim

TOKEN = "hf_secret_token"
CONFIG = {"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 8, "quantization_config": {"quant_method": "fp8"}}


class Server:
    """Answers by path; `seen` are paths with the Authorization header."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.seen: list[tuple[str, str | None]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.raw_path, request.headers.get("Authorization")))
        answer = self.answers.get(request.raw_path, 404)
        if request.method == "HEAD" and isinstance(answer, dict):
            return web.Response(status=302, headers={"Location": "/elsewhere", "X-Linked-Size": str(answer["size"])})
        if isinstance(answer, int):
            return web.Response(status=answer)
        if isinstance(answer, web.Response):
            return answer
        if isinstance(answer, str):
            return web.Response(status=307, headers={"Location": answer})
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            return web.Response()
        return web.Response(body=answer if isinstance(answer, bytes) else json.dumps(answer).encode())


async def started(server: Server) -> web.AppRunner:
    app = web.Application()
    app.router.add_get("/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    return runner


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    runner = await started(server)
    yield server
    await runner.cleanup()


@pytest.fixture
async def elsewhere() -> AsyncIterator[Server]:
    server = Server()
    runner = await started(server)
    yield server
    await runner.cleanup()


@pytest.fixture
async def hub(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpHub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    hub = HttpHub(f"{server.url}/")
    yield hub
    await hub.close()


async def test_the_file_of_the_revision_is_read(server: Server, hub: HttpHub) -> None:
    server.answers["/org/model/resolve/refs%2Fpr%2F1/config.json"] = CONFIG
    answer = await hub.read("org/model", "refs/pr/1", None)
    assert (answer.config, answer.trouble) == (CONFIG, None)
    assert server.seen[0] == ("/org/model/resolve/refs%2Fpr%2F1/config.json", None)
    assert all(path.startswith("/org/model/resolve/refs%2Fpr%2F1/") for path, _ in server.seen)


async def test_a_quantization_beside_the_config_is_added(server: Server, hub: HttpHub) -> None:
    plain = {name: value for name, value in CONFIG.items() if name != "quantization_config"}
    server.answers["/org/model/resolve/main/config.json"] = plain
    server.answers["/org/model/resolve/main/hf_quant_config.json"] = {"quantization": {"quant_algo": "NVFP4"}}
    answer = await hub.read("org/model", "main", None)
    assert answer.config == {**plain, "quantization_config": {"quantization": {"quant_algo": "NVFP4"}}}


async def test_a_token_goes_to_the_hub_only(server: Server, elsewhere: Server, hub: HttpHub) -> None:
    server.answers["/org/model/resolve/main/config.json"] = f"{elsewhere.url}/file"
    elsewhere.answers["/file"] = CONFIG
    assert (await hub.read("org/model", "main", TOKEN)).config == CONFIG
    assert server.seen[0] == ("/org/model/resolve/main/config.json", f"Bearer {TOKEN}")
    assert elsewhere.seen == [("/file", None)]


INDEX = "/org/model/resolve/main/model.safetensors.index.json"


@pytest.mark.parametrize(
    ("index", "size"),
    [
        (b'{"metadata": {"total_size": 688586727753}, "weight_map": {' + b'"a": "b",' * 10**6, 688586727753),
        (b'{\n  "metadata": {\n    "total_parameters": 7,\n    "total_size": 1371.0\n  },', 1371),
        (b'{"weight_map": {}}', None),
        (b'{"metadata": {"total_size": "many"}}', None),
        (b"\xff", None),
        (503, None),
    ],
    ids=["a large model", "as a float", "no sum", "no number", "no text", "an error"],
)
async def test_the_size_of_the_weights_is_in_the_first_lines_of_their_index(server: Server, hub: HttpHub, index: Any, size: int) -> None:
    server.answers |= {"/org/model/resolve/main/config.json": CONFIG, INDEX: index}
    answer = await hub.read("org/model", "main", TOKEN)
    assert (answer.config, answer.weight_bytes, answer.trouble) == (CONFIG, size, None)


async def test_the_size_of_a_single_file_is_reported_with_its_address(server: Server, hub: HttpHub) -> None:
    file = "/org/model/resolve/main/model.safetensors"
    server.answers |= {"/org/model/resolve/main/config.json": CONFIG, file: {"size": 2200119864}}
    assert (await hub.read("org/model", "main", None)).weight_bytes == 2200119864
    assert (file, None) in server.seen


async def test_an_index_that_never_comes_does_not_cost_the_config(server: Server, hub: HttpHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_operator.hub.client.WEIGHTS_SECONDS", 0.05)
    server.answers |= {"/org/model/resolve/main/config.json": CONFIG, INDEX: asyncio.Event()}
    answer = await hub.read("org/model", "main", None)
    assert (answer.config, answer.weight_bytes) == (CONFIG, None)


async def test_a_redirection_within_the_hub_keeps_the_token(server: Server, hub: HttpHub) -> None:
    server.answers["/org/model/resolve/main/config.json"] = "/api/cache/config.json"
    server.answers["/api/cache/config.json"] = CONFIG
    assert (await hub.read("org/model", "main", TOKEN)).config == CONFIG
    assert server.seen[1] == ("/api/cache/config.json", f"Bearer {TOKEN}")


@pytest.mark.parametrize(
    ("answer", "said", "failed"),
    [
        (404, "there is no such model, revision or file", False),
        (401, "the token is not accepted", False),
        (503, "HTTP status 503", True),
        (b"{" * 100_000, "is not JSON", False),
        (b"[" * 100_000, "is not JSON", False),
        (b"\xff\xfe", "is not JSON", False),
        (b"[1]", "is not a JSON object", False),
        (b" " * (SIZE_LIMIT + 1), "is larger than 2 MiB", False),
        ("ftp://127.0.0.1/x", "redirects to a URL that is not followed", False),
        ("/org/model/resolve/main/config.json", "too many redirects", False),
        ("", "redirects to a URL", False),
    ],
)
async def test_what_cannot_be_used_is_said_without_the_token(server: Server, hub: HttpHub, answer: Any, said: str, failed: bool) -> None:
    server.answers["/org/model/resolve/main/config.json"] = answer
    found = await hub.read("org/model", "main", TOKEN)
    assert found.config is None
    assert said in (found.trouble or "")
    assert (found.failed, found.unreachable) == (failed, False)
    assert found.refused is (answer in (401, 404))
    assert TOKEN not in repr(found)


async def test_an_answer_that_cannot_be_unpacked_says_nothing_of_the_hub(server: Server, hub: HttpHub) -> None:
    headers = {"Content-Encoding": "gzip"}
    server.answers["/org/model/resolve/main/config.json"] = web.Response(body=b"no gzip", headers=headers)
    found = await hub.read("org/model", "main", None)
    assert "cannot be read" in str(found.trouble)
    assert not found.failed


async def test_a_gated_model_without_a_token_says_what_to_do(server: Server, hub: HttpHub) -> None:
    server.answers["/org/model/resolve/main/config.json"] = 401
    assert "name its Secret in spec.model.tokenSecretRef" in str((await hub.read("org/model", "main", None)).trouble)


async def test_nobody_listening_is_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Server()
    runner = await started(server)
    await runner.cleanup()
    hub = HttpHub(server.url)
    found = await hub.read("org/model", "main", None)
    await hub.close()
    assert found.unreachable
    assert "cannot be read" in str(found.trouble)


@pytest.mark.parametrize("repository", ["../model", "org/.."])
async def test_a_name_never_leaves_its_place(server: Server, hub: HttpHub, repository: str) -> None:
    assert "is not the name of a model" in str((await hub.read(repository, "main", None)).trouble)
    assert server.seen == []


def test_what_is_no_fact_is_not_kept() -> None:
    deep: Any = "bottom"
    for _ in range(50):
        deep = {"down": deep}
    kept = slim({"a": 1, "ignore": ["layer"] * 1000, "note": "x" * 9999, "deep": deep, "layer_types": ["full_attention"] * 100})
    assert (kept["a"], kept["ignore"], len(kept["note"]), len(kept["layer_types"])) == (1, [], 256, 100)
    assert "bottom" not in repr(kept)


HEADER = json.dumps({"model.layers.0.mlp.experts.0.up_proj.weight": {"dtype": "U8", "data_offsets": [0, 64]}}).encode()
FILE = len(HEADER).to_bytes(8, "little") + HEADER + bytes(64)
TWO_FILES = b'{"metadata": {"total_size": 128}, "weight_map": {"a": "model-00001-of-00002.safetensors"}}'


def named(number: int) -> str:
    return f"/org/model/resolve/main/model-{number:05}-of-00002.safetensors"


async def test_the_headers_of_quantized_weights_are_read(server: Server, hub: HttpHub, elsewhere: Server) -> None:
    server.answers |= {"/org/model/resolve/main/config.json": CONFIG, INDEX: TWO_FILES, named(1): FILE, named(2): f"{elsewhere.url}/two"}
    elsewhere.answers["/two"] = FILE
    answer = await hub.read("org/model", "main", TOKEN)
    assert answer.tensors is not None
    assert answer.tensors == {("experts", 0): 128}
    assert ("/two", None) in elsewhere.seen
    assert (named(1), f"Bearer {TOKEN}") in server.seen


async def test_the_header_of_a_single_file_is_read(server: Server, hub: HttpHub) -> None:
    server.answers |= {"/org/model/resolve/main/config.json": CONFIG, "/org/model/resolve/main/model.safetensors": FILE}
    answer = await hub.read("org/model", "main", None)
    assert answer.tensors is not None
    assert answer.tensors.total() == 64


async def test_no_header_is_read_of_weights_that_are_not_quantized(server: Server, hub: HttpHub) -> None:
    server.answers |= {"/org/model/resolve/main/config.json": {"model_type": "llama"}, INDEX: TWO_FILES, named(1): FILE, named(2): FILE}
    assert (await hub.read("org/model", "main", None)).tensors is None
    assert named(1) not in [path for path, _ in server.seen]


@pytest.mark.parametrize(
    "second",
    [404, 500, b"", b"\xff" * 8 + bytes(100), (5).to_bytes(8, "little") + b"[1,2]", (900).to_bytes(8, "little") + HEADER, "ftp://x/"],
    ids=["missing", "an error", "empty", "an impossible length", "no object", "cut off", "redirected to another scheme"],
)
async def test_a_file_without_a_header_costs_the_sizes_only(server: Server, hub: HttpHub, second: Any) -> None:
    server.answers |= {"/org/model/resolve/main/config.json": CONFIG, INDEX: TWO_FILES, named(1): FILE, named(2): second}
    answer = await hub.read("org/model", "main", None)
    assert (answer.config, answer.weight_bytes, answer.tensors, answer.trouble) == (CONFIG, 128, None, None)


async def test_headers_that_never_come_do_not_cost_the_config(server: Server, hub: HttpHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_operator.hub.client.HEADERS_SECONDS", 0.2)
    server.answers |= {"/org/model/resolve/main/config.json": CONFIG, INDEX: TWO_FILES, named(1): FILE, named(2): asyncio.Event()}
    answer = await hub.read("org/model", "main", None)
    assert (answer.config, answer.weight_bytes, answer.tensors) == (CONFIG, 128, None)


async def test_a_checkpoint_with_many_files_is_not_read_file_by_file(server: Server, hub: HttpHub) -> None:
    many = TWO_FILES.replace(b"00002", b"00163")
    server.answers |= {"/org/model/resolve/main/config.json": CONFIG, INDEX: many}
    assert (await hub.read("org/model", "main", None)).tensors is None
    assert not [path for path, _ in server.seen if "00163" in path]


def test_a_long_list_of_layers_that_are_not_quantized_is_kept() -> None:
    names = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(2000)]
    quantized = {name: {"quant_algo": "FP8"} for name in names}
    kept = slim({"quantization_config": {"ignore": names, "quantized_layers": quantized}, "other": names})
    assert (kept["quantization_config"]["ignore"], kept["other"]) == (names, [])
    assert len(kept["quantization_config"]["quantized_layers"]) == 2000
    assert slim({"quantization_config": {"ignore": ["a"] * 30_000}}) == {"quantization_config": {"ignore": []}}
