"""Flags as words of a command line, with several values, abbreviated, and flags that a version does not have."""

from typing import Any

import pytest

from support.gpus import real_node
from support.plans import deployment, made, refusal
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import EngineSpec
from vllm_operator.api.status import RemedyChange
from vllm_operator.catalog.versions import load_versions
from vllm_operator.planning.engine.overrides import subject_of
from vllm_operator.rendering.pod import render_pod_template
from vllm_operator.sizing.engine import read_flags
from vllm_operator.status.remedies import patch_operations


def command_of(resource: VLLMDeployment) -> list[str]:
    plan = made(resource, real_node("h200"))
    args: list[str] = render_pod_template(resource, plan)["spec"]["containers"][0]["args"]
    return args


def with_flags(*args: dict[str, Any]) -> VLLMDeployment:
    return deployment(engine={"version": "0.20.1", "args": list(args)})


def test_flags_of_the_user_reach_the_engine_after_those_of_the_plan() -> None:
    flags = {"name": "seed", "value": "7"}, {"name": "enforce-eager"}
    assert command_of(with_flags(*flags))[-3:] == ["--seed", "7", "--enforce-eager"]


def with_words(*words: str, **engine: Any) -> VLLMDeployment:
    return deployment(engine={"version": "0.20.1", "extraArgs": list(words), **engine})


@pytest.mark.parametrize(
    ("words", "want"),
    [
        (["--seed", "7"], [("--seed", "7", None)]),
        (["--seed=7"], [("--seed", "7", None)]),
        (["--seed", "-1"], [("--seed", "-1", None)]),
        (["--seed=7", "--seed=8"], [("--seed", "8", None)]),
        (["--enforce-eager", "--seed", "7"], [("--enforce-eager", None, None), ("--seed", "7", None)]),
        (["--cudagraph-capture-sizes", "1", "2", "4"], [("--cudagraph-capture-sizes", None, ["1", "2", "4"])]),
        (["--compilation-config", '{"mode": 3}'], [("--compilation-config", '{"mode": 3}', None)]),
        (["--compilation-config.mode=3"], [("--compilation-config.mode", "3", None)]),
        (["--chat-template", ""], [("--chat-template", "", None)]),
        (["-q", "fp8"], [("-q", "fp8", None)]),
        (["serve", "a/b", "--seed", "7"], [("--seed", "7", None)]),
        ([], []),
    ],
    ids=lambda value: " ".join(value) if value and isinstance(value[0], str) else "",
)
def test_words_are_read_as_argparse_reads_them(words: list[str], want: list[tuple[str, str | None, list[str] | None]]) -> None:
    arguments = EngineSpec.model_construct(extra_args=words).flags
    assert [(argument.name, argument.value, argument.values) for argument in arguments] == want


def test_words_reach_the_engine_and_entries_override_them() -> None:
    words = with_words("--seed", "7", "--max_num_seqs=8", "--enforce-eager", args=[{"name": "max-num-seqs", "value": "64"}])
    assert command_of(words)[-5:] == ["--seed", "7", "--enforce-eager", "--max-num-seqs", "64"]


def test_words_override_the_plan_as_entries_do() -> None:
    entries = deployment(engine={"version": "0.20.1", "args": [{"name": "shutdown-timeout", "value": "300"}]})
    words = with_words("--shutdown-timeout", "300")
    assert command_of(words) == command_of(entries)
    assert render_pod_template(words, made(words, real_node("h200")))["spec"]["terminationGracePeriodSeconds"] == 320


def test_a_word_that_the_version_does_not_know_is_refused() -> None:
    reason, message = refusal(with_words("--max-model-length", "8192"), real_node("h200"))
    assert reason == "Unsupported"
    assert "Did you mean --max-model-len?" in message


def test_a_remedy_takes_flags_out_of_the_words_and_sets_them_as_entries() -> None:
    resource = with_words("--seed", "7", "--max-model-len=32768", "--enforce-eager")
    changes = [
        RemedyChange(kind="Argument", action="Remove", name="--seed"),
        RemedyChange(kind="Argument", action="Set", name="--max-model-len", value="8192"),
    ]
    path = "/spec/engine/extraArgs"
    assert patch_operations(resource, changes) == [
        {"op": "test", "path": path, "value": ["--seed", "7", "--max-model-len=32768", "--enforce-eager"]},
        {"op": "replace", "path": path, "value": ["--enforce-eager"]},
        {"op": "test", "path": "/spec/engine/args", "value": None},
        {"op": "add", "path": "/spec/engine/args", "value": [{"name": "--max-model-len", "value": "8192"}]},
    ]


def test_several_values_follow_their_flag() -> None:
    sizes = {"name": "cudagraph-capture-sizes", "values": ["1", "2", "4"]}
    assert command_of(with_flags(sizes))[-4:] == ["--cudagraph-capture-sizes", "1", "2", "4"]


def test_a_flag_that_the_version_does_not_know_is_refused() -> None:
    reason, message = refusal(with_flags({"name": "max-model-length", "value": "8192"}), real_node("h200"))
    assert reason == "Unsupported"
    assert "Did you mean --max-model-len?" in message


@pytest.mark.parametrize("name", ["kv-cache-memory", "kv_cache_memory", "--kv-cache-memory"])
def test_an_abbreviation_counts_as_the_flag(name: str) -> None:
    version = load_versions().resolve("0.30.0").table
    assert version
    assert version.full_flag(name) == "--kv-cache-memory-bytes"
    size = str(8 << 30)
    plans = [
        made(deployment("hf://Qwen/Qwen3-8B", engine={"version": "0.30.0", "args": [{"name": each, "value": size}]}), real_node("h200"))
        for each in (name.lstrip("-"), "kv-cache-memory-bytes")
    ]
    assert plans[0].memory == plans[1].memory
    assert plans[0].notes == plans[1].notes


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--kv-cache", "--kv-cache"),  # of several flags
        ("--seed", "--seed"),  # a flag, and the beginning of none
        ("--no-enable-prefix-cach", "--no-enable-prefix-caching"),
        ("--compilation-conf.mode", "--compilation-config.mode"),
        ("--of-nothing", "--of-nothing"),
        ("-tp", "-tp"),
    ],
)
def test_only_an_unambiguous_abbreviation_stands_for_a_flag(flag: str, meant: str) -> None:
    assert load_versions().newest.full_flag(flag) == meant


def test_an_abbreviation_of_a_flag_that_has_a_field_is_refused() -> None:
    engine = {"version": "0.33.0", "args": [{"name": "tensor-parallel", "value": "2"}]}
    reason, message = refusal(deployment("hf://Qwen/Qwen3-8B", engine=engine), real_node("h200"))
    assert reason == "InvalidSpec"
    assert "--tensor-parallel, which is short for --tensor-parallel-size; use parallelism.tensor" in message


def test_the_opposite_of_a_flag_is_known_since_the_parser_pairs_them() -> None:
    def with_opposite(version: str) -> VLLMDeployment:
        return deployment(engine={"version": version, "args": [{"name": "disable-prefix-caching"}]})

    assert "does not know the flag --disable-prefix-caching" in refusal(with_opposite("0.32.0"), real_node("h200"))[1]
    assert not any("--disable-prefix-caching" in note for note in made(with_opposite("0.33.0"), real_node("h200")).notes)
    assert read_flags({"--disable-prefix-caching": None}) == read_flags({"--no-enable-prefix-caching": None})


@pytest.mark.parametrize("flag", ["--enable-expert-parallel", "--no-enable-expert-parallel", "--disable-expert-parallel"])
def test_each_spelling_of_a_switch_sets_the_same_option(flag: str) -> None:
    assert subject_of(flag) == subject_of("enable_expert_parallel") != subject_of("--expert-placement-strategy")
