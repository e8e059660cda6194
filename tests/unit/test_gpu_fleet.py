"""A fleet of 60 GPUs of five kinds, in simulated time: nobody waits beside a free GPU, and no status says what is not so."""

import sys

import pytest

from support.gpu_fleet import GPUFleet


@pytest.mark.parametrize(
    ("seed", "operations"),
    [
        (7, 22),
        pytest.param(5, 300, marks=(pytest.mark.extended, pytest.mark.timeout(1800))),
        pytest.param(6, 300, marks=(pytest.mark.exhaustive, pytest.mark.timeout(1800))),
    ],
)
async def test_nobody_waits_beside_a_free_gpu(seed: int, operations: int, capsys: pytest.CaptureFixture[str]) -> None:
    measured = await GPUFleet(seed).run(operations)
    with capsys.disabled():
        sys.stdout.write(f"\nseed {seed}: {measured}\n")
    assert not measured.wrong, "\n".join(measured.wrong)
    assert measured.moved or operations < 300, "nothing was chosen again, so the run shows nothing"
