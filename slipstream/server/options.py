"""ServerOptions: what is decided about the server itself, apart from the engine behind it."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.config import SettingError

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
DEFAULT_PORT = 8000
DEFAULT_SHUTDOWN_TIMEOUT_S = 30.0
MAX_SECONDS = 86400
MAX_LIMIT = 1 << 40


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """When requests are turned away; None is no limit.

    Attributes:
        max_queued_requests: choices that may wait beside those that have a seat.
        max_queued_tokens: prompt tokens of requests that have not begun to run.
        max_requests_per_key: unfinished requests of one API key.
    """

    max_queued_requests: int | None = None
    max_queued_tokens: int | None = None
    max_requests_per_key: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Each is a flag of the same name with dashes.

    Attributes:
        strict: unknown fields of requests are refused, not noted in the answer.
        api_keys: any of them opens the server; none means that nobody is asked. Never shown.
        open_metrics: `/metrics` is answered without a key.
        shutdown_timeout_s: on SIGTERM, how long unfinished answers may go on.
        allowed_origins: of browsers' pages that may call the API (CORS); "*" is all.
        root_path: what a proxy in front puts before every path, such as "/llm".
        access_log: a line per answered request.
        otlp_traces_endpoint: where OpenTelemetry spans are sent; None sends none.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    seed: int | None = None
    stuck_step_s: float = 60.0
    strict: bool = False
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    open_metrics: bool = False
    limits: QueueLimits = field(default_factory=QueueLimits)
    shutdown_timeout_s: float = DEFAULT_SHUTDOWN_TIMEOUT_S
    allowed_origins: tuple[str, ...] = ()
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    root_path: str = ""
    log_format: str = "text"
    log_level: str = "info"
    access_log: bool = True
    otlp_traces_endpoint: str | None = None

    def check(self) -> None:
        """Refuse what cannot work. Raises SettingError that names the flag, the value and what works."""
        if not 0 <= self.port <= 65535:
            raise SettingError(f"--port {self.port} is not a port; use 0 (any free one) to 65535")
        if not 0 < self.stuck_step_s <= MAX_SECONDS:
            raise SettingError(f"--stuck-step-s must be above 0 and at most {MAX_SECONDS}, got {self.stuck_step_s}")
        if not 0 <= self.shutdown_timeout_s <= MAX_SECONDS:
            raise SettingError(
                f"--shutdown-timeout must be 0 (end answers at once) to {MAX_SECONDS}, got {self.shutdown_timeout_s}"
            )
        for flag, limit, least in (
            ("--max-queued-requests", self.limits.max_queued_requests, 0),
            ("--max-queued-tokens", self.limits.max_queued_tokens, 1),
            ("--max-requests-per-key", self.limits.max_requests_per_key, 1),
        ):
            if limit is not None and not least <= limit <= MAX_LIMIT:
                raise SettingError(f"{flag} must be {least} to {MAX_LIMIT}, got {limit}; leave it out for no limit")
        if self.limits.max_requests_per_key is not None and not self.api_keys:
            raise SettingError("--max-requests-per-key needs keys to tell clients apart; give --api-key too")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise SettingError("--ssl-certfile and --ssl-keyfile belong together; give both")
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            nearest = "/" + self.root_path.strip("/")
            raise SettingError(f"--root-path {self.root_path!r} must begin with / and not end with it; use {nearest!r}")
        for origin in self.allowed_origins:
            if origin != "*" and not origin.startswith(("http://", "https://")):
                raise SettingError(
                    f"--allowed-origin {origin!r} is no origin; write it like https://chat.example.com, or * for all"
                )
        endpoint = self.otlp_traces_endpoint
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise SettingError(
                f"--otlp-traces-endpoint {endpoint!r} is no URL; write it like http://localhost:4318/v1/traces"
            )
