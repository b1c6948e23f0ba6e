"""Prompts, loops, files of dialogues, vocabularies, recipes: what training is fed with."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from models.tiny_models import write_tiny_hf_model

from slipstream.config import SettingError
from slipstream.engine.llm import LLM
from slipstream.models.loading import open_model
from slipstream.training.arithmetic_prompts import arithmetic_prompt
from slipstream.training.chat_prompts import chat_prompt
from slipstream.training.chat_turns import ChatTurns
from slipstream.training.code_prompts import code_prompt
from slipstream.training.corpus import CorpusError, CorpusFolder, Dialogue, split_held_out
from slipstream.training.dialogue_writer import DialogueWriter
from slipstream.training.draft_vocabulary import coverage, most_frequent, token_counts
from slipstream.training.prompts import PromptSource
from slipstream.training.recipe_file import read_recipe
from slipstream.training.repetition import loop_start, repeated_share
from slipstream.training.schedule import learning_rate
from slipstream.training.settings import DataSettings, Recipe
from slipstream.training.state_cache import state_bytes

ROOT = Path(__file__).parents[2]


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.parametrize("period", [1, 2, 7, 30])
def test_a_loop_is_found_where_its_second_copy_begins(period: int) -> None:
    before, loop = np.arange(100, 120), np.arange(period)
    text = np.concatenate([before, np.tile(loop, -(-90 // period))]).astype(np.int32)
    assert loop_start(text) == 20 + period
    assert repeated_share(text) > 0.4
    assert loop_start(text[: 20 + period + max(2 * period, 24) - 1]) is None  # one token short of a loop


def test_text_that_only_comes_back_to_its_words_is_no_loop() -> None:
    rng = np.random.default_rng(1)
    assert loop_start(rng.integers(0, 12, 3000).astype(np.int32)) is None
    twice = np.tile(np.arange(60), 2).astype(np.int32)
    assert loop_start(twice) is None
    assert repeated_share(twice) == pytest.approx(57 / 117)
    assert repeated_share(ids(1, 2, 3)) == 0.0 and loop_start(ids()) is None


@pytest.mark.parametrize("write", [arithmetic_prompt, code_prompt, chat_prompt])
def test_prompts_are_drawn_by_seed_and_differ(write) -> None:
    drawn = [write(random.Random(seed)) for seed in range(300)]
    assert drawn == [write(random.Random(seed)) for seed in range(300)]
    assert len(set(drawn)) > 250
    places = re.compile(r"\{(n|things|a|b|c|A|name|doc|code|style|language)\}")
    assert all(10 < len(text) < 1500 and not places.search(text) for text in drawn)


def test_a_dialogues_start_depends_on_seed_and_number_alone() -> None:
    settings = DataSettings(seed=3, kinds={"chat": 1.0, "self": 1.0}, temperatures={0.0: 1.0, 0.7: 3.0})
    source = PromptSource(settings)
    starts = [source.start(number) for number in range(400)]
    assert [PromptSource(settings).start(number) for number in (399, 0)] == [starts[399], starts[0]]
    assert PromptSource(DataSettings(seed=4, kinds=settings.kinds)).start(0).seed != starts[0].seed
    assert sum(start.kind == "self" for start in starts) == pytest.approx(200, abs=50)
    assert sum(start.temperature == 0.7 for start in starts) == pytest.approx(300, abs=45)
    assert all(start.is_opening == (start.kind == "self") for start in starts)


def test_turns_of_a_chat_template_are_found(tmp_path: Path) -> None:
    turns = ChatTurns.of(open_model(str(write_tiny_hf_model(tmp_path / "model")), progress=False))
    assert turns.before_user == "<|im_start|>user\n"
    assert turns.before_answer == "<|im_end|>\n<|im_start|>assistant\n"
    assert turns.before_next_user == "<|im_end|>\n<|im_start|>user\n"


def test_dialogues_are_written_as_the_chat_template_would(tmp_path: Path) -> None:
    model = write_tiny_hf_model(tmp_path / "model")
    llm = LLM(model, max_num_seqs=4, enable_prefix_caching=False, speculative_config=None, dtype="float32")
    settings = DataSettings(
        kinds={"chat": 0.5, "self": 0.5}, temperatures={1.0: 1}, second_turns=0.5, max_answer_tokens=30,
        min_answer_tokens=2, max_prompt_tokens=300,
    )  # fmt: skip
    starts = [PromptSource(settings).start(number) for number in range(16)]
    writer = DialogueWriter(llm, settings)
    dialogues = writer.write(starts)
    assert len(dialogues) >= 6
    again = DialogueWriter(llm, settings).write(starts)
    assert [d.token_ids.tolist() for d in again] == [d.token_ids.tolist() for d in dialogues]
    tokenizer = llm.built.source.tokenizer
    for dialogue in dialogues:
        text = tokenizer.decode(dialogue.token_ids.tolist(), skip_special_tokens=False)
        assert text.startswith("<|im_start|>user\n") and "<|im_start|>assistant\n" in text
        first = int(np.argmax(dialogue.is_answer))
        prompt = tokenizer.decode(dialogue.token_ids[:first].tolist(), skip_special_tokens=False)
        assert prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")
        assert 2 <= dialogue.is_answer.sum() <= 62
    plain = next(start for start in starts if start.kind == "chat")
    asked = writer.write([plain])[0]
    expected = llm.encode_chat([{"role": "user", "content": plain.text}])
    assert asked.token_ids[: len(expected)].tolist() == list(expected)
    assert not asked.is_answer[: len(expected)].any() and asked.is_answer[len(expected)]


def test_dialogue_files_give_back_what_was_written_and_name_what_is_broken(tmp_path: Path) -> None:
    corpus = CorpusFolder(tmp_path)
    dialogues = [Dialogue(ids(1, 2, 3), np.array([0, 1, 1], bool), "a", 0.5), Dialogue(ids(9), np.array([True]), "b")]
    corpus.write(1, dialogues)
    corpus.write(0, [])
    found = corpus.read()
    assert [(d.token_ids.tolist(), d.is_answer.tolist(), d.kind, d.temperature) for d in found] == [
        ([1, 2, 3], [False, True, True], "a", 0.5),
        ([9], [True], "b", 0.0),
    ]
    assert corpus.has(0) and not corpus.has(2)
    corpus.path_of(1).write_bytes(b"half a file")
    with pytest.raises(CorpusError, match=r"dialogues-00001.*remove it"):
        corpus.read()


def test_every_so_many_dialogues_are_held_out() -> None:
    dialogues = [Dialogue(ids(i), np.array([True])) for i in range(7)]
    train, held_out = split_held_out(dialogues, 3)
    assert [d.token_ids[0] for d in held_out] == [0, 3, 6]
    assert [d.token_ids[0] for d in train] == [1, 2, 4, 5]


def test_the_draft_vocabulary_is_of_answers_then_prompts_then_low_ids_and_ascending() -> None:
    dialogue = Dialogue(ids(7, 7, 4, 7, 5, 2, 5, 3), np.array([0, 0, 0, 0, 1, 1, 1, 1], bool))
    answers, prompts = (token_counts([dialogue], 8, of_answers=of) for of in (True, False))
    assert answers.tolist() == [0, 0, 1, 1, 0, 2, 0, 0] and prompts.tolist() == [0, 0, 0, 0, 1, 0, 0, 3]
    assert most_frequent(answers, prompts, 2).tolist() == [2, 5]
    assert most_frequent(answers, prompts, 4).tolist() == [2, 3, 5, 7]
    assert most_frequent(answers, prompts, 6).tolist() == [0, 2, 3, 4, 5, 7]
    assert coverage(answers, np.array([2, 5])) == pytest.approx(3 / 4)


def test_the_learning_rate_rises_and_falls_to_nothing() -> None:
    rates = [learning_rate(step, 100, 1.0, 0.1) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert rates[10] == 1.0 and rates[55] == pytest.approx(0.5) and rates[99] < 0.001
    assert learning_rate(0, 1, 1.0, 0.0) == 1.0


def test_bytes_of_states_are_those_that_the_reference_counts() -> None:
    import torch

    # DeepSpec's cache has 6 bytes of ids and masks per token where ours has 8 of normaliser and likeliest token.
    assert state_bytes(1, 5, 2560, torch.bfloat16) == 30_726 - 6 + 8


def test_recipes_are_read_changed_and_checked(tmp_path: Path) -> None:
    shipped = read_recipe(ROOT / "recipes" / "smollm2-135m-instruct-dspark.toml", {"train.num_steps": "7"})
    assert shipped.train.num_steps == 7 and shipped.drafter.from_layers == (28, 29)
    assert shipped.drafter.draft_vocab_size <= 8192 and shipped.drafter.markov_rank <= 64
    assert read_recipe(None) == Recipe()
    path = tmp_path / "recipe.toml"
    for text, words in (
        ("[train]\nnum_step = 3", "did you mean 'num_steps'"),
        ("[trian]\n", "did you mean 'train'"),
        ("[data.temperatures]\nhot = 1.0", "'hot'"),
        ("[data.kinds]\nchat = 0.0", "above 0"),
        ("[loss]\nl1 = 0.0\ncross_entropy = 0.0", "nothing would be learned"),
        ("[drafter]\nalgorithm = 'eagle'", "eagle"),
        ("[drafter]\nfrom_layers = ['a']", "from_layers"),
        ("[train]\nstate_cache = 1", "true or false"),
        ("not toml", "cannot read"),
    ):
        path.write_text(text)
        with pytest.raises(SettingError, match=words):
            read_recipe(path)
    with pytest.raises(SettingError, match="nosuch"):
        PromptSource(DataSettings(kinds={"nosuch.jsonl": 1.0}))


def test_a_recipe_may_change_single_keys_of_another(tmp_path: Path) -> None:
    base, twin = tmp_path / "base.toml", tmp_path / "more" / "twin.toml"
    twin.parent.mkdir()
    base.write_text("[data]\nseed = 7\n[data.kinds]\nchat = 1.0\n[train]\nseed = 9\nnum_steps = 5\n")
    twin.write_text('extends = "../base.toml"\n[train]\nnum_steps = 6\n[drafter]\nmarkov_rank = 0\n')
    found = read_recipe(twin, {"train.warmup": "0.5"})
    assert (found.data.seed, dict(found.data.kinds)) == (7, {"chat": 1.0})
    assert (found.train.seed, found.train.num_steps, found.train.warmup) == (9, 6, 0.5)
    assert found.drafter.markov_rank == 0
    for text, words in (
        ("extends = 3", "must be the path"),
        ('extends = "none.toml"', "cannot read the recipe"),
        ('extends = "twin.toml"', "extends another"),
        ('extends = "../base.toml"\ntrain = 3', "must be a table"),
    ):
        twin.write_text(text)
        with pytest.raises(SettingError, match=words):
            read_recipe(twin)


def test_the_dflash_twin_differs_in_the_drafter_alone() -> None:
    dspark, dflash = (read_recipe(ROOT / "recipes" / f"smollm2-135m-instruct-{n}.toml") for n in ("dspark", "dflash"))
    assert dflash.data == dspark.data
    assert replace(dflash.train, learning_rate=dspark.train.learning_rate) == dspark.train
    assert dflash.drafter.target_layers == dspark.drafter.target_layers, "target states can be shared"
    shape, twin = dspark.drafter, dflash.drafter
    assert (twin.algorithm.value, twin.layout.value, twin.markov_rank, twin.has_confidence) == (
        "dflash", "fill_in", 0, False,
    )  # fmt: skip
    assert twin.block_size - 1 == shape.block_size, "as many drafts"
