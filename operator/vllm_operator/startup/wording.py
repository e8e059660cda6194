"""Texts of the catalog with what was captured filled in."""

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Template


def render(template: str, captures: Iterable[tuple[str, str]]) -> str:
    """Fill in a jinja2 template of the catalog. What was not captured is empty.

    What is captured comes from a log and may be anything: a text that cannot be rendered with it is shown
    without it.
    """
    from jinja2 import TemplateError  # only paid for where a crash is put into words

    try:
        return _compiled(template).render(dict(captures)).strip()
    except (TemplateError, ValueError, TypeError, ArithmeticError):
        return _compiled(template).render({}).strip()


@lru_cache(maxsize=512)
def _compiled(template: str) -> "Template":
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(autoescape=False).from_string(template)
