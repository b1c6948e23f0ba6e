"""Where API keys come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from slipstream.config import SettingError

KEYS_VARIABLE = "SLIPSTREAM_API_KEY"


def read_api_keys(given: Sequence[str], files: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The keys of `--api-key`, of every line of `--api-key-file` (# begins a comment), and of the environment's
    SLIPSTREAM_API_KEY (separated by blanks), each once. Raises SettingError; never with a key in it.
    """
    keys = list(given)
    for name in files:
        try:
            lines = Path(name).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(f"--api-key-file {name} cannot be read: {error}") from None
        found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not found:
            raise SettingError(f"--api-key-file {name} holds no key; write one per line")
        keys += found
    keys += environment.get(KEYS_VARIABLE, "").split()
    for number, key in enumerate(keys, start=1):
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise SettingError(
                f"API key {number} of {len(keys)} is empty, or holds blanks or characters that no HTTP header can; "
                "use printable ASCII without blanks"
            )
    return tuple(dict.fromkeys(keys))
