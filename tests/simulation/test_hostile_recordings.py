"""Recordings that were damaged, edited, joined or made to harm: refused with the line, or replayed to where they go."""

from __future__ import annotations

import copy
import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli import main
from slipstream.config import SettingError
from slipstream.lab.what_if import running_by_step
from slipstream.simulation.record_to import RecordTo
from slipstream.simulation.recording import Planned
from slipstream.simulation.recording_file import RecordingFile
from slipstream.simulation.recording_reader import read_recording
from slipstream.simulation.replay import Replay

Lines = list[dict[str, Any]]
SPECULATIVE = {"method": "forced", "layout": "dspark", "num_speculative_tokens": 3, "acceptance_length": 2.5}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """A run of `bench --scripted` whose pool is tight."""
    path = tmp_path_factory.mktemp("hostile") / "run.jsonl"
    flags = ["--num-prompts", "10", "--concurrency", "4", "--input-len", "40", "--output-len", "12", "--no-progress"]
    flags += ["--num-kv-blocks", "10", "--speculative-config", json.dumps(SPECULATIVE), "--record", str(path)]
    assert main(["bench", "--scripted", *flags]) == 0
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, lines: Lines) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def last(lines: Lines, event: str, holds: str = "event") -> int:
    """Place of the last line of an event that has something under `holds`."""
    return max(i for i, line in enumerate(lines) if line.get("event") == event and line.get(holds))


def set_in(event: str, holds: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Lines], int]:
    """Changes the last line of an event; gives its place."""

    def edit(lines: Lines) -> int:
        place = last(lines, event, holds)
        change(lines[place])
        return place

    return edit


EDITS: dict[str, tuple[Callable[[Lines], int], str]] = {
    "huge prompt": (set_in("add", "event", lambda e: e.update(num_prompt_tokens=10**9)), "a prompt of 1000000000"),
    "endless time": (set_in("add", "event", lambda e: e.update(arrival_time=1e300)), "arrival_time is 1e"),
    "no time": (set_in("plan", "requests", lambda e: e.update(now=float("nan"))), "planned at nan"),
    "huge context": (set_in("plan", "new", lambda e: e["new"][0].__setitem__(2, 10**9)), "a new request is"),
    "row of text": (
        set_in("plan", "requests", lambda e: e["requests"][0].__setitem__(3, "x")),
        "a request of the plan",
    ),
    "unknown id": (set_in("plan", "requests", lambda e: e["requests"][0].__setitem__(0, "zz")), "'zz' is not there"),
    "another step": (set_in("plan", "requests", lambda e: e.update(step=999)), "step 999 stands where"),
    "no such step": (set_in("commit", "results", lambda e: e.update(step=999)), "step 999 has results, and no plan"),
    "result too many": (set_in("commit", "results", lambda e: e["results"].append(e["results"][0])), "not as many"),
    "tokens": (set_in("commit", "results", lambda e: e["results"][0].__setitem__(0, 10**9)), "does not allow"),
    "accepted": (set_in("commit", "results", lambda e: e["results"][0].__setitem__(2, 9)), "does not allow"),
    "endless pass": (set_in("commit", "results", lambda e: e.update(target_ms=float("inf"))), "target_ms is inf"),
    "strange end": (set_in("commit", "results", lambda e: e["ends"].update(zz=[1, "stop", None])), "'zz' ends in step"),
    "key": (set_in("mark", "event", lambda e: e.update(bogus=1)), "bogus"),
    "event": (set_in("mark", "event", lambda e: e.update(event=[])), "the event [] is not known"),
    "concurrency": (set_in("mark", "event", lambda e: e.update(max_concurrency=0)), "max_concurrency is 0"),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_cannot_have_been_is_refused_with_its_line(tmp_path: Path, recorded: Lines, name: str) -> None:
    edit, words = EDITS[name]
    lines = copy.deepcopy(recorded)
    place = edit(lines)
    with pytest.raises(SettingError) as error:
        read_recording(write(tmp_path / "run.jsonl", lines))
    assert f"line {place + 1} is damaged" in str(error.value)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("num_kv_blocks", 10**12, "num_kv_blocks must be from 1 to 8388608"),
        ("block_size", 0, "block_size must be from 1"),
        ("max_num_seqs", True, "config.max_num_seqs is True"),
        ("max_num_seqs", "x", "config.max_num_seqs is 'x'"),
        ("layout_name", "x", "layout_name is 'x'"),
        ("priority_ageing_s", 0, "priority_ageing_s must be above 0"),
        ("bogus", 1, "'bogus', which is not known"),
    ],
)
def test_headers_no_scheduler_can_be_built_from(
    tmp_path: Path, recorded: Lines, key: str, value: object, words: str
) -> None:
    lines = copy.deepcopy(recorded)
    lines[0]["config"][key] = value
    with pytest.raises(SettingError, match=words):
        read_recording(write(tmp_path / "run.jsonl", lines))


def test_facts_that_would_divide_by_zero(tmp_path: Path, recorded: Lines) -> None:
    for key, value in (("kv_bytes_per_token", 0), ("device_type", "x")):
        lines = copy.deepcopy(recorded)
        lines[0]["facts"][key] = value
        with pytest.raises(SettingError, match=f"facts.{key}"):
            read_recording(write(tmp_path / "run.jsonl", lines))


def test_a_broken_line_is_a_cut_only_at_the_end(tmp_path: Path, recorded: Lines) -> None:
    path = write(tmp_path / "run.jsonl", recorded)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:20], lines[20][:30]]))
    assert read_recording(path).is_cut
    for broken in (lines[20][:30], "[" * 100_000):
        path.write_text("\n".join([*lines[:20], broken, *lines[20:]]))
        with pytest.raises(SettingError, match="line 21 is damaged: no JSON, and others follow"):
            read_recording(path)
    path.write_text("\n".join(lines + lines[1:3]))
    with pytest.raises(SettingError, match="lines follow the end"):
        read_recording(path)


def test_joined_gzip_files_are_read_whole(tmp_path: Path, recorded: Lines) -> None:
    text = write(tmp_path / "run.jsonl", recorded).read_bytes()
    (tmp_path / "two.jsonl.gz").write_bytes(gzip.compress(text[:3000]) + gzip.compress(text[3000:]))
    assert read_recording(tmp_path / "two.jsonl.gz").events == read_recording(tmp_path / "run.jsonl").events


def test_a_line_without_end_is_refused_before_memory_is_full(tmp_path: Path, recorded: Lines) -> None:
    deflate = zlib.compressobj(9, wbits=31)
    blank = b" " * (1 << 20)
    data = deflate.compress(json.dumps(recorded[0]).encode() + b"\n")
    data += b"".join(deflate.compress(blank) for _ in range(80)) + deflate.flush()
    (tmp_path / "bomb.jsonl.gz").write_bytes(data)
    with pytest.raises(SettingError, match="a line has over"):
        read_recording(tmp_path / "bomb.jsonl.gz")


def test_a_plan_of_another_release_is_said_by_explain(
    tmp_path: Path, recorded: Lines, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps before it, and itself, are explained; later ones cannot be, since the scheduler is another by then."""
    lines = copy.deepcopy(recorded)
    first = min(i for i, line in enumerate(lines) if line.get("event") == "plan" and line["requests"])
    lines[first]["requests"][0][9] += 1
    path = str(write(tmp_path / "run.jsonl", lines))
    assert main(["explain", path, "--step", "0"]) == 0
    assert "plans the step differently" in capsys.readouterr().out
    assert main(["explain", path, "--step", "last"]) == 2
    assert "step 0 was recorded with another plan" in capsys.readouterr().err
    assert main(["replay", path, "--no-progress"]) == 1
    assert main(["replay", path, "--no-progress", "--set", "max_num_seqs=2"]) == 0


def test_step_and_set_out_of_all_bounds(tmp_path: Path, recorded: Lines, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write(tmp_path / "run.jsonl", recorded))
    for step in ("-1", "\u00b2", "9" * 5000, "", "1.5", str(10**30)):
        assert main(["explain", path, "--step", step]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "--step takes a step from 0 to" in line
    for text, words in (
        ("block_size=0", "block_size must be from 1 to 160"),
        ("num_kv_blocks=30000000", "8388608 are simulated at most"),
        ("kv_cache_memory_bytes=1", "kv-cache-memory-bytes"),
    ):
        assert main(["replay", path, "--no-progress", "--set", text]) == 2
        assert words in capsys.readouterr().err.splitlines()[-1]


def test_seats_are_counted_as_the_scheduler_counts_them(tmp_path: Path, recorded: Lines) -> None:
    recording = read_recording(write(tmp_path / "run.jsonl", recorded))
    replay, counted = Replay(recording), {}
    for event in recording.events:
        replay.apply(event)
        if isinstance(event, Planned) and event.plan.requests:
            counted[event.plan.step] = replay.scheduler.num_running
    assert counted == running_by_step(recording)
    assert len(set(counted.values())) > 1


def test_two_runs_do_not_record_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first = RecordingFile(path)
    first.append("kept")
    with pytest.raises(SettingError, match="another run records to it"):
        RecordingFile(path)
    first.close()
    assert path.read_text() == "kept\n"
    RecordingFile(path).close()
    assert path.read_text() == ""
    RecordTo(path).check()
