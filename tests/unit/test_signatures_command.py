"""`vllm-operator signatures`: what is known, for people and for programs."""

import json

import pytest

from vllm_operator.__main__ import kubectl_plugin, main
from vllm_operator.catalog.startup import load_startup
from vllm_operator.cli.catalog import Example, examples


def test_all_are_listed_one_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["signatures"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [signature.id for signature in load_startup().signatures]


def test_one_is_shown_in_full_whatever_its_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["signatures", "maxmodellenexceedskvcache"]) == 0
    page = capsys.readouterr().out
    assert "MaxModelLenExceedsKvCache (fatal)" in page
    assert "With spec.remediation.mode Auto: --max-model-len" in page
    assert "{{" not in page.split("Changes")[0]


def test_an_unknown_name_is_an_error_that_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["signatures", "MaxModelLenExceed"]) == 2
    assert "Did you mean" in capsys.readouterr().err


def test_programs_get_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["signatures", "-o", "json"]) == 0
    assert {one["name"] for one in json.loads(capsys.readouterr().out)} == {signature.id for signature in load_startup().signatures}
    assert main(["signatures", "NoKvCacheMemory", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["automatic"]["changes"] == ["--gpu-memory-utilization"]


@pytest.mark.parametrize("example", examples(load_startup().signatures), ids=lambda example: example.signature.id)
def test_no_text_shows_its_template(example: Example) -> None:
    assert "{{" not in example.cause + example.remedy
    assert "{%" not in example.cause + example.remedy


def test_the_kubectl_plugin_has_the_commands_for_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    assert kubectl_plugin(["signatures", "NoKvCacheMemory"]) == 0
    with pytest.raises(SystemExit):
        kubectl_plugin(["--help"])
    said = capsys.readouterr().out
    assert "usage: kubectl vllm" in said
    assert all(f"\n    {command} " in said for command in ("diagnose", "prime", "plan"))
