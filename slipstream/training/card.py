"""A drafter's model card, as Markdown: what its own record and the files of measurements say, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from slipstream.config import EMBEDDED_MODEL
from slipstream.speculation.drafter_config import Algorithm, DrafterConfig, MarkovKind, RowLayout
from slipstream.training.run_record import DialogueCount, RunRecord

ALGORITHM_NAMES = {Algorithm.DSPARK: "DSpark", Algorithm.DFLASH: "DFlash"}
_KIND_WORDS = {
    "chat": "Prompts of the kind `chat` were written for Slipstream.",
    "arithmetic": "Prompts of the kind `arithmetic` were written for Slipstream.",
    "code": "Prompts of the kind `code` are signatures and docstrings of Python's standard library (PSF licence), and "
    "short tasks that were written for Slipstream.",
    "self": "Prompts of the kind `self` were written by the target.",
}
_DROP_WORDS = {
    "looping": "answers cut at a loop",
    "repetitive": "dialogues dropped because they repeat themselves",
    "short": "dialogues dropped as too short",
    "bad_user_turn": "turns that the target wrote as the user and that did not come out",
    "long_prompt": "prompts left out as too long",
}


def write_card(
    config: DrafterConfig,
    *,
    run: RunRecord | None = None,
    evaluations: Sequence[Mapping[str, Any]] = (),
    licence: str | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The card.

    Args:
        run: of its data and time. evaluations: what `slipstream evaluate --json` wrote.
        licence: of the target, as SPDX names it. notes: further lines on licences, of prompt files for example.
    """
    record = config.training
    recipe = _section(record, "recipe")
    data = _section(recipe, "data")
    held_out = record.get("held_out")
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": _number, "cell": _cell, "counts": _counts}
    template = (files("slipstream.training") / "page" / "card.md").read_text(encoding="utf-8")
    target = config.target.name or "its target"
    # Paths of prompt files say nothing to a reader; dialogues are named after their stems.
    kinds = {name if name in _KIND_WORDS else Path(name).stem: share for name, share in _section(data, "kinds").items()}
    # Dialogues of earlier runs may be of kinds that the last one did not ask for.
    others = [] if run is None else [count.name for count in run.kinds if count.name not in kinds]
    kinds |= dict.fromkeys(others, "–")
    text = environment.from_string(template).render(
        name=f"{target}-{config.algorithm.value}",
        algorithm=ALGORITHM_NAMES[config.algorithm],
        method=config.algorithm.value,
        target=target,
        model=target if target == EMBEDDED_MODEL else "MODEL",
        shape=_shape(config),
        data=data,
        kinds=kinds,
        temperatures={f"{float(t):.3g}": share for t, share in _section(data, "temperatures").items()},
        counts=None if run is None else {count.name: count for count in run.kinds} | _missing(kinds, run.kinds),
        counts_by_temperature=None if run is None else _by_temperature(data, run),
        data_lines=_data_lines(record, run),
        training_lines=_training_lines(record, recipe, run),
        held_out=held_out,
        positions=range(1, 1 + len(held_out["match"])) if held_out else (),
        evaluations=[_evaluation(values) for values in evaluations],
        calibration=record.get("calibration"),
        calibrated_by=record.get("calibrated_by"),
        limits=_limits(config, recipe),
        licence=licence,
        licence_lines=_licence_lines(config, recipe, licence, others),
        notes=list(notes),
    )
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _shape(config: DrafterConfig) -> list[tuple[str, str]]:
    sizes = {name: math.prod(shape) for name, shape in config.tensor_shapes().items() if name != "d2t"}
    rows = "row k foretells position k + 1" if config.layout is RowLayout.ANCHOR_FIRST else "masks are filled in"
    vocabulary = f"{config.draft_vocab_size} of the target's {config.vocab_size} tokens"
    heads = [f"Markov head ({config.markov.value}, rank {config.markov_rank})"] * (config.markov is not MarkovKind.NONE)
    heads += ["confidence head"] * config.has_confidence
    identity = config.target
    return [
        ("drafts per block", f"{config.max_draft_tokens} at most (blocks of {config.block_size} rows; {rows})"),
        ("layers", f"{config.num_layers}, of width {config.hidden_size}"),
        ("reads", f"outputs of target layers {', '.join(map(str, config.target_layer_ids))}, counted from 0"),
        ("vocabulary", vocabulary if config.has_reduced_vocabulary else f"the target's {config.vocab_size} tokens"),
        ("heads", " and ".join(heads) or "none"),
        ("parameters", f"{sum(sizes.values()) / 1e6:.1f} M, and the target's embedding and head where it has none"),
        ("target", f"{identity.name or 'not named'}: {identity.num_layers or '?'} layers"),
        ("fingerprints", f"weights `{identity.weights or '?'}`, tokenizer `{identity.tokenizer or '?'}`"),
    ]


def _data_lines(record: Mapping[str, Any], run: RunRecord | None) -> list[str]:
    lines = []
    if "num_dialogues" in record:
        lines.append(
            f"{record['num_dialogues']} dialogues, {record['num_tokens']} tokens, "
            f"{record['num_answer_tokens']} of them answers."
        )
    if run is not None and run.num_begun is not None:
        kept = sum(count.num_dialogues for count in run.kinds)
        lines.append(f"{run.num_begun} dialogues were begun, and {kept} kept.")
    if run is not None:
        lines += [f"{_DROP_WORDS.get(name, name)}: {count}" for name, count in run.dropped.items() if count]
    return lines


def _training_lines(record: Mapping[str, Any], recipe: Mapping[str, Any], run: RunRecord | None) -> list[str]:
    train, shape, loss = _section(recipe, "train"), _section(recipe, "drafter"), _section(recipe, "train", "loss")
    lines = []
    if "steps" in record and train:
        blocks = record["steps"] * train["num_sequences"] * train["num_anchors"]
        lines.append(
            f"{record['steps']} of {train['num_steps']} steps of {train['num_sequences']} dialogues and up to "
            f"{train['num_anchors']} blocks of each: {blocks} blocks at most."
        )
        lines.append(f"Learning rate {train['learning_rate']:g} at its highest, seed {train['seed']}.")
    if loss:
        weights = ", ".join(
            f"{name.replace('_', '-')} {loss[name]:g}" for name in loss if name != "decay" and loss[name]
        )
        lines.append(f"Loss: {weights}; draft k weighs exp(-k / {loss['decay']:g}), k from 0.")
    start = _section(record, "started_from")
    if start:
        lines.append(f"First weights: those of {_started_from(start)}.")
    elif shape:
        layers = ", ".join(map(str, shape.get("from_layers", [])))
        lines.append(f"First weights: copies of target layers {layers}." if layers else "First weights: random.")
    if run is not None and run.training is not None:
        lines.append(f"Time of the steps and of held-out measuring, by the run's log: {_duration(run.training)}.")
    return lines


def _started_from(record: Mapping[str, Any]) -> str:
    """The drafter that a run went on from, by its record."""
    words = f"a drafter after {record.get('steps', 'some')} steps"
    rate = _section(record, "recipe", "train").get("learning_rate")
    words += "" if rate is None else f" at a learning rate of {rate:g} at most"
    if "num_dialogues" in record:
        words += f", on {record['num_dialogues']} dialogues"
    before = _section(record, "started_from")
    return f"{words}, which went on from {_started_from(before)}" if before else words


def _limits(config: DrafterConfig, recipe: Mapping[str, Any]) -> list[str]:
    lines = [
        "For this target alone, weights and tokenizer as they were: for a fine-tune or another quantization the engine "
        "refuses it.",
        f"At most {config.max_draft_tokens} drafts per step; no drafts beyond position {config.max_position}.",
    ]
    longest = _section(recipe, "train").get("max_context")
    data = _section(recipe, "data")
    if longest is not None and {"max_prompt_tokens", "max_answer_tokens"} <= data.keys():
        lines.append(
            f"Trained on prompts of up to {data['max_prompt_tokens']} tokens, answers of up to "
            f"{data['max_answer_tokens']} and dialogues cut at {longest}; of longer ones nothing is known."
        )
    if config.has_reduced_vocabulary:
        rest = config.vocab_size - config.draft_vocab_size
        lines.append(f"The {rest} tokens that were rarest in its data are never drafted.")
    lines.append("Acceptance depends on the prompts. In text that repeats itself it is high and proves nothing.")
    return lines


def _licence_lines(
    config: DrafterConfig, recipe: Mapping[str, Any], licence: str | None, other_kinds: Sequence[str]
) -> list[str]:
    lines = []
    if licence is not None:
        begin = ", and began as copies of its layers" if _section(recipe, "drafter").get("from_layers") else ""
        lines.append(
            f"The target's licence is {licence}. The weights of the drafter were trained on the target's own answers"
            f"{begin}; they come under {licence} too."
        )
    for name in (*_section(recipe, "data", "kinds"), *(f"{kind}.jsonl" for kind in other_kinds)):
        lines.append(_KIND_WORDS.get(name, f"Prompts of the file `{Path(name).name}` were used."))
    return lines


def _evaluation(values: Mapping[str, Any]) -> dict[str, Any]:
    """One file of `slipstream evaluate --json`; positions are shown for the fewest requests at once."""
    sets = values["sets"]
    least = min((part["concurrency"] for part in sets), default=1)
    by_position = [part for part in sets if part["concurrency"] == least and part["conditional"]]
    depth = max((len(part["conditional"]) for part in by_position), default=0)
    return {**values, "by_position": by_position, "positions": range(1, depth + 1)}


def _by_temperature(data: Mapping[str, Any], run: RunRecord) -> dict[str, DialogueCount]:
    names = [f"{float(t):.3g}" for t in _section(data, "temperatures")]
    return {count.name: count for count in run.temperatures} | _missing(names, run.temperatures)


def _missing(names: Mapping[str, Any] | Sequence[str], counts: Sequence[DialogueCount]) -> dict[str, DialogueCount]:
    known = {count.name for count in counts}
    return {name: DialogueCount(name, 0, 0, 0) for name in names if name not in known}


def _section(values: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        found = values.get(key)
        values = found if isinstance(found, Mapping) else {}
    return values


def _counts(count: DialogueCount) -> str:
    return f" {count.num_dialogues} | {count.num_tokens} | {count.num_answer_tokens} |"


def _number(value: float | None, digits: int | None = None) -> str:
    if value is None:
        return "–"
    return f"{value:g}" if digits is None else f"{value:.{digits}f}"


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def _duration(time: timedelta) -> str:
    minutes = round(time.total_seconds() / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
