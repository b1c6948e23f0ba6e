"""The command line. Heavy imports wait until a command runs, so that `--help` and `--version` are instant."""

from __future__ import annotations

import argparse
import difflib
import importlib
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from slipstream.config import AUTO_COSTS, EMBEDDED_MODEL, SettingError, Settings
from slipstream.engine.flags import add_engine_arguments, add_record_arguments, record_to, settings_from_args
from slipstream.request import RequestError
from slipstream.server.flags import add_server_arguments, options_from_args
from slipstream.version import __version__

BAD_USAGE = 2
FAILED = 1
INTERRUPTED = 130


LAB_COMMANDS: dict[str, tuple[str, str]] = {
    "profile": ("slipstream.lab.profile_command", "Measure what steps cost here, and keep it as a cost table."),
    "replay": ("slipstream.lab.replay_command", "Put a recorded run to the scheduler again, or to other settings."),
    "explain": ("slipstream.lab.explain_command", "Say why each request got what it got in a recorded step."),
    "simulate": ("slipstream.lab.simulate_command", "Run a scenario on a modelled machine, in virtual time."),
    "tune": ("slipstream.lab.tune_command", "Search settings for a scenario or a recording, within limits."),
    "train": ("slipstream.training.train_command", "Train a DSpark or DFlash drafter for a model."),
    "calibrate": ("slipstream.training.calibrate_command", "Fit a drafter's confidences to what the target accepts."),
    "evaluate": ("slipstream.training.evaluate_command", "Measure a drafter on prompt sets: acceptance and speed."),
    "doctor": ("slipstream.engine.doctor_command", "Say what this machine has, and how a model would run on it."),
    "card": ("slipstream.training.card_command", "Write a drafter's model card from its record and its measurements."),
}
"""Command -> the module that has its `add_arguments(parser)` and `run(args) -> int`, and its line in `--help`."""


class _Parser(argparse.ArgumentParser):
    """Exits with 2 and one line that says what was wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_USAGE, f"{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; gives the exit status."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except (SettingError, RequestError) as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return BAD_USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED


def _run(arguments: list[str]) -> int:
    parser = build_parser(arguments[0] if arguments else None)
    if not arguments:
        parser.print_help(sys.stderr)
        return BAD_USAGE
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(_unknown_flag(unknown[0], args.command_parser))
    if getattr(args, "config", None) is not None and args.run is _serve:
        from slipstream.server.config_file import with_config_file

        added = with_config_file(arguments[1:], args.command_parser, args.config)
        args = parser.parse_args([arguments[0], *added])
    args.command_line = shlex.join(["slipstream", *arguments])  # figures that are kept say what made them
    command: Callable[[argparse.Namespace], int | None] = args.run
    return command(args) or 0


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser; flags of `bench` and `compare` are there only when that is the command."""
    parser = _Parser(prog="slipstream", description="A small LLM server with speculative decoding.")
    parser.add_argument("--version", action="version", version=f"slipstream {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, text: str, run: Callable[[argparse.Namespace], int | None]) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        added.set_defaults(run=run, command_parser=added)
        return added

    serve = add("serve", "Start an OpenAI-compatible HTTP server.", _serve)
    _add_model_arguments(serve)
    add_engine_arguments(serve)
    add_server_arguments(serve)
    add_record_arguments(serve)
    generate = add("generate", "Answer one prompt in the terminal.", _generate)
    generate.add_argument("prompt", help="the prompt; - reads it from standard input")
    _add_generate_arguments(generate)
    generate.add_argument("--model", default=EMBEDDED_MODEL, metavar="MODEL", help=_MODEL_HELP)
    add_engine_arguments(generate)
    bench = add("bench", "Measure a server, or an engine in this process.", _bench)
    compare = add("compare", "Run the same requests under two settings and compare.", _compare)
    if command == "bench":
        from slipstream.bench.command import add_bench_arguments

        add_bench_arguments(bench)
    elif command == "compare":
        from slipstream.bench.command import add_compare_arguments

        add_compare_arguments(compare)
    for name, (module_name, text) in LAB_COMMANDS.items():
        module = importlib.import_module(module_name) if command == name else None
        added = add(name, text, module.run if module is not None else _nothing)
        if module is not None:
            module.add_arguments(added)
    return parser


def _nothing(args: argparse.Namespace) -> int:
    """Stands for a command that was not asked for; its module is not imported."""
    raise AssertionError("this parser was built for another command")


_MODEL_HELP = f"{EMBEDDED_MODEL} (fetched once), a .gguf file, or a Hugging Face directory"


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("positional_model", nargs="?", metavar="MODEL", help=_MODEL_HELP)
    parser.add_argument("--model", metavar="MODEL", help="the same, as a flag")
    parser.add_argument("--served-model-name", metavar="NAME", help="what clients call the model")


def _add_generate_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("generation")
    group.add_argument("--raw", action="store_true", help="continue the prompt as it is, without the chat template")
    group.add_argument("--system", metavar="TEXT", help="system message")
    group.add_argument("--max-tokens", type=int, metavar="N", help="output tokens at most (default: up to the limit)")
    for flag, kind, text in (
        ("--temperature", float, "0 is greedy (default: 1)"),
        ("--top-p", float, "keep the likeliest tokens up to this probability"),
        ("--top-k", int, "keep this many tokens"),
        ("--min-p", float, "drop tokens less likely than this times the likeliest"),
        ("--seed", int, "the same seed gives the same text"),
    ):
        group.add_argument(flag, type=kind, default=argparse.SUPPRESS, help=text)
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable")


def _serve(args: argparse.Namespace) -> int | None:
    if None not in (args.positional_model, args.model) and args.positional_model != args.model:
        raise SettingError(f"two models are named, {args.positional_model!r} and --model {args.model!r}; name one")
    served = {"cost_table": AUTO_COSTS}
    if args.served_model_name is not None:
        served["served_model_name"] = args.served_model_name
    model = EMBEDDED_MODEL if args.model is None else args.model
    settings = settings_from_args(args, model if args.positional_model is None else args.positional_model, served)
    options = options_from_args(args)
    _check(settings)
    record = record_to(args)
    from slipstream.server.logs import configure_logging

    configure_logging(options.log_format, options.log_level)
    from slipstream.server.serve import serve

    return _explaining(lambda: serve(settings, options, record=record))


def _generate(args: argparse.Namespace) -> int | None:
    settings = settings_from_args(args, args.model)
    _check(settings)
    from slipstream.request import SamplingParams

    given = vars(args)
    chosen = {name: given[name] for name in ("temperature", "top_p", "top_k", "min_p", "seed") if name in given}
    sampling = SamplingParams(max_tokens=args.max_tokens, stop=tuple(args.stop), **chosen)
    if args.raw and args.system is not None:
        raise SettingError("--system needs the chat template; leave out --raw")
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    from slipstream.engine.generate_command import generate

    return _explaining(lambda: generate(settings, prompt, sampling, raw=args.raw, system=args.system))


def _explaining(run: Callable[[], None]) -> int:
    """Run what loads a model; its expected failures become one line each."""
    from slipstream.engine.engine import EngineDeadError
    from slipstream.engine.llm import GenerationError
    from slipstream.models.config import ModelLoadError

    try:
        run()
    except ModelLoadError as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return BAD_USAGE
    except (GenerationError, EngineDeadError) as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return FAILED
    return 0


def _bench(args: argparse.Namespace) -> int | None:
    from slipstream.bench.command import run_bench

    return run_bench(args)


def _compare(args: argparse.Namespace) -> int | None:
    from slipstream.bench.command import run_compare

    return run_compare(args)


def _check(settings: Settings) -> None:
    """Refuse what can be refused before torch is imported."""
    from slipstream.config import check_settings

    check_settings(settings)


def _unknown_flag(flag: str, parser: argparse.ArgumentParser) -> str:
    name = flag.partition("=")[0]
    known = [option for action in parser._actions for option in action.option_strings]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f"unknown argument {name!r}" + (f"; did you mean {near[0]!r}?" if near else f"; see {parser.prog} --help")


if __name__ == "__main__":
    raise SystemExit(main())
