"""Recordings as files: what is in them, what is not, and what is left after a crash."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from driver import drive, make_config, make_request

from slipstream.cli import main
from slipstream.config import SettingError
from slipstream.request import Request
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.simulation import recording_file
from slipstream.simulation.drafters import oracle, predict_with
from slipstream.simulation.record_to import RecordTo
from slipstream.simulation.recorded_requests import recorded_parts
from slipstream.simulation.recorder import RecordedScheduler, Recorder
from slipstream.simulation.recording import Added, Committed, Planned
from slipstream.simulation.recording_file import RecordingFile
from slipstream.simulation.recording_reader import read_recording
from slipstream.simulation.replay import Replay, first_divergence
from slipstream.simulation.scripted import HashedLogits, ScriptedExecutor
from slipstream.simulation.trace_acceptance import TraceAcceptance

LOGITS = HashedLogits(16, seed=3, window=1, scale=2.0)
CONFIG = make_config(
    max_num_seqs=3, max_num_batched_tokens=32, block_size=4, layout_name="dspark", num_speculative_tokens=3
)


def record(path: Path, requests: list[Request], *, with_text: bool = False, close: bool = True) -> dict[str, list[int]]:
    """Run requests with a drafter that is always right; gives their texts."""
    recorder = Recorder(RecordTo(path, with_text), CONFIG, clock=lambda: 1.0, model="scripted")
    executor = ScriptedExecutor(
        LOGITS,
        num_kv_blocks=CONFIG.num_kv_blocks,
        block_size=CONFIG.block_size,
        drafter=oracle(LAYOUTS["dspark"], predict_with(LOGITS), 16),
    )
    run = drive(RecordedScheduler(CONFIG, recorder), executor, requests)
    if close:
        recorder.close()
    return run.token_ids


def three_requests() -> list[Request]:
    shared = [1, 2, 3, 4, 5, 6, 7, 8]
    return [make_request(f"r{n}", [*shared, n, n], 12, stop=("a secret",)) for n in range(3)]


def test_without_text_no_token_and_no_stop_string_is_written(tmp_path: Path) -> None:
    record(tmp_path / "run.jsonl.gz", three_requests())
    text = gzip.decompress((tmp_path / "run.jsonl.gz").read_bytes()).decode()
    assert "secret" not in text and "prompt_token_ids" not in text and '"token_ids"' not in text
    recording = read_recording(tmp_path / "run.jsonl.gz")
    added = [event for event in recording.events if isinstance(event, Added)]
    assert {event.num_prompt_tokens for event in added} == {10}
    assert added[0].block_hashes == added[1].block_hashes and len(added[0].block_hashes) == 2


def test_hashes_are_salted_anew_in_each_recording(tmp_path: Path) -> None:
    """Two recordings of one prompt have nothing in common: a guess at a text cannot be checked."""
    hashes = set()
    for name in ("a.jsonl", "b.jsonl"):
        record(tmp_path / name, three_requests())
        recording = read_recording(tmp_path / name)
        hashes |= {block for event in recording.events if isinstance(event, Added) for block in event.block_hashes}
    assert len(hashes) == 4
    request = three_requests()[0]
    Recorder(RecordTo(tmp_path / "c.jsonl"), CONFIG, clock=lambda: 0.0, model="m").added(request)
    assert not hashes & {block[:8] for block in request.block_hashes}


def test_with_text_everything_is_there(tmp_path: Path) -> None:
    texts = record(tmp_path / "run.jsonl", three_requests(), with_text=True)
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    added = next(line for line in lines[1:] if line["event"] == "add")
    assert added["prompt_token_ids"] == [1, 2, 3, 4, 5, 6, 7, 8, 0, 0]
    assert added["sampling"]["stop"] == ["a secret"]
    recording = read_recording(tmp_path / "run.jsonl")
    made: dict[str, list[int]] = {}
    for event in recording.events:
        if isinstance(event, Committed):
            for result in event.result.results:
                kept = event.ends[result.request_id].num_kept_tokens if result.request_id in event.ends else None
                made.setdefault(result.request_id, []).extend(result.token_ids[:kept])
    assert made == texts
    assert first_divergence(recording, Replay(recording)) is None


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_a_cut_recording_is_read_as_far_as_it_goes(tmp_path: Path, name: str) -> None:
    record(tmp_path / name, three_requests())
    whole, data = read_recording(tmp_path / name), (tmp_path / name).read_bytes()
    assert not whole.is_cut
    seen = set()
    for length in range(len(data) * 2 // 3, len(data) - 16, 7):
        (tmp_path / name).write_bytes(data[:length])
        cut = read_recording(tmp_path / name)
        assert cut.is_cut
        assert cut.events == whole.events[: len(cut.events)]
        assert first_divergence(cut, Replay(cut)) is None
        seen.add(len(cut.events))
    assert len(seen) > 1


def test_a_crash_leaves_what_was_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing closes the file; what stands in it is whole steps, at most FLUSH_S old."""
    monkeypatch.setattr(recording_file, "FLUSH_S", 0.0)
    record(tmp_path / "run.jsonl.gz", three_requests(), close=False)
    recording = read_recording(tmp_path / "run.jsonl.gz")
    assert recording.is_cut and recording.num_steps > 3
    assert isinstance(recording.events[-1], Planned) and not recording.events[-1].plan.requests
    assert first_divergence(recording, Replay(recording)) is None


def test_memory_of_the_writer_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_file, "FLUSH_S", 1e9)
    monkeypatch.setattr(recording_file, "FLUSH_BYTES", 100)
    file = RecordingFile(tmp_path / "run.jsonl")
    file.append("x" * 60)
    assert not (tmp_path / "run.jsonl").read_bytes()
    file.append("y" * 60)
    assert (tmp_path / "run.jsonl").read_text() == "x" * 60 + "\n" + "y" * 60 + "\n"


def test_a_full_disk_ends_the_recording_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = RecordingFile(Path("/dev/full"))
    file.append("x")
    file.close()
    assert "ends here" in caplog.text
    file.append("dropped")
    file.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"hello\n", "no JSON"), (b'{"a": 1}\n', "should have"), (b"\x1f\x8bnonsense", "is empty")],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(SettingError, match=message):
        read_recording(path)
    with pytest.raises(SettingError, match="cannot be read"):
        read_recording(tmp_path / "nothing.jsonl.gz")


def test_where_it_cannot_be_written_is_said_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="is a directory"):
        RecordTo(tmp_path).check()
    with pytest.raises(SettingError, match="no directory"):
        RecordTo(tmp_path / "no" / "run.jsonl.gz").check()
    assert RecordTo(Path("a/run.jsonl.gz")).named("x/y=1").path == Path("a/run.x-y-1.jsonl.gz")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--record", "/no/such/folder/run.jsonl.gz"], "there is no directory"),
        (["bench", "--record-text"], "give --record FILE too"),
        (["bench", "--record", "/no/such/folder/run.jsonl.gz", "--scripted"], "there is no directory"),
        (
            ["bench", "--base-url", "http://127.0.0.1:1", "--record", "run.jsonl.gz"],
            "--record is for an engine in this",
        ),
        (["compare", "--record", "/", "--scripted"], "is a directory"),
    ],
)
def test_the_flags_are_refused_before_anything_is_loaded(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_requests_and_the_fate_of_their_drafts_are_read_back(tmp_path: Path) -> None:
    texts = record(tmp_path / "run.jsonl.gz", three_requests())
    [part] = recorded_parts(read_recording(tmp_path / "run.jsonl.gz"))
    assert {request.request_id: request.num_output_tokens for request in part.requests} == {
        name: len(text) for name, text in texts.items()
    }
    trace = TraceAcceptance(part.requests)
    fate = trace.request(0, 12)
    first = part.requests[0].verifications[0]
    assert first.num_verified == first.num_accepted == 3
    assert fate.num_accepted(first.position, 3) == 3
    assert trace.rates.conditional == [1.0, 1.0, 1.0]
    assert 0.5 < trace.share_known() < 1.0
