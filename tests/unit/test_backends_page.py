"""docs/backends.md says what the catalog says."""

from generate_backends_doc import TARGET, page
from vllm_operator.catalog.rules import load_rules


def test_the_page_is_up_to_date() -> None:
    assert TARGET.read_text() == page(), "run `make generate`"


def test_every_rule_is_on_the_page() -> None:
    text = page()
    assert all(f"`{rule.id}`" in text for rule in load_rules().rules)
