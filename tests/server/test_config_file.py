"""`--config`: the same flags in a file, the command line first, and nothing misspelt taken."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli import BAD_USAGE, build_parser, main
from slipstream.config import SettingError, Settings
from slipstream.server.config_file import with_config_file
from slipstream.server.flags import options_from_args
from slipstream.server.options import ServerOptions
from slipstream.server.serve import check_tls, url_of

TOML = """
model = "smollm2-135m-instruct"
port = 9000
max_num_seqs = 4
enable-prefix-caching = false
open_metrics = true
api-key = ["sk-a", "sk-b"]
shutdown_timeout = 12.5

[speculative_config]
method = "ngram"
num_speculative_tokens = 3
"""
YAML = """
model: smollm2-135m-instruct
port: 9000
max_num_seqs: 4
enable-prefix-caching: false
open_metrics: true
api-key: [sk-a, sk-b]
shutdown_timeout: 12.5
speculative_config: {method: ngram, num_speculative_tokens: 3}
"""


def serve_parser() -> argparse.ArgumentParser:
    found = build_parser("serve")._subparsers._group_actions[0].choices["serve"]  # type: ignore[union-attr,index,call-overload]
    assert isinstance(found, argparse.ArgumentParser)
    return found


def parsed(path: Path, *arguments: str) -> argparse.Namespace:
    parser = serve_parser()
    return parser.parse_args(with_config_file(list(arguments), parser, str(path)))


@pytest.mark.parametrize(("name", "text"), [("a.toml", TOML), ("a.yaml", YAML), ("a.yml", YAML)])
def test_keys_are_flags(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    args = parsed(tmp_path / name)
    assert (args.model, args.port, args.max_num_seqs) == ("smollm2-135m-instruct", 9000, 4)
    assert args.enable_prefix_caching is False and args.open_metrics is True
    assert args.speculative_config == '{"method": "ngram", "num_speculative_tokens": 3}'
    options = options_from_args(args)
    assert options.api_keys == ("sk-a", "sk-b") and options.shutdown_timeout_s == 12.5


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TOML)
    args = parsed(
        tmp_path / "a.toml",
        "other-model",
        "--port=1",
        "--enable-prefix-caching",
        "--api-key",
        "sk-c",
        "--max-num-seqs",
        "9",
    )
    assert (args.positional_model, args.model, args.port, args.max_num_seqs) == ("other-model", None, 1, 9)
    assert args.enable_prefix_caching is True and args.api_key == ["sk-c"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.toml", "prot = 1", ["unknown key 'prot'", "did you mean 'port'"]),
        ("a.toml", "max_num_sqs = 1", ["did you mean 'max-num-seqs'"]),
        ("a.toml", "config = 'b.toml'", ["unknown key 'config'"]),
        ("a.toml", "help = true", ["unknown key 'help'"]),
        ("a.toml", "no-access-log = true", ["unknown key"]),
        ("a.toml", "zzzzzzzzzzzzzzzz = true", ["unknown key", "--help"]),
        ("a.toml", "port = [1, 2]", ["port takes one value, got 2"]),
        ("a.toml", "port = true", ["port takes text or numbers"]),
        ("a.toml", "open_metrics = 'yes'", ["open_metrics must be true or false"]),
        ("a.toml", "port = ", ["no TOML"]),
        ("a.toml", "port = 1\nport = 2", ["no TOML"]),
        ("a.yaml", "port: [", ["no YAML"]),
        ("a.yaml", "- port", ["must be a table"]),
        ("a.yaml", "8000: port", ["must be a table"]),
        ("a.yaml", "port:", ["port has no value"]),
        ("a.yaml", "port: !!python/object/apply:os.system ['true']", ["no YAML"]),
        ("a.json", "{}", [".toml", ".yaml"]),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, name: str, text: str, words: list[str]) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SettingError) as refusal:
        parsed(tmp_path / name)
    assert all(word in str(refusal.value) for word in words), refusal.value


def test_empty_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("# nothing yet\n")
    assert parsed(tmp_path / "a.yaml").port == 8000
    with pytest.raises(SettingError, match="cannot be read"):
        parsed(tmp_path / "none.toml")


def test_a_bad_value_is_refused_as_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.toml").write_text("port = 'many'")
    with pytest.raises(SystemExit):
        parsed(tmp_path / "a.toml")
    assert "--port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"port": 70000}, "--port 70000"),
        ({"shutdown_timeout_s": -1.0}, "--shutdown-timeout"),
        ({"shutdown_timeout_s": float("nan")}, "--shutdown-timeout"),
        ({"ssl_certfile": "a.pem"}, "--ssl-keyfile"),
        ({"root_path": "llm/"}, "use '/llm'"),
        ({"allowed_origins": ("example.com",)}, "https://chat.example.com"),
        ({"otlp_traces_endpoint": "collector:4317"}, "http://localhost:4318/v1/traces"),
    ],
)
def test_options_that_cannot_work_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError) as refusal:
        ServerOptions(**values).check()
    assert words in str(refusal.value)


def test_tls_files_are_tried_before_anything_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("no certificate")
    for name in ("cert.pem", "missing.pem"):
        with pytest.raises(SettingError, match="--ssl-certfile"):
            check_tls(ServerOptions(ssl_certfile=str(tmp_path / name), ssl_keyfile=str(tmp_path / name)))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_tls_files_that_fit_are_taken(tmp_path: Path) -> None:
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout {key} -out {cert}"
    subprocess.run(command.split(), check=True, capture_output=True)
    options = ServerOptions(ssl_certfile=cert, ssl_keyfile=key)
    options.check()
    check_tls(options)
    assert url_of(options, 8443) == "https://127.0.0.1:8443"
    with pytest.raises(SettingError, match="--ssl-certfile"):
        check_tls(ServerOptions(ssl_certfile=key, ssl_keyfile=cert))


def test_the_command_reads_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken: list[tuple[Settings, ServerOptions]] = []
    monkeypatch.setattr("slipstream.server.logs.configure_logging", lambda *arguments: None)
    monkeypatch.setattr(
        "slipstream.server.serve.serve", lambda settings, options, record: taken.append((settings, options))
    )
    file = tmp_path / "a.toml"
    file.write_text(TOML)
    assert main(["serve", "--config", str(file), "--port", "1"]) == 0
    ((settings, options),) = taken
    assert (settings.scheduler.max_num_seqs, options.port, options.open_metrics) == (4, 1, True)
    assert settings.speculative is not None and settings.speculative.num_drafts == 3
    file.write_text("prot = 1")
    assert main(["serve", "--config", str(file)]) == BAD_USAGE
    assert "did you mean 'port'" in capsys.readouterr().err and len(taken) == 1
