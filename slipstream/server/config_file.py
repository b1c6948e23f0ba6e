"""A configuration file: the command's own flags, as keys. What stands on the command line goes before it."""

from __future__ import annotations

import argparse
import difflib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.config import SettingError

SUFFIXES = (".toml", ".yaml", ".yml")
NOT_IN_FILES = ("config", "help")


def with_config_file(arguments: Sequence[str], parser: argparse.ArgumentParser, name: str) -> list[str]:
    """The arguments of a command with those of a file put before them, so that the later ones win.

    Args:
        arguments: what follows the command on the command line. parser: the command's.

    Raises:
        SettingError: the file cannot be read, or holds a key that is no flag.
    """
    actions = _actions(parser)
    given = {
        action.dest
        for argument in arguments
        if (action := actions.get(argument.partition("=")[0].removeprefix("--"))) is not None
    }
    named, _ = parser.parse_known_args(list(arguments))
    if getattr(named, "positional_model", None) is not None:
        given.add("model")
    inserted: list[str] = []
    for key, value in read_config_file(name).items():
        flag = key.replace("_", "-")
        action = actions.get(flag)
        if action is None or flag in NOT_IN_FILES or flag.startswith("no-"):
            known = [name for name in actions if name not in NOT_IN_FILES and not name.startswith("no-")]
            near = difflib.get_close_matches(flag, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; keys are the flags of {parser.prog} --help"
            raise SettingError(f"{name}: unknown key {key!r}{hint}")
        if action.dest not in given:
            inserted += _as_arguments(f"{name}: {key}", flag, action, value)
    return [*inserted, *arguments]


def read_config_file(name: str) -> dict[str, Any]:
    """The file's top-level table. Raises SettingError."""
    path = Path(name).expanduser()
    if path.suffix not in SUFFIXES:
        raise SettingError(f"--config {name} must end in {', '.join(SUFFIXES)}, which says how it is written")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"--config {name} cannot be read: {error}") from None
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise SettingError(f"--config {name} is no TOML: {error}") from None
    import yaml  # as the only one who needs it

    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingError(f"--config {name} is no YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise SettingError(f"--config {name} must be a table of flags and values, such as 'port: 8000'")
    return content


def _actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Flag without dashes -> what it does."""
    return {option.removeprefix("--"): action for action in parser._actions for option in action.option_strings}


def _as_arguments(where: str, flag: str, action: argparse.Action, value: Any) -> list[str]:
    """`--flag value`, or what stands for it."""
    if action.nargs == 0:  # a switch
        if not isinstance(value, bool):
            raise SettingError(f"{where} must be true or false, got {value!r}")
        if isinstance(action, argparse.BooleanOptionalAction):
            return [f"--{flag}" if value else f"--no-{flag}"]
        return [f"--{flag}"] if value else []
    if value is None:
        raise SettingError(f"{where} has no value; leave the key out, or give it one")
    if isinstance(value, dict):
        return [f"--{flag}={json.dumps(value)}"]
    is_repeatable = isinstance(action, argparse._AppendAction)
    values = value if isinstance(value, list) else [value]
    if len(values) != 1 and not is_repeatable:
        raise SettingError(f"{where} takes one value, got {len(values)}")
    for item in values:
        if isinstance(item, bool | dict | list):
            raise SettingError(f"{where} takes text or numbers, got {json.dumps(item)}")
    return [f"--{flag}={item}" for item in values]
