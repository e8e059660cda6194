"""Logs are untrusted: no input raises, takes more than linear time, or fills the memory."""

import codecs
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.engine_logs import HEALTHY_START, READY, engine_failure
from support.pasted import read_delivered, read_pasted
from vllm_operator.catalog.startup import load_signature_samples, load_startup
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Stage, StartupState
from vllm_operator.text.wording import present, redact

KNOWLEDGE = load_startup()
CORPUS = Path(__file__).parent.parent / "corpus" / "h200"
MEMORY_LIMIT = 256 * 1024
LINES = (HEALTHY_START + READY + engine_failure("RuntimeError: CUDA error: out of memory")).splitlines()
LINES += [sample.text for sample in load_signature_samples()] + [sample for line in KNOWLEDGE.stages.lines for sample in line.samples]
PIECES = st.one_of(
    st.sampled_from([line.encode() for line in LINES]),
    st.sampled_from(
        [b"\n", b"\r", b"\r\n", b"\x1b[0;36m", b"\x00", b"\xff\xfe", b"{", b'{"log": "x\\n"}', b'  File "x", line 1', b"    ", b"%|"]
    ),
    st.binary(max_size=200),
    st.text(max_size=200).map(str.encode),
)


def read(chunks: list[bytes]) -> tuple[StartupParser, StartupState]:
    """What a container wrote."""
    parser = read_delivered(*chunks)
    return parser, parser.final_state


def read_as_pasted(chunks: list[bytes]) -> tuple[StartupParser, StartupState]:
    parser = read_pasted(*chunks)
    return parser, parser.final_state


Reader = Callable[[list[bytes]], tuple[StartupParser, StartupState]]
READERS = pytest.mark.parametrize("read", [read, read_as_pasted])


@pytest.mark.parametrize("line", ["{} INFO hello", '{{"time": "{}", "level": "info", "msg": "hello"}}', "{} - vllm - INFO - hello"])
@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00", "9999-12-31T23:59:59Z", "1970-01-01T00:00:00Z"])
def test_a_time_at_the_edge_of_the_calendar_is_no_time(line: str, time: str) -> None:
    _, state = read([line.format(time).encode() + b"\n"])

    assert state.lines == 1
    assert state.last_line_at is None


@READERS
@given(chunks=st.lists(PIECES, max_size=60))
def test_no_input_raises(read: Reader, chunks: list[bytes]) -> None:
    parser, state = read(chunks)

    data = b"".join(chunks)
    is_wide = read is read_as_pasted and data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    written = data.decode("utf-16" if is_wide else "utf-8", "replace")
    assert state.lines >= written.count("\n")
    assert isinstance(parser.state.stage, Stage)
    if state.crash is not None:
        for text in (state.crash.line, state.crash.excerpt, state.crash.cause):
            assert len(text) <= 1300
            assert not any(character in text for character in "\x00\x1b\r")


@READERS
@example(prefix="    ", lines=['{"result": "Denied", "message": "HTTP 403", "seconds": 0.2}'], end="\n")
@given(
    prefix=st.one_of(
        st.sampled_from(
            ["> ", "    ", "│ ", "web.1: ", "vllm-7d9f6c5b4-x2k9p vllm ", "job\tstep\t2026-11-20T10:00:00Z ", "<14>1 - host - "]
        ),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), min_size=1, max_size=40),
    ),
    lines=st.lists(st.sampled_from([*LINES, "", " "]), min_size=1, max_size=40),
    end=st.sampled_from(["", "\n"]),
)
def test_no_input_behind_a_prefix_raises(read: Reader, prefix: str, lines: list[str], end: str) -> None:
    data = "\n".join(prefix + line for line in [*lines, ""]) + end  # nothing behind the last prefix

    _, state = read([data.encode()])

    assert state.lines >= data.count("\n")


@given(st.lists(PIECES, max_size=30), st.lists(st.integers(min_value=0, max_value=4000), max_size=8))
def test_where_a_stream_is_cut_makes_no_difference(pieces: list[bytes], cuts: list[int]) -> None:
    data = b"\n".join(piece.replace(b"\r", b"").replace(b"\x1b", b"") for piece in pieces) + b"\n"
    places = sorted({min(cut, len(data)) for cut in cuts})
    chunks = [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]

    assert read(chunks)[1] == read([data])[1]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_file_of_powershell_is_read(encoding: str) -> None:
    lines = engine_failure("RuntimeError: das Gerät ist schon in Benutzung 中文").splitlines()
    data = ("\n".join(lines) + "\n").encode(encoding)
    data = data if encoding == "utf-16" else codecs.BOM_UTF16_BE + data
    assert read_as_pasted([data])[1] == read_as_pasted(["\n".join(lines).encode() + b"\n"])[1]


@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=40))
def test_the_stage_never_goes_back_without_a_new_start(lines: list[str]) -> None:
    order = list(Stage)
    parser = StartupParser(KNOWLEDGE)
    before = parser.state.stage
    for line in lines:
        parser.feed(line + "\n")
        now = parser.state.stage
        assert order.index(now) >= order.index(before) or "version" in line or "Initializing" in line
        before = now


HOSTILE = {
    "one endless line": "x" * 100_000,
    "an endless bar": "\rDeepGEMM warmup:  12%|█▏        | 361/3000 [00:41<05:02,  8.73it/s]" * 2000,
    "only carriage returns": "\r" * 50_000,
    "only line ends": "\n" * 50_000,
    "exceptions without end": "ValueError: No available memory for the cache blocks.\n" * 800,
    "frames without end": '  File "x.py", line 1, in f\n    code()\n' * 2000,
    "parentheses": "(" * 50_000 + "\n",
    "JSON that is too deep": "{" * 50_000 + "\n",
    "digits": "1" * 50_000 + "%|" + "1" * 50_000 + "\n",
    "spaces": " " * 100_000 + "error: argument " + " " * 100_000 + "\n",
    "many processes": "".join(f"(Worker_TP{n} pid={n}) Traceback (most recent call last):\n" for n in range(3000)),
    "half a CRI record": "2026-11-21T09:21:01.7Z stderr P " + "y" * 1000 + "\n",
    "brackets": "[" * 50_000 + "]\n",
    "the same words": "cannot find No such file or directory: '" * 3000 + "\n",
    "wide characters": "\U0001f680" * 60_000,
    "wide errors": ("RuntimeError: " + "\U0001f680" * 3000 + "\n") * 50,
}


def seconds(text: str, read: Reader) -> float:
    data = text.encode()
    begun = time.process_time()
    read([data[start : start + 16384] for start in range(0, len(data), 16384)])
    return time.process_time() - begun


@READERS
@pytest.mark.parametrize("name", HOSTILE)
def test_time_grows_no_faster_than_the_log(name: str, read: Reader) -> None:
    for _ in range(3):  # one measurement may be unlucky, three are not
        once, fourfold = seconds(HOSTILE[name], read), seconds(HOSTILE[name] * 4, read)
        if fourfold < 10 * once + 0.1:  # a quadratic parser takes 16 times as long
            break
    else:
        pytest.fail(f"{once:.2f} s for the text, {fourfold:.2f} s for four of it")
    assert once < 5


def kept_of(chunks: list[bytes]) -> int:
    """Bytes that a parser still holds after a log."""
    tracemalloc.start()
    parser = StartupParser(KNOWLEDGE)
    before = tracemalloc.get_traced_memory()[0]
    for chunk in chunks:
        parser.feed(chunk)
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return kept


@pytest.mark.parametrize("name", HOSTILE)
def test_memory_is_bounded(name: str) -> None:
    chunks = [(HOSTILE[name] * 3).encode()[start : start + 16384] for start in range(0, len(HOSTILE[name].encode()) * 3, 16384)]
    read(chunks[:1])  # what is prepared once
    assert kept_of(chunks) <= MEMORY_LIMIT


def test_memory_is_bounded_on_every_kind_of_line() -> None:
    chunks = [(line + "\n").encode() * 2 for line in LINES] * 2
    read(chunks[: len(LINES)])  # what is prepared once
    assert kept_of(chunks) <= MEMORY_LIMIT


SECRETS = [
    "HF_TOKEN=hf_abcdefghijklmnopqrstuvwx",
    "token: hf_abcdefghijklmnopqrstuvwx",
    "Authorization: Bearer abcdef0123456789",
    "OPENAI_API_KEY='sk-proj-abcdefghijklmnop'",
    "https://user:secretword@example.org/path",
    "'api_key': ['secretword1']",
    "https://bucket.s3.amazonaws.com/x?X-Amz-Signature=0123456789abcdef&x=1",
    "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIbPxRfiCY",
    "password = secretword",
]


@pytest.mark.parametrize("text", SECRETS)
def test_secrets_are_not_shown(text: str) -> None:
    shown = redact(text)

    assert "***" in shown
    for secret in ("hf_abc", "abcdef0123456789", "sk-proj", "secretword", "0123456789abcdef", "wJalr"):
        assert secret not in shown


@pytest.mark.parametrize(
    "text",
    [
        "the maximum number of tokens that can be stored in KV cache (3664)",
        "max_num_batched_tokens=8192",
        "api_key=None",
        "User-specified max_model_len (512)",
        "KeyError: 'model.layers.0.weight'",
        "num_speculative_tokens:3 must be divisible by n_predict=2",
        "attn_output, num_tokens = self.full_graph_fia(query, key, value)",
        "hf_overrides must be a dict, hf_text_config and hf_quant_config_file are None",
    ],
)
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert redact(text) == text


def test_a_secret_in_a_crash_is_not_shown() -> None:
    crash = read([b"ValueError: cannot use token=hf_abcdefghijklmnopqrstuvwx: Failed to infer device type\n"])[1].crash

    assert crash is not None
    assert "hf_abc" not in crash.line + crash.excerpt


def test_what_is_shown_is_bounded_and_has_no_control_characters() -> None:
    assert present("a\x1b[31mb\x00c\u202ed" + "e" * 900, 100) == "ab c d" + "e" * 93 + "…"
