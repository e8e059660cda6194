"""What vLLM's own sources raise and warn of during a start, by kind: some messages of each family, with plausible values.

Nobody has to have pasted a log for a message to be known by name. The rows of `corpus/messages.yaml` are facts of
the sources of the versions that they name; each is read at the end of the traceback in which the engine prints it.
"""

from pathlib import Path

import pytest
import yaml

from vllm_operator.catalog.startup import load_startup
from vllm_operator.logs.parser import StartupParser
from vllm_operator.logs.state import Crash

KNOWLEDGE = load_startup()
PACKAGES = "/usr/local/lib/python3.12/dist-packages/"
LIBRARIES = ("flashinfer/", "transformers/", "triton/")

CONFIGURATION = """\
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "/usr/local/bin/vllm", line 10, in <module>
(APIServer pid=7)     sys.exit(main())
(APIServer pid=7)   File "{path}", line 100, in __post_init__
(APIServer pid=7)     s.__pydantic_validator__.validate_python(ArgsKwargs(args, kwargs), self_instance=s)
(APIServer pid=7) pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig
(APIServer pid=7)   {kind}, {message} [type=value_error, input_value=ArgsKwargs((), {{'model': 'm'}}), input_type=ArgsKwargs]
(APIServer pid=7)     For further information visit https://errors.pydantic.dev/2.12/v/value_error
"""
API_SERVER = """\
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "/usr/local/bin/vllm", line 10, in <module>
(APIServer pid=7)     sys.exit(main())
(APIServer pid=7)   File "{path}", line 100, in make
(APIServer pid=7)     raise {exception}(
(APIServer pid=7) {exception}: {message}
"""
ENGINE_CORE = """\
(EngineCore pid=77) ERROR 11-21 09:33:11 [core.py:1136] EngineCore failed to start.
(EngineCore pid=77) ERROR 11-21 09:33:11 [core.py:1136] Traceback (most recent call last):
(EngineCore pid=77) ERROR 11-21 09:33:11 [core.py:1136]   File "{path}", line 100, in make
(EngineCore pid=77) ERROR 11-21 09:33:11 [core.py:1136]     raise {exception}(
(EngineCore pid=77) ERROR 11-21 09:33:11 [core.py:1136] {exception}: {message}
(EngineCore pid=77) Process EngineCore:
(EngineCore pid=77) Traceback (most recent call last):
(EngineCore pid=77)   File "/usr/lib/python3.12/multiprocessing/process.py", line 314, in _bootstrap
(EngineCore pid=77)     self.run()
(EngineCore pid=77)   File "{path}", line 100, in make
(EngineCore pid=77)     raise {exception}(
(EngineCore pid=77) {exception}: {message}
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "/usr/local/bin/vllm", line 10, in <module>
(APIServer pid=7)     sys.exit(main())
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
"""
API_SERVER_FILES = ("engine/", "entrypoints/", "config/", "transformers_utils/", "tokenizers/", "platforms/", "envs.py")

MESSAGES = yaml.safe_load((Path(__file__).parent.parent / "corpus" / "messages.yaml").read_text("utf-8"))
RAISED = [
    pytest.param(name, row["module"], row["text"], id=f"{name}-{row['module']}")
    for name, rows in MESSAGES["raised"].items()
    for row in rows
]
UNKNOWN = [pytest.param(row["module"], row["text"], id=row["module"]) for row in MESSAGES["unknown"]]
WARNINGS = [pytest.param(row["text"], id=row["module"]) for row in MESSAGES["warnings"]]


def crash_of(module: str, error: str) -> Crash:
    exception, _, message = error.partition(": ")
    form = API_SERVER if module.startswith(API_SERVER_FILES) else ENGINE_CORE
    if module.startswith("config/") and exception in ("ValueError", "AssertionError"):
        form = CONFIGURATION
    kind = "Assertion failed" if exception == "AssertionError" else "Value error"
    parser = StartupParser(KNOWLEDGE)
    parser.feed(
        form.format(
            path=PACKAGES + (module if module.startswith(LIBRARIES) else f"vllm/{module}"), exception=exception, message=message, kind=kind
        )
    )
    parser.end()
    crash = parser.final_state.crash
    assert crash is not None
    return crash


@pytest.mark.parametrize(("signature", "module", "error"), RAISED)
def test_a_message_of_the_sources_is_known_by_its_kind(signature: str, module: str, error: str) -> None:
    crash = crash_of(module, error)

    assert crash.signature == signature
    assert error.partition(": ")[2][:60] in crash.line
    assert crash.cause.endswith(".")
    assert ".." not in crash.cause


@pytest.mark.parametrize(("module", "error"), UNKNOWN)
def test_a_message_that_is_near_to_a_signature_is_not_taken_for_it(module: str, error: str) -> None:
    crash = crash_of(module, error)

    assert crash.signature == "Unknown"
    assert error.partition(": ")[2][:60] in crash.cause


@pytest.mark.parametrize("warning", WARNINGS)
def test_a_warning_is_no_alarm_and_is_not_blamed_for_what_comes_later(warning: str) -> None:
    parser = StartupParser(KNOWLEDGE)
    parser.feed(f"(EngineCore pid=77) WARNING 11-21 09:33:11 [some.py:1] {warning}\n")
    assert parser.state.crash is None

    parser.feed("(EngineCore pid=77) ERROR 11-21 09:33:12 [core.py:1136] EngineCore failed to start.\n")
    parser.end()
    assert parser.final_state.crash is not None
    assert parser.final_state.crash.signature == "EngineCoreInitFailed"


@pytest.mark.parametrize(
    ("module", "error"),
    [
        pytest.param("engine/arg_utils.py", "ValueError: --device-ids must not contain duplicates: 0,0", id="arguments"),
        pytest.param("config/cache.py", "NotImplementedError: Prefix caching is not supported with sliding window.", id="configuration"),
        pytest.param(
            "entrypoints/openai/cli_args.py", "TypeError: Error: --enable-log-outputs requires --enable-log-requests", id="command line"
        ),
    ],
)
def test_an_unknown_error_of_the_configuration_is_said_to_be_one(module: str, error: str) -> None:
    crash = crash_of(module, error)

    assert crash.signature == "Unknown"
    assert crash.cause.startswith("vLLM refused its configuration: ")
    assert error.rstrip(".") in crash.cause
