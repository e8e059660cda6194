"""Quantities: everything that Kubernetes writes is read, and nothing that anybody writes makes reading fail or slow."""

import subprocess
import sys
import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_operator.api.reading import LIMIT, format_bytes, read_bytes, read_count, read_mebibytes, read_quantity

UNITS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("1k", "1000"),
        ("100k", "100000"),
        ("1e3", "1000"),
        ("1E", "1e18"),
        ("2Ki", "2048"),
        ("7Ei", str(7 * 2**60)),
        ("0.5", "0.5"),
        (".5", "0.5"),
        ("250m", "0.25"),
        ("1234567n", "0.001234567"),
        ("1500u", "0.0015"),
        (8, "8"),
        (0.1, "0.1"),
        (str(LIMIT - 1), str(LIMIT - 1)),
    ],
)
def test_what_kubernetes_writes_is_read(value: Any, number: str) -> None:
    assert read_quantity(value) == Decimal(number)


@pytest.mark.parametrize(
    "value",
    [
        *("", " ", "i", "k", "Ki", "ki", "m", "1i", "1ki", "5 Gi", " 1", "1\n", "1_000", "٣", "²", "0x10", "1ee", "eight", "2Gx"),
        *("-1", "-1Gi", -1, "NaN", "nan", "sNaN", "Infinity", "-inf", float("nan"), float("inf"), 1e300),
        *(str(LIMIT), LIMIT, 10**10_000, "9" * 1_000_000, "1e999999999", "1e999999999Ki", "1e-18446744073709551617", "8Ei"),
        *(True, None, [], {}, b"1"),
    ],
    ids=lambda value: str(value)[:24] if not isinstance(value, int) or value < LIMIT else "huge",
)
def test_anything_else_is_no_quantity(value: Any) -> None:
    began = time.perf_counter()
    readers = (read_quantity, read_bytes, read_mebibytes, read_count)
    assert [read(value) for read in readers] == [None] * len(readers)
    assert time.perf_counter() - began < 0.1


@given(st.one_of(st.text(max_size=70), st.text("0123456789.+-numkKMGTPEie", max_size=70), st.integers(), st.floats(), st.binary()))
def test_reading_never_raises(value: Any) -> None:
    number = read_quantity(value)
    assert number is None or 0 <= number < LIMIT
    assert all((read(value) is None) == (number is None) for read in (read_bytes, read_mebibytes))
    assert read_count(value) in (None, number)


@given(st.integers(0, 10**6), st.sampled_from(sorted(UNITS)))
def test_a_unit_is_a_power_of_ten(amount: int, unit: str) -> None:
    number = Decimal(amount).scaleb(UNITS[unit])
    assert read_quantity(f"{amount}{unit}") == (number if number < LIMIT else None)


def test_bytes_are_rounded_up_and_devices_are_not_rounded() -> None:
    assert (read_bytes("0.1"), read_bytes("1.5Ki"), read_mebibytes("81559Mi"), read_mebibytes("1G")) == (1, 1536, 81559, 953)
    assert (read_count("2000m"), read_count("1500m")) == (2, None)


@pytest.mark.parametrize(("size", "text"), [(2**40, "1Ti"), (3 * 2**39, "1536Gi"), (40 * 2**30, "40Gi"), (1, "1Gi"), (10**12, "932Gi")])
def test_a_size_is_written_in_whole_units(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_reading_one_does_not_load_a_client() -> None:
    code = "import sys; from vllm_operator.api import reading as q; print(q.read_bytes('1Ki'), 'kubernetes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "1024 False"
