"""Templates of the catalog: texts with values from a log line. In a file, one with many cases is a list of pieces (`join`).

Templates of users are untrusted, so only a small part of Jinja is allowed: values and conditions. They neither repeat nor compute values,
so time and length are bounded.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from vllm_operator.catalog.entry import quote, read_data

if TYPE_CHECKING:
    from jinja2 import Environment, Template, nodes

RESULT_LIMIT = 4000
"""Maximum characters of a result."""
_NODES = (
    *("Template", "Output", "TemplateData", "Name", "Const", "List", "Concat"),
    *("If", "CondExpr", "Not", "And", "Or", "Compare", "Operand"),
)


class TemplateError(ValueError):
    """The template is invalid. The message says why."""


def join(written: Any) -> Any:
    """Return the template of a list of pieces: texts, further lists, and cases, of which the first with a true condition counts.

    Cases are `if` with `then`, `elif` with `then`, and `else`. A value that is no list is returned as it is.
    """
    if not isinstance(written, list):
        return written
    template, end = "", ""
    for piece in written:
        match piece:
            case {"if": str(condition), "then": str() | list() as text, **rest} if not rest:
                template, end = f"{template}{end}{{% if {condition} %}}{join(text)}", "{% endif %}"
            case {"elif": str(condition), "then": str() | list() as text, **rest} if end and not rest:
                template += f"{{% elif {condition} %}}{join(text)}"
            case {"else": str() | list() as text, **rest} if end and not rest:
                template, end = f"{template}{{% else %}}{join(text)}{end}", ""
            case str() | list():
                template, end = f"{template}{end}{join(piece)}", ""
            case _:
                raise ValueError(f"{quote(piece)} is neither text nor a case: write if and then, after it elif and then, or else")
    return template + end


def check_template(text: str, *, alone: bool) -> frozenset[str]:
    """Return the names that a template uses. With `alone`, it must also render without captures.

    Raises TemplateError if it is malformed, or uses a forbidden feature.
    """
    try:
        names = _names(_environment(strict=False).parse(text))
        template = _compiled(text, strict=False)
    except TemplateError:
        raise
    except Exception as error:  # jinja2 raises any exception for hostile text, including RecursionError
        raise TemplateError(f"is not a template: {_describe(error)}") from None
    try:
        if alone:
            template.render({})
    except Exception as error:
        raise TemplateError(f"cannot be rendered without captures: {_describe(error)}") from None
    return names


def _describe(error: Exception) -> str:
    return str(error)[:120].rstrip(".") or type(error).__name__


def fill_in(template: str, captures: Iterable[tuple[str, str]]) -> str:
    """Render a template. Missing values are empty.

    Captures come from a log and are untrusted. If rendering with them fails, the text is rendered without them.
    """
    for values in (dict(captures), {}):
        try:
            return _compiled(template, strict=False).render(values).strip()[:RESULT_LIMIT]
        except Exception:
            continue
    return ""


def fill_in_exactly(template: str, captures: Mapping[str, str]) -> str | None:
    """Render a template; None if a shown value was not captured, or is invalid."""
    if "{" not in template:
        return template
    try:
        return _compiled(template, strict=True).render(captures).strip()[:RESULT_LIMIT]
    except Exception:  # captures are untrusted
        return None


def _names(tree: "nodes.Template") -> frozenset[str]:
    from jinja2 import nodes

    names = set()
    for node in (tree, *tree.find_all(nodes.Node)):
        kind = type(node).__name__
        if kind not in _NODES:
            raise TemplateError(f"uses {read_data('words.yaml')['syntax'].get(kind, kind)}; a template has values and conditions")
        if isinstance(node, nodes.Name):
            names.add(node.name)
    return frozenset(names)


@lru_cache(maxsize=1024)
def _compiled(text: str, *, strict: bool) -> "Template":
    return _environment(strict=strict).from_string(text)


@lru_cache(maxsize=2)
def _environment(*, strict: bool) -> "Environment":
    from jinja2 import StrictUndefined, Undefined  # imported only to report a crash
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Required(StrictUndefined):
        """A missing value that may be tested, as in `{{ a or b }}`, but not shown."""

        def __bool__(self) -> bool:  # type: ignore[override]  # it raises in the base
            return False

    environment = ImmutableSandboxedEnvironment(undefined=Required if strict else Undefined, autoescape=False)  # plain text
    environment.globals.clear()
    return environment
