"""HttpProtocol: uvicorn's HTTP/1.1 over h11, whose one answer of its own has the API's shape too."""

from __future__ import annotations

import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from slipstream.server.errors import INVALID_REQUEST, error_body


class HttpProtocol(H11Protocol):
    """Answers what is no HTTP with an error object instead of plain text."""

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn when the bytes of a request cannot be read; the connection ends with it."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # otherwise an answer has begun, and just ends
            body = json.dumps(error_body(msg, INVALID_REQUEST, code="invalid_http")).encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
            ]
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
