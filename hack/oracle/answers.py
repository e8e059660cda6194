"""What vLLM says about one layer, and asking about each pin."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Answer:
    takes: str | None
    """The backend that it takes by itself; None if it raises."""
    accepts: tuple[str, ...] = ()
    """Pins that it follows."""
    refuses: Mapping[str, str] = field(default_factory=dict)
    """Pins on which it raises, each with its reason."""
    ignores: Mapping[str, str] | None = field(default_factory=dict)
    """Pins in place of which it silently takes another backend, with that; None if there can be none."""
    raises: str | None = None
    """Why it raises without a pin."""


Asked = tuple[str | None, str | None]
"""A backend, or else the reason why there is none."""


def attempt(take: Callable[[], str], reason: Callable[[Exception], str]) -> Asked:
    """Ask once; `reason` tells why vLLM raises."""
    try:
        return take(), None
    except Exception as error:
        return None, reason(error)


def listed_reasons(error: Exception) -> str:
    """The reasons that a selector of attention lists, without the names of the backends around them."""
    text = " ".join(str(error).split())
    found = re.search(r"Reason: \[(.*)\]", text, re.DOTALL)
    reasons = re.findall(r"'([^']*)'|\"([^\"]*)\"", found[1]) if found else []
    return "; ".join(one or other for one, other in reasons) or f"{type(error).__name__}: {text}"[:300]


def answer(taken: Asked, pins: Mapping[str, Asked]) -> Answer:
    """Return the answer without a pin and with each pin, named by the backend that it asks for."""
    return Answer(
        takes=taken[0],
        accepts=tuple(name for name, (backend, _) in pins.items() if backend == name),
        refuses={name: reason for name, (_, reason) in pins.items() if reason is not None},
        ignores={name: backend for name, (backend, _) in pins.items() if backend not in (None, name)},
        raises=taken[1],
    )
