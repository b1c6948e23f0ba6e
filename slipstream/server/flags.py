"""The flags of `slipstream serve` that are not the engine's. Nothing heavy is imported here."""

from __future__ import annotations

import argparse
import os

from slipstream.server.api_keys import KEYS_VARIABLE, read_api_keys
from slipstream.server.options import (
    DEFAULT_PORT,
    DEFAULT_SHUTDOWN_TIMEOUT_S,
    LOG_FORMATS,
    LOG_LEVELS,
    QueueLimits,
    ServerOptions,
)


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Address, keys, limits, shutdown, TLS, logs, traces."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 is all (default: this machine only)"
    )
    group.add_argument("--port", type=int, default=DEFAULT_PORT, help=f"0 takes any free one (default: {DEFAULT_PORT})")
    group.add_argument("--seed", type=int, help="makes the seeds drawn for requests without one repeatable")
    group.add_argument("--root-path", default="", metavar="PATH", help="what a proxy puts before every path")
    group.add_argument(
        "--stuck-step-s",
        type=float,
        default=60.0,
        metavar="S",
        help="a step longer than this makes /health answer 503 (default: 60)",
    )
    group.add_argument(
        "--strict",
        action="store_true",
        help="refuse requests with unknown fields, instead of naming them in the answer's warnings",
    )
    group.add_argument(
        "--shutdown-timeout",
        type=float,
        default=DEFAULT_SHUTDOWN_TIMEOUT_S,
        metavar="S",
        help=f"on SIGTERM, how long answers may go on (default: {DEFAULT_SHUTDOWN_TIMEOUT_S:g}; 0 ends them at once)",
    )
    group.add_argument(
        "--config", metavar="FILE", help=".toml or .yaml file with flags as keys; the command line goes before it"
    )
    _add_access_arguments(parser)
    _add_overload_arguments(parser)
    _add_observation_arguments(parser)


def _add_access_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("access")
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help=f"a key that clients must send; repeatable. Others on this machine can see it: prefer a file or the "
        f"variable {KEYS_VARIABLE}",
    )
    group.add_argument(
        "--api-key-file", action="append", default=[], metavar="FILE", help="keys, one per line; repeatable"
    )
    group.add_argument("--open-metrics", action="store_true", help="answer /metrics without a key")
    group.add_argument(
        "--allowed-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of this origin call the API from browsers; repeatable, * is all (default: none)",
    )
    group.add_argument("--ssl-certfile", metavar="FILE", help="TLS certificate chain, PEM")
    group.add_argument("--ssl-keyfile", metavar="FILE", help="its private key, PEM")


def _add_overload_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("overload")
    for flag, text in (
        ("--max-queued-requests", "requests that may wait beside those with a seat; more get 503 (default: no limit)"),
        ("--max-queued-tokens", "prompt tokens that may wait to run; more get 503 (default: no limit)"),
        ("--max-requests-per-key", "unfinished requests of one API key; more get 429 (default: no limit)"),
    ):
        group.add_argument(flag, type=int, metavar="N", help=text)


def _add_observation_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("logs and traces")
    group.add_argument("--log-format", choices=LOG_FORMATS, default="text", help="json is one object a line")
    group.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="(default: info)")
    group.add_argument(
        "--access-log",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="a line per answered request, but for probes and metrics (default: on)",
    )
    group.add_argument(
        "--otlp-traces-endpoint", metavar="URL", help="send OpenTelemetry spans there, as OTLP over HTTP"
    )


def options_from_args(args: argparse.Namespace) -> ServerOptions:
    """Checked options. Raises SettingError."""
    options = ServerOptions(
        host=args.host,
        port=args.port,
        seed=args.seed,
        stuck_step_s=args.stuck_step_s,
        strict=args.strict,
        api_keys=read_api_keys(args.api_key, args.api_key_file, os.environ),
        open_metrics=args.open_metrics,
        limits=QueueLimits(args.max_queued_requests, args.max_queued_tokens, args.max_requests_per_key),
        shutdown_timeout_s=args.shutdown_timeout,
        allowed_origins=tuple(args.allowed_origin),
        ssl_certfile=args.ssl_certfile,
        ssl_keyfile=args.ssl_keyfile,
        root_path=args.root_path,
        log_format=args.log_format,
        log_level=args.log_level,
        access_log=args.access_log,
        otlp_traces_endpoint=args.otlp_traces_endpoint,
    )
    options.check()
    return options
