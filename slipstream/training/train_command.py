"""`slipstream train`: dialogues, target states, training, and a drafter in a folder."""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.config import EMBEDDED_MODEL, SettingError
from slipstream.training.target_arguments import add_target_arguments, target_settings

if TYPE_CHECKING:
    from slipstream.engine.llm import LLM
    from slipstream.training.held_out import HeldOutFigures
    from slipstream.training.settings import Recipe
    from slipstream.training.train_bar import StageBar
    from slipstream.training.train_run import TrainRun

STAGES = ("data", "states", "train")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `slipstream train`."""
    parser.add_argument("model", nargs="?", default=EMBEDDED_MODEL, metavar="MODEL", help="the target, as for serve")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="of the run; one that was ended goes on")
    parser.add_argument("--recipe", metavar="FILE", help="TOML file; without one, the defaults")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="change one value of the recipe; repeatable",
    )
    parser.add_argument(
        "--prompts",
        action="append",
        default=[],
        metavar="FILE[=SHARE]",
        help="prompts of your own, JSONL, and their share beside the recipe's kinds (default: 0.5); repeatable",
    )
    parser.add_argument(
        "--data",
        action="append",
        metavar="FOLDER",
        help="dialogues of another run, instead of making them; repeatable",
    )
    parser.add_argument(
        "--start", metavar="FOLDER", help="a drafter to train on, instead of a new one; its draft vocabulary stays"
    )
    parser.add_argument(
        "--states", metavar="FOLDER", help="target states of another run with the same dialogues and tapped layers"
    )
    parser.add_argument("--until", choices=STAGES, default="train", help="end after this stage (default: train)")
    parser.add_argument("--until-step", type=int, metavar="N", help="end after so many steps; a later call goes on")
    add_target_arguments(parser)
    parser.add_argument("--no-progress", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Returns 0; 1 when training fails; 2 for a model or data that cannot be used. Raises SettingError."""
    from slipstream.training.recipe_file import read_recipe

    recipe = read_recipe(None if args.recipe is None else Path(args.recipe), _changes(args.set))
    recipe = _with_prompts(recipe, args.prompts)
    if args.until_step is not None and args.until_step < 1:
        raise SettingError(f"--until-step must be at least 1, got {args.until_step}")
    from slipstream.models.config import ModelLoadError
    from slipstream.training.corpus import CorpusError
    from slipstream.training.train_bar import StageBar
    from slipstream.training.trainer import DivergedError

    # Products give bfloat16, norms' weights are float32: meant, and of no cost worth a line for every run.
    warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
    try:
        with StageBar(is_shown=not args.no_progress, log=Path(args.output) / "train.log") as bar:
            return _run(args, recipe, bar)
    except (ModelLoadError, CorpusError) as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return 2
    except DivergedError as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return 1


def _run(args: argparse.Namespace, recipe: Recipe, bar: StageBar) -> int:
    from slipstream.execution.host_memory import keep_freed_memory
    from slipstream.models.loading import open_model
    from slipstream.speculation.formats.checkpoint import open_drafter_checkpoint
    from slipstream.speculation.shipped import drafter_folder
    from slipstream.training.corpus import CorpusFolder
    from slipstream.training.make_corpus import make_corpus
    from slipstream.training.target import TrainingTarget
    from slipstream.training.train_run import Progress, TrainRun

    keep_freed_memory()
    output = Path(args.output)
    source = open_model(args.model, progress=not args.no_progress)
    if args.data is None:
        total = recipe.data.num_dialogues
        dialogues = make_corpus(
            output / "data",
            recipe.data,
            source.name,
            lambda: _open_llm(args, recipe, source.config.max_position),
            lambda done: bar.report("Dialogues", min(done, total), total),
        ).read()
    else:
        dialogues = [dialogue for folder in args.data for dialogue in CorpusFolder(Path(folder)).read()]
    if args.until == "data":
        return 0
    target = TrainingTarget.load(source, target_settings(args))
    states = None if args.states is None else Path(args.states)
    start = None if args.start is None else open_drafter_checkpoint(drafter_folder(args.start))
    training = TrainRun(output, recipe, target, dialogues, Progress(bar.report), states, start)
    bar.say(training.in_words())
    if args.until == "states":
        return 0
    trainer = training.trainer
    end = recipe.train.num_steps

    def on_step(step: int, loss: float) -> None:
        bar.report("Training", step, end, f"loss {loss:.3f}")

    def on_held_out(step: int, figures: HeldOutFigures) -> None:
        bar.say(f"step {step}: {figures.in_words()}")
        _write_results(training)

    trainer.on_step, trainer.on_held_out = on_step, on_held_out
    first = trainer.step
    bar.report("Training", first, end)
    trainer.run(args.until_step)
    if trainer.step > first or not training.drafter_folder.is_dir():  # else it is there, and perhaps calibrated
        _write_results(training)
    bar.say(f"Drafter: {training.drafter_folder}; report: {output / 'report.html'}")
    return 0


def _write_results(training: TrainRun) -> None:
    from slipstream.training.train_report import html_of

    (training.folder / "report.html").write_text(html_of(training), encoding="utf-8")
    training.export()


def _open_llm(args: argparse.Namespace, recipe: Recipe, max_position: int) -> LLM:
    from slipstream.engine.llm import LLM

    data = recipe.data
    turns = 2 if data.second_turns else 1
    return LLM(
        args.model,
        max_num_seqs=data.max_num_seqs,
        max_model_len=min(turns * (data.max_prompt_tokens + data.max_answer_tokens) + 256, max_position),
        enable_prefix_caching=False,
        speculative_config=None,
        device=args.device,
        dtype=args.dtype,
        quantization=args.quantization,
        num_threads=args.num_threads,
    )


def _changes(given: list[str]) -> dict[str, str]:
    changes = {}
    for item in given:
        name, found, value = item.partition("=")
        if not found:
            raise SettingError(f"--set {item}: write it as section.key=value")
        changes[name.strip()] = value.strip()
    return changes


def _with_prompts(recipe: Recipe, given: list[str]) -> Recipe:
    if not given:
        return recipe
    kinds = dict(recipe.data.kinds)
    for item in given:
        path, found, share = item.rpartition("=")
        try:
            kinds[path if found else item] = float(share) if found else 0.5
        except ValueError:
            raise SettingError(f"--prompts {item}: {share!r} is no share; write FILE=0.5") from None
    return replace(recipe, data=replace(recipe.data, kinds=kinds))
