"""A recorded start is replayed with the gaps that it had."""

from pathlib import Path

import pytest

from testenv.cri import LogWriter, parse_record
from testenv.replay import Replay, read_recording

BAR = (
    b"(EngineCore pid=7) \rwarm-up:   0%|  | 0/10 [00:00<?, ?it/s]"
    b"\rwarm-up:  50%|# | 5/10 [00:20<00:20, 4.00s/it]"
    b"\rwarm-up: 100%|##| 10/10 [00:40<00:00, 4.00s/it]\n"
)
RECORDING = (
    b"INFO 11-21 09:26:52 [utils.py:299] banner\r\n"
    b"no time of its own\n"
    b"(EngineCore pid=7) INFO 11-21 09:27:02 [core.py:109] Initializing\n"
    + BAR
    + b"[W1121 09:27:50.910306063 socket.cpp:207] native code has another format\n"
    b"(EngineCore pid=7) 2026-11-21 09:28:02,906 - INFO - autotuner.py:457 - so has FlashInfer\n"
    b"INFO 11-21 09:28:00 [a.py:1] another process, a little late\n"
    b"INFO:     Application startup complete.\n"
    b"INFO 11-21 09:29:59 [a.py:1] shutting down\n"
)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "start.log"
    path.write_bytes(RECORDING)
    return path


def test_times_come_from_clocks_and_bars(recording: Path) -> None:
    got = [(output.seconds, output.data.split(b"|")[0].strip()[-8:]) for output in read_recording(recording)]
    assert got == [
        (0, b"] banner"),
        (0, b" its own"),
        (10, b"ializing"),
        (10, b"e pid=7)"),
        (10, b"up:   0%"),
        (30, b"up:  50%"),
        (50, b"up: 100%"),
        (58, b"r format"),
        (70, b"ashInfer"),
        (70, b"tle late"),
        (70, b"omplete."),
    ]


def test_a_recording_is_replayed_byte_for_byte_up_to_where_it_serves(recording: Path) -> None:
    replayed = b"".join(output.data for output in read_recording(recording))
    assert RECORDING.startswith(replayed)
    assert replayed.endswith(b"startup complete.\n")
    assert b"".join(output.data for output in read_recording(recording, until=b"")) == RECORDING


async def test_a_bar_is_one_line_of_the_log_when_it_ends(recording: Path, tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    await Replay(read_recording(recording), LogWriter(log), speed=10_000).play(exits=True)
    texts = [record.text for line in log.read_bytes().split(b"\n") if (record := parse_record(line))]
    assert BAR.rstrip(b"\n") in texts
    assert log.with_suffix(".exit").exists()
