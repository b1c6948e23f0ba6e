"""The commands: what they refuse, what they print and return, what their JSON holds."""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from slipstream.bench.command import add_bench_arguments, add_compare_arguments, run_bench, run_compare
from slipstream.bench.dataset import SYNTHETIC_NOTE
from slipstream.bench.forced import FORCED_NOTE

SMALL = ["--scripted", "--num-prompts", "12", "--output-len", "40"]
FORCED = '{"method": "forced", "layout": "dspark", "num_speculative_tokens": 5, "acceptance_length": 3.0}'


def command(
    add: Callable[[argparse.ArgumentParser], None], run: Callable[[argparse.Namespace], int]
) -> Callable[..., int]:
    def call(*arguments: str) -> int:
        parser = argparse.ArgumentParser()
        add(parser)
        return run(parser.parse_args(arguments))

    return call


bench = command(add_bench_arguments, run_bench)
compare = command(add_compare_arguments, run_compare)


def test_compare_on_the_scripted_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    assert compare(*SMALL, "--repeats", "2", "--output-json", str(path)) == 0
    shown = capsys.readouterr().out
    assert "same text: yes" in shown
    assert FORCED_NOTE in shown
    value = json.loads(path.read_text())
    assert value["same_text"] is True
    assert value["settings"]["scheduler"]["max_num_batched_tokens"] == 64
    assert [len(value["runs"][name]) for name in ("shared", "separate")] == [2, 2]
    shared, separate = (value["runs"][name][0] for name in ("shared", "separate"))
    assert shared["peak_running"] < separate["peak_running"] == 8
    assert shared["mixed_step_share"] + shared["decode_step_share"] + shared["prefill_step_share"] == pytest.approx(1)
    assert shared["total_output_tokens"] == 12 * 40


def test_compare_returns_1_when_texts_differ(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from slipstream.simulation.scripted import HashedLogits

    original, calls = HashedLogits.__init__, []

    def other_model_each_time(self: HashedLogits, vocab_size: int, seed: int = 0) -> None:
        calls.append(seed)
        original(self, vocab_size, seed=len(calls))

    monkeypatch.setattr(HashedLogits, "__init__", other_model_each_time)
    assert compare(*SMALL, "--repeats", "1") == 1
    shown = capsys.readouterr().out
    assert "same text: no" in shown
    assert "draft_budget=separate, run 1: request 0 differs from output token 0 on" in shown
    assert "left the text of the plain pass" in shown


@pytest.mark.model
def test_compare_on_the_embedded_model_gives_the_same_text(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    sizes = ["--num-prompts", "6", "--input-len", "12", "--output-len", "20", "--repeats", "1", "--num-threads", "1"]
    assert compare(*sizes, "--max-num-batched-tokens", "40", "--max-num-seqs", "5", "--output-json", str(path)) == 0
    value = json.loads(path.read_text())
    assert value["requests_that_left_the_plain_text"] == 0
    for (run,) in value["runs"].values():
        assert run["spec_decode_verified_tokens"] > 0
        assert run["total_output_tokens"] == 6 * 20


def test_ngram_against_none_on_the_scripted_target() -> None:
    assert compare("--scripted", "--vary", "method=ngram,none", "--speculative-config", '{"method": "ngram"}') == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vary", "colour=a,b"], "unknown setting 'colour'"),
        (["--vary", "draft_budget=shared"], "at least two values"),
        (["--vary", "draft_budget=shared,mine"], "mine is not known"),
        (["--repeats", "0"], "--repeats must be between 1 and 1000"),
        (["--num-prompts", "0"], "--num-prompts must be between 1 and 1000000"),
        (["--vary", "max_num_seqs=many,8"], "max_num_seqs: expected a number"),
        (["--max-num-seqs", "100"], "--max-num-batched-tokens 64"),
        (["--dataset", "/nowhere.jsonl"], "cannot read prompts"),
        (["--output-json", "/nowhere/at/all.json"], "no directory /nowhere/at"),
        (["--concurrency", "2", "--request-rate", "1"], "exclude each other"),
        (["--seed", "-3"], "--seed must be between 0 and"),
        (["--repeats", "9999999999"], "--repeats must be between"),
        (["--output-json", ""], "is a directory"),
        (["--speculative-config", FORCED.replace("3.0", "9.0")], "nearest is 6"),
        (["--speculative-config", FORCED.replace("dspark", "dspork")], "'dspork'"),
    ],
)
def test_compare_refuses_by_name(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*SMALL, *arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_bench_in_process_prints_and_writes_the_same_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    assert bench(*SMALL, "--concurrency", "3", "--speculative-config", FORCED, "--output-json", str(path)) == 0
    shown = capsys.readouterr().out
    assert "closed loop, concurrency 3" in shown
    assert FORCED_NOTE in shown
    value = json.loads(path.read_text())
    assert (value["completed"], value["failed"], value["peak_in_flight"]) == (12, 0, 3)
    assert value["spec_decode_accepted_tokens"] <= value["spec_decode_verified_tokens"]
    assert value["median_ttft_ms"] <= value["median_e2el_ms"]


def test_n3_no_verdict_on_acceptance_for_random_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    arguments = ["--dataset", "random", "--input-len", "9", "--speculative-config", FORCED, "--output-json", str(path)]
    assert bench(*SMALL, *arguments) == 0
    shown = capsys.readouterr().out
    assert SYNTHETIC_NOTE in shown
    assert "accepted of verified" not in shown
    assert SYNTHETIC_NOTE in json.loads(path.read_text())["notes"]


@contextmanager
def server(metrics: Callable[[int], str] | None = None, fail: bool = False) -> Iterator[str]:
    """An OpenAI-compatible server of two chunks a request, and `/metrics` as a function of requests served."""
    served = 0

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self._answer(200, "application/json", json.dumps({"data": [{"id": "small"}]}))
            elif self.path == "/metrics" and metrics is not None:
                self._answer(200, "text/plain; version=0.0.4", metrics(served))
            else:
                self._answer(404, "text/plain", "no")

        def do_POST(self) -> None:
            nonlocal served
            served += 1
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert body["model"] == "small"
            if fail:
                self._answer(503, "application/json", json.dumps({"error": {"message": "the queue is full"}}))
                return
            pieces: list[dict[str, Any]] = [{"choices": [{"delta": {"content": piece}}]} for piece in ("one", "two")]
            pieces.append({"choices": [{"delta": {}, "finish_reason": "length"}]})
            pieces.append({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}})
            self._answer(200, "text/event-stream", "".join(f"data: {json.dumps(piece)}\n\n" for piece in pieces))

        def _answer(self, status: int, kind: str, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: Any) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}"
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


def counters(served: int) -> str:
    names = {"drafts": 4, "draft_tokens": 12, "accepted_tokens": 6}
    lines = [f'vllm:spec_decode_num_{name}_total{{engine="0"}} {each * served}' for name, each in names.items()]
    for position, each in enumerate((3, 2, 1)):
        labels = f'engine="0",position="{position}"'
        lines.append(f"vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels}}} {each * served}")
    lines += [f'slipstream:engine_steps_total{{kind="{k}"}} {n * served}' for k, n in (("decode", 3), ("mixed", 1))]
    lines.append(f"slipstream:spec_decode_num_drafted_tokens_total {15 * served}")
    return "\n".join(lines) + "\n"


def test_bench_over_http_takes_acceptance_and_steps_from_the_servers_counters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    with server(counters) as url:
        # Two warm-up requests come first and must not be in the difference.
        assert bench("--base-url", url, "--num-prompts", "5", "--num-warmups", "2", "--output-json", str(path)) == 0
    value = json.loads(path.read_text())
    assert value["total_output_tokens"] == 25
    assert value["spec_decode_num_drafts"] == 20
    assert value["spec_decode_draft_tokens"] == 75
    assert value["spec_decode_verified_tokens"] == 60
    assert value["spec_decode_acceptance_rate"] == pytest.approx(50.0)
    assert value["spec_decode_acceptance_length"] == pytest.approx(2.5)
    assert value["spec_decode_per_position_acceptance_rates"] == pytest.approx([0.75, 0.5, 0.25])
    assert (value["decode_steps"], value["mixed_steps"]) == (15, 5)
    assert value["peak_running"] is None
    assert "small at" in capsys.readouterr().out


def test_bench_over_http_without_metrics_says_nothing_of_acceptance(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    with server() as url:
        assert bench("--base-url", url, "--num-prompts", "2", "--output-json", str(path)) == 0
    assert "spec_decode_acceptance_rate" not in json.loads(path.read_text())


def test_failed_requests_are_shown_and_returned(capsys: pytest.CaptureFixture[str]) -> None:
    with server(fail=True) as url:
        assert bench("--base-url", url, "--num-prompts", "3", "--num-warmups", "0") == 1
    shown = capsys.readouterr().out
    assert "3 failed: HTTP 503: the queue is full" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--base-url", "http://127.0.0.1:9"], "is the server up"),
        (["--base-url", "http://x", "--max-num-seqs", "3"], "--max-num-seqs is for an engine in this process"),
        (["--base-url", "http://x", "--model", "m"], "--request-model"),
        (["--base-url", "http://x", "--input-len", "7"], "--dataset random"),
        (["--base-url", "http://x", "--request-model", "m", "--dataset", "random"], "--endpoint completions"),
        (["--scripted", "--temperature", "-1"], "temperature"),
        (["--scripted", "--output-len", "0"], "--output-len"),
        (["--scripted", "--output-len", "99999999999"], "--output-len"),
        (["--scripted", "--dataset", "random", "--seed", "-1"], "--seed must be between 0"),
        (["--scripted", "--request-rate", "5", "--seed", "-1"], "--seed must be between 0"),
        (["--scripted", "--seed", str(2**90)], "--seed must be between 0"),
        (["--scripted", "--request-rate", "1e-320"], "the nearest is 0.001"),
        (["--scripted", "--request-rate", "1e300"], "the nearest is 1e+09"),
        (["--scripted", "--request-rate", "5", "--burstiness", "1e-300"], "--burstiness must be between"),
        (["--scripted", "--num-prompts", "99999999999999"], "the nearest is 1000000"),
        (["--scripted", "--input-len", "10000000000"], "the nearest is 1000000"),
        (["--scripted", "--input-len", "0"], "--input-len must be between 1"),
        (["--scripted", "--input-len", "0", "--dataset", "random"], "--input-len must be between 1"),
        (
            ["--scripted", "--input-len", "1000000", "--dataset", "random"],
            "at this length the most is --num-prompts 20",
        ),
        (["--scripted", "--num-warmups", "-1"], "--num-warmups must be between 0"),
        (["--scripted", "--num-warmups", "99"], "--num-warmups must be between 0 and 32"),
        (["--scripted", "--output-json", "."], "is a directory"),
        (["--scripted", "--output-json", "a" * 5000], "cannot be written"),
        (["--base-url", ""], "no server's address"),
        (["--base-url", "garbage"], "no server's address"),
        (["--base-url", "http://"], "no server's address"),
        (["--base-url", "ftp://x"], "no server's address"),
        (["--base-url", "http://[::1"], "no server's address"),
        (["--base-url", "http://127.0.0.1:99999"], "no server's address"),
        (["--base-url", "http://127.0.0.1:0"], "no server's address"),
        (["--base-url", "http://x/?a=b"], "no server's address"),
        *(
            (["--base-url", "http://x", "--vocab-size", size], "--vocab-size must be")
            for size in ("0", "-4", str(2**70))
        ),
        *((["--base-url", "http://x", "--timeout", time], "--timeout must be") for time in ("nan", "0", "-1", "inf")),
        (["--base-url", "http://x", "--api-key", "ü"], "printable ASCII"),
        (["--base-url", "http://x", "--api-key", "a\nb"], "printable ASCII"),
    ],
)
def test_bench_refuses_by_name(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_an_output_file_without_permission_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere
    assert bench(*SMALL, "--output-json", str(tmp_path / "out.json")) == 2
    assert "no permission" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", [bench, compare])
def test_a_write_that_fails_after_the_run_is_one_line(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*SMALL, "--output-json", "/dev/full") == 1
    captured = capsys.readouterr()
    assert "--output-json /dev/full could not be written: No space left" in " ".join(captured.err.split())
    assert captured.out  # the numbers themselves are not lost


def test_words_in_brackets_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "[bold].jsonl"
    path.write_text('{"prompt": "hello"}')
    assert bench(*SMALL, "--dataset", str(path)) == 0
    assert "[bold].jsonl" in capsys.readouterr().out
    assert bench(*SMALL, "--dataset", "[/x]") == 2
    assert "[/x]" in capsys.readouterr().err
