"""The page about what changed between two releases of vLLM."""

from typing import Any

import pytest

from oracle.finding import ARCHITECTURES
from oracle.tables import merge
from oracle.trees import merge_trees
from release_differences import NOTE, TARGET, neighbor, page, rows_of
from vllm_operator.catalog.versions import load_versions


def test_the_page_about_the_newest_release_is_current() -> None:
    newest = load_versions().newest.version
    assert TARGET.read_text("utf-8") == NOTE + page(newest, neighbor(newest)), "run `make generate` and commit release-differences.md"


@pytest.mark.parametrize(
    ("version", "since"), [("0.33.0", "0.32.0"), ("0.20.0", "0.19.1"), ("0.20.1", "0.20.0"), ("0.12.0", "0.11.2"), ("0.11.0", "0.11.1")]
)
def test_the_neighbor_is_the_release_before_it(version: str, since: str) -> None:
    assert neighbor(version) == since


def test_a_release_that_the_catalog_does_not_have_is_to_be_ingested() -> None:
    with pytest.raises(SystemExit, match=r"make ingest RELEASE=0\.99\.0"):
        neighbor("0.99.0")


def test_a_page_has_the_new_flags_and_the_defaults_that_changed() -> None:
    text = page("0.33.0", "0.32.0")
    assert "# What changed in vLLM 0.33.0" in text
    assert "| Flags | `--monokernel`, " in text
    assert "| layer | GPU | 0.32.0 | 0.33.0 |" in text


def test_a_page_says_for_which_releases_there_are_no_answers() -> None:
    assert "There are no answers for 0.21.0" in page("0.22.0", "0.21.0")


def dense(takes: str | None = "CUTLASS", **given: Any) -> dict[str, Any]:
    return {"takes": takes, "accepts": ["CUTLASS"], "refuses": {"MARLIN": "too new"}, "ignores": {}, "raises": None} | given


def everywhere(cases: dict[str, Any], **special: dict[str, Any]) -> dict[str, Any]:
    return {architecture: special.get(architecture, cases) for architecture in ARCHITECTURES}


def test_layers_and_gpus_with_the_same_change_share_a_row() -> None:
    before = everywhere({"FP8/tensor": dense(), "FP8/token": dense(), "INT8": dense()})
    old_gpu = {"FP8/tensor": dense(), "FP8/token": dense(), "INT8": dense(None, raises="too old")}
    after = everywhere({"FP8/tensor": dense("TRITON"), "FP8/token": dense("TRITON"), "INT8": dense()}, sm_75=old_gpu)
    defaults, pins = rows_of("gemm", merge({"0.20.0": before, "0.20.1": after}), "0.20.1", "0.20.0")
    newer = ", ".join(ARCHITECTURES[1:])
    assert defaults == [("FP8/tensor, FP8/token", newer, "CUTLASS", "TRITON"), ("INT8", "sm_75", "CUTLASS", "does not start")]
    assert pins == []


def test_a_pin_that_is_refused_from_now_on_has_its_reason() -> None:
    before, after = dense(accepts=["CUTLASS", "MARLIN"], refuses={}), dense(ignores={"TRITON": "CUTLASS"})
    _, pins = rows_of("gemm", merge({"0.20.0": everywhere({"INT8": before}), "0.20.1": everywhere({"INT8": after})}), "0.20.1", "0.20.0")
    assert pins == [
        ("MARLIN", "INT8", "all", "accepted", "refused: too new"),
        ("TRITON", "INT8", "all", "unknown", "without effect"),
    ]


def test_layers_of_experts_are_named_by_what_they_have_in_common() -> None:
    def experts(takes: str, models: tuple[str, ...] = ("GptOss", "Llama4", "Nemotron")) -> dict[str, Any]:
        answer: dict[str, Any] = {"takes": takes, "accepts": [], "refuses": {}, "ignores": {}, "raises": None}
        other = answer | {"takes": "MARLIN"}
        return {f"FP8/Unset/{layout}/{model}": answer if model in models else other for layout in ("Data", "Expert") for model in
                ("GptOss", "Llama4", "Nemotron")}  # fmt: skip

    table = merge_trees({"0.20.0": everywhere(experts("TRITON")), "0.20.1": everywhere(experts("TRITON", ("GptOss",)))})
    defaults, _ = rows_of("moe", table, "0.20.1", "0.20.0")
    assert defaults == [("FP8/*/*/*", "all", "TRITON", "MARLIN")]
