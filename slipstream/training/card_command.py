"""`slipstream card`: write a drafter's model card into its folder."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from slipstream.config import EMBEDDED_MODEL, SettingError

CARD = "README.md"
EMBEDDED_LICENCE = "Apache-2.0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `slipstream card`."""
    parser.add_argument("drafter", metavar="FOLDER", help=f"a dspark or dflash drafter; {CARD} is written there")
    parser.add_argument("--training", metavar="FOLDER", help="of its run: for counts of its data, and its time")
    parser.add_argument(
        "--data",
        action="append",
        metavar="FOLDER",
        help="of its dialogues, if they are not the run's own; repeatable",
    )
    parser.add_argument(
        "--evaluation",
        action="append",
        default=[],
        metavar="FILE",
        help="what `slipstream evaluate --json` wrote; repeatable",
    )
    parser.add_argument(
        "--licence", metavar="NAME", help=f"of the target, as SPDX names it (of {EMBEDDED_MODEL}: {EMBEDDED_LICENCE})"
    )
    parser.add_argument(
        "--note", action="append", default=[], metavar="TEXT", help="a line on licences, of a prompt file; repeatable"
    )


def run(args: argparse.Namespace) -> int:
    """Returns 0; 2 for a drafter or data that cannot be read. Raises SettingError."""
    from slipstream.models.config import ModelLoadError
    from slipstream.speculation.formats.checkpoint import open_drafter_checkpoint
    from slipstream.training.card import write_card
    from slipstream.training.corpus import CorpusError
    from slipstream.training.run_record import read_run

    folder = None if args.training is None else Path(args.training)
    data = [] if folder is None else [folder / "data"]
    if args.data is not None:
        data = [Path(path) for path in args.data]
    evaluations = [_evaluation(path) for path in args.evaluation]
    try:
        checkpoint = open_drafter_checkpoint(Path(args.drafter))
        record = read_run(folder, data) if data else None
    except (ModelLoadError, CorpusError) as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return 2
    licence = args.licence
    if licence is None and checkpoint.config.target.name == EMBEDDED_MODEL:
        licence = EMBEDDED_LICENCE
    text = write_card(checkpoint.config, run=record, evaluations=evaluations, licence=licence, notes=args.note)
    part = checkpoint.directory / f"{CARD}.part"
    part.write_text(text, encoding="utf-8")
    part.replace(checkpoint.directory / CARD)
    print(checkpoint.directory / CARD)
    return 0


def _evaluation(path: str) -> dict[str, Any]:
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingError(f"--evaluation {path}: cannot be read ({error})") from None
    if not isinstance(values, dict) or not {"command", "model", "as_served", "sets", "means"} <= values.keys():
        raise SettingError(f"--evaluation {path}: this is not what `slipstream evaluate --json` writes")
    return values
