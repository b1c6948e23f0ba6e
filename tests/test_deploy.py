"""The files under deploy/ say what this release understands."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import tomllib
from pathlib import Path

from slipstream.cli import build_parser
from slipstream.server.config_file import with_config_file
from slipstream.server.flags import options_from_args
from slipstream.server.options import ServerOptions

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"


def options_of(arguments: list[str]) -> ServerOptions:
    args = build_parser("serve").parse_args(arguments)
    if args.config is not None:
        file = DEPLOY / Path(args.config).name
        args = build_parser("serve").parse_args(
            ["serve", *with_config_file(arguments[1:], args.command_parser, str(file))]
        )
    return options_from_args(args)


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read_string((DEPLOY / "slipstream.service").read_text(encoding="utf-8"))
    return parser


def test_the_unit_starts_the_server_with_the_example_file() -> None:
    service = unit()["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert program.endswith("/slipstream")
    options = options_of(arguments)
    assert options.port == 8000 and options.log_format == "json"
    assert float(service["TimeoutStopSec"]) > options.shutdown_timeout_s, "systemd must not kill what still drains"
    assert service["Type"] == "notify" and service["KillSignal"] == "SIGTERM"
    assert float(service["WatchdogSec"]) > options.stuck_step_s


def test_the_image_starts_the_server() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    match = re.search(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)
    assert match is not None
    program, *arguments = json.loads(match[1])
    assert program == "/opt/slipstream/bin/slipstream"
    assert options_of(arguments).host == "0.0.0.0"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert "[otel]" in text and "otel" in extras
    for source in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        for name in source.split():
            assert (ROOT / name).exists(), name
    assert re.search(r"^USER (?!root)", text, re.MULTILINE)
