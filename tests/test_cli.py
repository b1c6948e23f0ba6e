"""The command line: instant help, bad values refused before anything is loaded, and the real thing once."""

from __future__ import annotations

import argparse
import dataclasses
import io
import re
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from slipstream.cli import BAD_USAGE, INTERRUPTED, build_parser, main
from slipstream.config import CacheSettings, ModelSettings, SchedulerSettings


def run(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)


def heavy_modules_after(*arguments: str) -> str:
    code = (
        f"import sys\nfrom slipstream.cli import main\ntry:\n    main({list(arguments)!r})\nexcept SystemExit: pass\n"
    )
    code += "print(sorted({'torch', 'fastapi', 'numpy', 'pydantic'} & set(sys.modules)), file=sys.stderr)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["serve", "--help"], ["serve", "--block-size", "0"]])
def test_nothing_heavy_is_imported_for_help_and_refusals(arguments: list[str]) -> None:
    assert heavy_modules_after(*arguments).strip().endswith("[]")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--max-num-sqs", "3"], ["--max-num-sqs", "did you mean '--max-num-seqs'"]),
        (["serve", "--block-size", "0"], ["--block-size", "0"]),
        (["serve", "--max-num-seqs", "many"], ["--max-num-seqs", "many"]),
        (["serve", "--dtype", "int3"], ["--dtype", "int3", "float32"]),
        (["serve", "--port", "99999"], ["--port", "99999"]),
        (["serve", "--stuck-step-s", "nan"], ["--stuck-step-s", "nan"]),
        (["serve", "--stuck-step-s", "inf"], ["--stuck-step-s", "inf", "86400"]),
        (["serve", "--stuck-step-s", "1e300"], ["--stuck-step-s", "1e+300", "86400"]),
        (["serve", "--num-threads", "9" * 26], ["--num-threads", "9" * 26]),
        (["serve", "--num-threads", "100000"], ["--num-threads", "100000", "at most"]),
        (["serve", "--model", ""], ["--model is empty"]),
        (["serve", ""], ["--model is empty"]),
        (["serve", "", "--model", "b"], ["''", "'b'"]),
        (["serve", "--port", "0", "--model", "a" * 5000], ["--model", "aaa"]),
        (["generate", "hi", "--model", ""], ["--model is empty"]),
        (["bench", "--model", ""], ["--model is empty"]),
        (["compare", "--model", ""], ["--model is empty"]),
        (["generate", "hi", "--stop", "\udcff"], ["stop", "surrogate"]),
        (["serve", "--speculative-config", '{"method": "ngram", "prompt_lookup_min": null}'], ["prompt_lookup_min"]),
        (["serve", "--speculative-config", "{"], ["--speculative-config", "JSON"]),
        (["serve", "--speculative-config", '{"method": "magic"}'], ["magic", "ngram"]),
        (["serve", "--speculative-config", '{"method": "ngram", "k": 3}'], ["'k'", "num_speculative_tokens"]),
        (["serve", "a", "--model", "b"], ["'a'", "'b'"]),
        (["serve", "/no/such/model", "--port", "0"], ["/no/such/model"]),
        (["generate", "hi", "--temperature", "-1"], ["temperature", "-1"]),
        (["generate", "hi", "--raw", "--system", "x"], ["--system", "--raw"]),
        (["generate", "hi", "--model", "/no/such/model"], ["/no/such/model"]),
        (["sing"], ["sing", "serve"]),
        ([], ["COMMAND"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_bad_usage_says_what_was_wrong(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == BAD_USAGE
    message = capsys.readouterr().err
    assert all(word in message for word in words), message
    assert "Traceback" not in message


def test_A5_impossible_budgets_name_values_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("serve", "--max-num-batched-tokens", "4", "--max-num-seqs", "8") == BAD_USAGE
    message = capsys.readouterr().err
    assert "--max-num-batched-tokens" in message and "--max-num-seqs" in message


def test_port_in_use_is_said_before_loading(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        begin = time.monotonic()
        assert run("serve", "--port", str(port)) == BAD_USAGE
        assert time.monotonic() - begin < 30
    message = capsys.readouterr().err
    assert f"--port {port}" in message and "in use" in message


@pytest.mark.parametrize("module", ["argparse", "slipstream.config", "slipstream.bench.command", "torch", "uvicorn"])
def test_ctrl_c_while_importing_is_quiet(module: str) -> None:
    """Also where the package swallows it: PyTorch goes on without NumPy, and what needs both fails later."""
    code = f"""
import signal, sys
class Interrupting:
    def find_spec(self, name, *rest):
        if name == {module!r}:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt as error:
                raise ImportError("interrupted")
sys.meta_path.insert(0, Interrupting())
sys.modules.pop({module!r}, None)
sys.argv = ["slipstream", {"bench" if "bench" in module else "serve"!r}, "--port", "0", "--model", "/no/such/model"]
from slipstream.__main__ import run
raise SystemExit(run())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (INTERRUPTED, "")


@pytest.mark.parametrize("command", ["bench", "compare", "serve", "generate"])
def test_ctrl_c_during_start_up_is_quiet(command: str) -> None:
    arguments = [command, *(["hi"] if command == "generate" else []), "--model", "/no/such/model"]
    # Until the interpreter has found its own modules a signal is its to answer, with 1 and a traceback.
    code = "print('begun', flush=True)\nfrom slipstream.__main__ import run\nraise SystemExit(run())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    time.sleep(0.4)
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=30)
    # It had ended by then, or the interpreter was ending and took the signal's own way out, which shells call 130 too.
    assert process.returncode in (INTERRUPTED, BAD_USAGE, -signal.SIGINT) and "Traceback" not in shown


def test_other_errors_are_not_swallowed() -> None:
    code = "import slipstream.cli\ndef main(): raise OSError('disk')\nslipstream.cli.main = main\n"
    code += "from slipstream.__main__ import run\nrun()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "OSError: disk" in done.stderr


def test_every_setting_has_a_flag() -> None:
    serve = build_parser("serve")._subparsers._group_actions[0].choices["serve"]  # type: ignore[union-attr,index,call-overload]
    assert isinstance(serve, argparse.ArgumentParser)
    flags = {option for action in serve._actions for option in action.option_strings}
    names = [
        field.name for kind in (ModelSettings, CacheSettings, SchedulerSettings) for field in dataclasses.fields(kind)
    ]
    assert [name for name in names if f"--{name.replace('_', '-')}" not in flags] == []
    assert "--no-enable-prefix-caching" in flags and "--num-gpu-blocks-override" in flags


@pytest.mark.model
@pytest.mark.slow
def test_generate_streams_and_reports(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Name a colour."))
    assert run("generate", "-", "--max-tokens", "6", "--temperature", "0", "--num-kv-blocks", "64") == 0
    captured = capsys.readouterr()
    assert captured.out.strip() and "tokens" in captured.err.splitlines()[-1]


@pytest.mark.model
@pytest.mark.slow
def test_serve_answers_and_stops_cleanly() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "slipstream.cli", "serve", "--port", str(port), "--num-kv-blocks", "64"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("Ready:"):
                break
        log = "".join(lines)
        # P11: one line says whether it speculates, how, and how much.
        said = re.search(r"Speculation: on, method (\w+), K = (\d+)", log)
        assert said is not None and "max_num_seqs" in log and process.poll() is None, log
        body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 5}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=60)
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] <= 5
        models = httpx.get(f"http://127.0.0.1:{port}/v1/models").json()["data"]
        assert models[0]["speculation"] == {"method": said[1], "num_speculative_tokens": int(said[2])}
        rows = {row["name"]: row for row in httpx.get(f"http://127.0.0.1:{port}/v1/config").json()["settings"]}
        assert {"model", "dtype", "max_num_seqs", "draft_budget", "speculation"} <= set(rows)
        assert rows["speculative_config"]["source"] == "default" and rows["speculative_config"]["reason"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
