"""`vllm-operator catalog` lists what is known."""

import json

import pytest

from vllm_operator.__main__ import main


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [
        ("versions", "version", "0.20.1"),
        ("gpus", "architecture", "sm_121"),
        ("models", "family", "deepseek-v3.2"),
        ("rules", "id", "moe-nvfp4-workstation-latency"),
    ],
)
def test_each_list_holds_what_is_known_and_prints_it_both_ways(kind, column, value, capsys):
    assert main(["catalog", kind, "-o", "json"]) == 0
    assert value in {row[column] for row in json.loads(capsys.readouterr().out)}
    assert main(["catalog", kind]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert column.upper() in heading.split("   ")[0] or f" {column.upper()}" in heading
    assert any(value in line for line in lines)


def test_an_unknown_list_names_those_that_exist(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["catalog", "coffee"])
    assert stopped.value.code == 2
    assert "versions" in capsys.readouterr().err
