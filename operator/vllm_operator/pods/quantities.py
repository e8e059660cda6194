"""Quantities of Kubernetes: amounts of memory, CPU and devices, such as 81559Mi, 250m or 1k.

They are parsed by the kubernetes package. What is around it here never raises, and bounds what comes out.
"""

import importlib.util
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, cast

MEBIBYTE = 2**20
LIMIT = 2**63
"""Every quantity is below it (https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/)."""
LENGTH_LIMIT = 64
_CHARACTERS = frozenset("0123456789.+-numkKMGTPEie")
"""Of a quantity. Python's decimals may also have underscores, spaces and the digits of other scripts, or be called NaN."""
_BINARY_UNITS = ("Ti", 2**40), ("Gi", 2**30)


def read_quantity(value: Any) -> Decimal | None:
    """Return a quantity as a number; None if it is none, if it is negative, or beyond what Kubernetes can hold."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if isinstance(value, int) and not 0 <= value < LIMIT:
        return None
    text = str(value)
    if not 0 < len(text) <= LENGTH_LIMIT or not _CHARACTERS.issuperset(text):
        return None
    if text.isdecimal():
        number = Decimal(text)
    else:
        try:
            number = _parser()(text)
        except (ValueError, ArithmeticError):
            return None
    return number if number.is_finite() and 0 <= number < LIMIT else None


def read_bytes(value: Any) -> int | None:
    """Return a quantity of memory in bytes, rounded up as Kubernetes does, else None."""
    number = read_quantity(value)
    return None if number is None else ceil(number)


def read_mebibytes(value: Any) -> int | None:
    """Return a quantity of memory in MiB, rounded down, else None."""
    size = read_bytes(value)
    return None if size is None else size // MEBIBYTE


def read_cores(value: Any) -> float | None:
    """Return a quantity of CPU in cores, such as 250m or the 1234567n of metrics, else None."""
    number = read_quantity(value)
    return None if number is None else float(number)


def read_count(value: Any) -> int | None:
    """Return a quantity of things that cannot be divided, such as devices, else None."""
    number = read_quantity(value)
    return int(number) if number is not None and number == int(number) else None


def format_bytes(size: int) -> str:
    """Write a number of bytes as a quantity: in TiB where it is a whole number of them, else in GiB, rounded up."""
    unit, factor = next((each for each in _BINARY_UNITS if size % each[1] == 0), _BINARY_UNITS[-1])
    return f"{ceil(Decimal(size) / factor)}{unit}"


@cache
def _parser() -> Callable[[str], Decimal]:
    """`kubernetes.utils.quantity.parse_quantity`, without the package around it.

    Importing it by its name imports the synchronous client first, with requests and urllib3: 0.6 s and 40 MB for a function that
    needs `decimal`. The commands that plan without a cluster would wait longer for it than for all else.
    """
    package = importlib.util.find_spec("kubernetes")
    if package is None or package.origin is None:
        raise ImportError("the kubernetes package is not installed")
    path = Path(package.origin).parent / "utils" / "quantity.py"
    spec = importlib.util.spec_from_file_location("_kubernetes_quantity", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(Callable[[str], Decimal], module.parse_quantity)
