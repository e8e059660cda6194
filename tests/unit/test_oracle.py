"""The parts of hack/oracle that need no PyTorch: packages known by their text, and the table of answers."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from oracle.answers import Answer, attempt
from oracle.answers import answer as answer_of
from oracle.experts import SCHEMES, all_cases, canonical
from oracle.tables import expand, merge, write
from oracle.text_packages import TextPackages, names_of
from oracle.trees import find, merge_trees

SOURCE = """
import os
from typing import Any as Anything
if True:
    from there import here
try:
    LIMIT: int = 1
except ImportError:
    LIMIT = first = 2
def run(): pass
class Wrapper: pass
"""


def test_the_names_of_a_module_are_those_that_it_defines_or_imports() -> None:
    assert names_of(SOURCE) == {"os", "Anything", "here", "LIMIT", "first", "run", "Wrapper"}


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "textual_kernels/deep").mkdir(parents=True)
    (tmp_path / "textual_kernels/__init__.py").write_text("raise RuntimeError('it runs')\ndef attend(): pass\n")
    (tmp_path / "textual_kernels/deep/__init__.py").write_text("")
    (tmp_path / "textual_kernels/deep/gemm.py").write_text("class Wrapper: pass\n")
    finder = TextPackages(tmp_path, "textual_kernels", ["textual_extension"])
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


@pytest.mark.usefixtures("kernels")
def test_a_package_known_by_its_text_has_its_names_and_does_not_run() -> None:
    package = importlib.import_module("textual_kernels")
    assert hasattr(package, "attend")
    assert not hasattr(package, "detach")
    assert isinstance(importlib.import_module("textual_kernels.deep.gemm").Wrapper, type)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", ["textual_kernels.absent", "textual_other"])
def test_a_module_without_text_is_not_there(name: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)


@pytest.mark.usefixtures("kernels")
def test_an_extension_has_every_name() -> None:
    assert callable(importlib.import_module("textual_extension").anything)


def answer(takes: str | None = "FLASH_ATTN", **refuses: str) -> dict[str, Any]:
    return {"takes": takes, "accepts": ["FLASH_ATTN"], "refuses": refuses}


def test_equal_answers_are_written_once_and_read_back(tmp_path: Path) -> None:
    found = {version: {"sm_90": {"Dense/128/auto": answer(FLASHMLA="too old")}} for version in ("0.9.0", "0.20.1", "0.20.2")}
    table = merge(found)
    assert [len(table[part]) for part in ("reasons", "answers", "cases")] == [1, 1, 1]
    write(table, tmp_path / "table.json")
    assert expand(json.loads((tmp_path / "table.json").read_text())) == found
    assert list(table["versions"]) == ["0.9.0", "0.20.1", "0.20.2"]


def test_a_table_keeps_what_is_ignored_and_why_the_default_raises(tmp_path: Path) -> None:
    dense: dict[str, Any] = {"takes": None, "accepts": [], "refuses": {}, "ignores": {"CUTLASS": "TRITON"}, "raises": "too old"}
    found = {"0.20.1": {"sm_80": {"FP8/modelopt": dense}}}
    write(merge(found), tmp_path / "table.json")
    assert expand(json.loads((tmp_path / "table.json").read_text())) == found


def test_an_error_of_the_made_up_machine_is_no_reason_of_vllm() -> None:
    answers: dict[str, Any] = {
        "takes": None,
        "accepts": [],
        "refuses": {},
        "ignores": {},
        "raises": "NotImplementedError: which kernel it took is not known",
    }
    [compact] = merge({"0.20.1": {"sm_80": {"INT4/gptq": answers}}})["answers"]
    assert "raises" not in compact


@pytest.mark.parametrize(
    "reason", ["ImportError", "AttributeError: no rotary_embedding", "FA4 cute-DSL entry point failed to import", "x was built without y"]
)
def test_what_comes_from_the_made_up_machine_is_no_answer(reason: str) -> None:
    [compact] = merge({"0.20.1": {"sm_90": {"Dense/128/auto": answer(FLASHINFER=reason, FLASHMLA="too old")}}})["answers"]
    assert compact == {"takes": None, "accepts": ["FLASH_ATTN"], "refuses": {"FLASHMLA": 0}}


def experts(takes: str | None = "TRITON", **given: Any) -> dict[str, Any]:
    return {"takes": takes, "accepts": [], "refuses": {}, "ignores": {}, "raises": None} | given


def test_a_pin_is_followed_refused_or_silently_replaced() -> None:
    def fail() -> str:
        raise ValueError("too old")

    pins = {"MARLIN": attempt(lambda: "MARLIN", str), "CUTLASS": attempt(lambda: "TRITON", str), "DEEPGEMM": attempt(fail, str)}
    found = answer_of(attempt(lambda: "TRITON", str), pins)
    assert found == Answer("TRITON", ("MARLIN",), {"DEEPGEMM": "too old"}, {"CUTLASS": "TRITON"})
    assert answer_of(attempt(fail, str), {}) == Answer(None, raises="too old")


MODELS = ("DeepSeekV3", "Renormalize", "Llama4")


def tree(**special: dict[str, Any]) -> dict[str, Any]:
    """The answers on one architecture; `special` has those of models that differ."""
    return {f"FP8/Unset/{layout}/{model}": special.get(model, experts()) for layout in ("Tensor", "Expert") for model in MODELS}


def test_equal_branches_of_a_tree_are_written_once_and_read_back(tmp_path: Path) -> None:
    found = {version: {"sm_90": tree(), "sm_100": tree(Llama4=experts("MARLIN"))} for version in ("0.9.0", "0.20.1")}
    table = merge_trees(found)
    assert table["versions"]["0.9.0"] == table["versions"]["0.20.1"]
    assert {"*": 0} in table["trees"]
    write(table, tmp_path / "table.json")
    read = json.loads((tmp_path / "table.json").read_text())
    assert find(read, "0.20.1", "sm_100", "FP8/Unset/Expert/Llama4") == experts("MARLIN")
    assert find(read, "0.20.1", "sm_100", "FP8/Unset/Expert/Renormalize") == experts()
    assert find(read, "0.20.1", "sm_100", "BF16/Unset/Expert/Renormalize") is None


def test_a_version_that_is_added_or_repeated_leaves_the_others_as_they_are() -> None:
    first, second = {"0.20.1": {"sm_90": tree()}}, {"0.33.0": {"sm_90": tree(Llama4=experts(None, raises="none fits"))}}
    both = merge_trees(first | second)
    assert merge_trees(second, merge_trees(first)) == both
    assert merge_trees(first, both) == both
    assert find(both, "0.33.0", "sm_90", "FP8/Unset/Tensor/Llama4") == experts(None, raises="none fits")


def test_pins_are_grouped_and_errors_of_the_made_up_machine_left_out() -> None:
    answer = experts(None, refuses={"MARLIN": "too old", "B12X": "too old", "HPC": "ImportError: hpc"}, raises="KeyError: x")
    table = merge_trees({"0.20.1": {"sm_90": tree(Llama4=answer)}})
    assert {"refuses": [[0, ["B12X", "MARLIN"]]]} in table["answers"]
    assert find(table, "0.20.1", "sm_90", "FP8/Unset/Tensor/Llama4") == experts(None, refuses={"MARLIN": "too old", "B12X": "too old"})


@pytest.mark.parametrize(
    ("named", "backend"),
    [
        ("BATCHED_TRITON", "TRITON"),
        ("FLASHINFER_TRTLLM_MXFP4_BF16", "FLASHINFER_TRTLLM"),
        ("DEEPGEMM_MXFP4", "DEEPGEMM"),
        ("TRITON_UNFUSED", "TRITON"),
        ("FLASHINFER_CUTEDSL_BATCHED", "FLASHINFER_CUTEDSL"),
        ("B12X_MXFP4", "B12X"),
    ],
)
def test_variants_of_a_backend_have_its_name(named: str, backend: str) -> None:
    assert canonical(named) == backend


def test_every_case_has_a_path_of_its_own() -> None:
    names = [case.name for case in all_cases(("Tensor", "Expert"))]
    assert len(names) == len(set(names))
    assert {name.partition("/")[0] for name in names} == {scheme.name for scheme in SCHEMES}
    assert {name.count("/") for name in names} == {3}
