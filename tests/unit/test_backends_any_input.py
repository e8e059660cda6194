"""Whatever a user sets on the engine, choosing backends ends in a decision that fits the status."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from support.backends import decide, knowledge
from support.product import ARCHITECTURES, MODELS
from vllm_operator.catalog.backends import Invocation

VERSIONS, _, RULES = knowledge()
FLAGS = sorted(
    {way.flag for way in RULES.invocations if way.flag} | {"--enable-eplb", "--speculative-config", "--tensor-parallel-size", "-dp"}
)


def _variables(way: Invocation) -> set[str]:
    return {name for setting in way.settings.values() for name in setting.environment}


VARIABLES = sorted(set().union(*(_variables(way) for way in RULES.invocations)) | {"CUDA_VISIBLE_DEVICES", "PATH", "VLLM_PORT"})
VALUES = st.one_of(
    st.none(), st.sampled_from(["0", "1", "auto", "FLASHINFER", "fp8", "MIG-1", "mtp", "999999999999"]), st.text(max_size=300)
)
NAMES = st.from_regex(r"\A[A-Za-z][A-Za-z0-9_-]{0,63}\Z")


@given(
    uri=st.sampled_from(sorted(MODELS.values())),
    version=st.sampled_from([table.version for table in VERSIONS.tables] + ["0.10.0", "0.21.0", "1.0.0"]),
    architecture=st.sampled_from([None, "sm_999", *ARCHITECTURES]),
    arguments=st.dictionaries(st.sampled_from(FLAGS), VALUES, max_size=4),
    environment=st.dictionaries(st.sampled_from(VARIABLES), VALUES, max_size=4),
    backends=st.dictionaries(st.sampled_from(["attention", "mlaPrefill", "gemm", "moe", "allToAll", "sampler"]), NAMES, max_size=3),
    allow=st.booleans(),
)
def test_a_decision_is_reached_and_what_the_user_set_is_not_set_again(
    uri: str, version: str, architecture: str | None, arguments: Any, environment: Any, backends: Any, allow: bool
) -> None:
    engine = {
        "args": [{"name": name, "value": value} for name, value in arguments.items()],
        "env": [{"name": name, "value": value} for name, value in environment.items()],
    }
    decision = decide(uri, version, architecture, engine=engine, backends=backends, allow_unsupported=allow)
    assert {variable.name for variable in decision.env}.isdisjoint(environment)
    assert {argument.name for argument in decision.args}.isdisjoint(arguments)
    assert decision.refusal is None or decision.refusal
