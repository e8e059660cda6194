"""`vllm-operator catalog signatures`: which crashes are known, for people and for programs."""

import json

import pytest

from vllm_operator.__main__ import kubectl_plugin, main
from vllm_operator.catalog.startup import load_startup
from vllm_operator.cli.catalog import Example, examples


def test_all_are_listed_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "signatures", "-o", "json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == [signature.id for signature in load_startup().signatures]


def test_one_is_shown_in_full_whatever_its_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "signatures", "maxmodellenexceedskvcache", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["severity"], found["automatic"]["changes"]) == ("fatal", ["--max-model-len"])
    assert "262144 tokens does not fit in the KV cache" in found["cause"]
    assert found["patterns"]


def test_an_unknown_name_is_an_error_that_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "signatures", "MaxModelLenExceed"]) == 2
    assert "Did you mean" in capsys.readouterr().err


@pytest.mark.parametrize("example", examples(load_startup().signatures), ids=lambda example: example.signature.id)
def test_no_text_shows_its_template(example: Example) -> None:
    assert "{{" not in example.cause + example.remedy
    assert "{%" not in example.cause + example.remedy


def test_the_kubectl_plugin_has_the_commands_for_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    assert kubectl_plugin(["catalog", "signatures", "NoKvCacheMemory"]) == 0
    with pytest.raises(SystemExit):
        kubectl_plugin(["--help"])
    said = capsys.readouterr().out
    assert "usage: kubectl vllm" in said
    assert all(f"\n    {command} " in said for command in ("diagnose", "prime", "plan"))
