"""Which drafter serves a target: by name, by the target's own identity, or by default. Nothing ships here but what a
test puts into a folder."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from models.tiny_models import write_tiny_hf_model
from speculation.tiny_drafters import tiny_drafter_config, tiny_drafter_weights

from slipstream.config import CHAINABLE, ModelSettings, SettingError, SpeculativeSettings, parse_speculative_config
from slipstream.config import speculative_settings_from as settings_from
from slipstream.models.config import ModelLoadError
from slipstream.models.fingerprint import tokenizer_fingerprint
from slipstream.models.loading import ModelSource, open_model
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.speculation.choice import OTHER_DEFAULT, SHIPPED_DEFAULT, choose_speculation
from slipstream.speculation.drafter_config import TargetIdentity
from slipstream.speculation.formats.checkpoint import open_drafter_checkpoint, write_drafter
from slipstream.speculation.shipped import SHIPPED_FOLDER, drafter_folder, made_for, shipped_drafters

AUTO = SpeculativeSettings(method="auto")
NAME = "tiny-dspark"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return open_model(str(write_tiny_hf_model(tmp_path_factory.mktemp("target") / "tiny")), progress=False)


def identity_of(target: ModelSource, **changes: Any) -> TargetIdentity:
    known = {
        "name": target.name,
        "num_layers": target.config.num_layers,
        "weights": target.fingerprint(),
        "tokenizer": tokenizer_fingerprint(target.tokenizer),
    }
    return TargetIdentity(**(known | changes))


def ship(folder: Path, target: ModelSource, name: str = NAME, **changes: Any) -> Path:
    config = tiny_drafter_config(target=identity_of(target, **changes))
    write_drafter(folder / name, config, tiny_drafter_weights(config))
    return folder


def method_and_reason(target: ModelSource | None, folder: Path) -> tuple[str | None, str]:
    found = choose_speculation(AUTO, target, folder=folder)
    row = found.as_setting()
    assert (row.name, row.source) == ("speculative_config", "default")
    return None if found.settings is None else found.settings.method, row.reason


def test_the_default_is_what_ships_for_the_target(target: ModelSource, tmp_path: Path) -> None:
    ship(tmp_path, target)
    found = choose_speculation(AUTO, target, folder=tmp_path)
    assert found.drafter is not None and found.settings is not None
    assert found.drafter.layout is LAYOUTS["dspark"] and found.settings.num_drafts == 6
    row = found.as_setting()
    assert (row.source, row.reason) == ("default", "ships with this model")
    again = choose_speculation(parse_speculative_config(row.value), target, folder=tmp_path)
    assert again.settings == found.settings, "what the report says can be given as it is"


def test_the_default_may_be_a_chain(target: ModelSource, tmp_path: Path) -> None:
    ship(tmp_path, target)
    found = choose_speculation(AUTO, target, folder=tmp_path, default=("ngram", "dspark"))
    assert found.settings is not None and found.settings.drafters == ("ngram", "dspark")
    words = json.loads(found.as_setting().value)
    assert (words["method"], words["drafters"], words["model"]) == ("chain", ["ngram", "dspark"], NAME)
    assert choose_speculation(parse_speculative_config(found.as_setting().value), target, folder=tmp_path).settings == (
        found.settings
    )


@pytest.mark.parametrize(
    "asked",
    [
        {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3, "num_speculative_tokens": 7},
        {
            "method": "dspark",
            "rejection_sample_method": "standard",
            "draft_sample_method": "greedy",
            "num_speculative_tokens": 4,
            "num_speculative_tokens_per_batch_size": [[1, 2, 4], [3, 8, 2]],
        },
        {"method": "auto", "num_speculative_tokens": 2, "draft_max_model_len": 20},
    ],
)
def test_what_the_report_says_can_be_given_back_whatever_was_asked_for(
    target: ModelSource, tmp_path: Path, asked: dict[str, Any]
) -> None:
    found = choose_speculation(settings_from(asked), target, folder=ship(tmp_path, target))
    row = found.as_setting()
    assert row.source == "user"
    assert {name: json.loads(row.value)[name] for name in asked if name != "method"} == {
        name: value for name, value in asked.items() if name != "method"
    }
    assert choose_speculation(parse_speculative_config(row.value), target, folder=tmp_path).settings == found.settings


def test_the_constants_name_what_can_be_served() -> None:
    assert set(SHIPPED_DEFAULT) <= set(CHAINABLE) and SHIPPED_DEFAULT[-1] in ("dspark", "dflash")
    assert "draft_model" not in SHIPPED_DEFAULT and OTHER_DEFAULT == "ngram"


def test_k_that_was_asked_for_goes_with_the_default(target: ModelSource, tmp_path: Path) -> None:
    asked = SpeculativeSettings(method="auto", num_speculative_tokens=3)
    for folder in (ship(tmp_path, target), tmp_path / "nothing"):
        found = choose_speculation(asked, target, folder=folder)
        assert found.settings is not None and found.settings.num_drafts == 3


@pytest.mark.parametrize(
    "changes", [{"weights": "0" * 16}, {"weights": None}, {"tokenizer": "0" * 16}, {"num_layers": 4}]
)
def test_a_drafter_of_another_target_is_no_default(
    target: ModelSource, tmp_path: Path, changes: dict[str, Any]
) -> None:
    ship(tmp_path, target, **changes)
    assert method_and_reason(target, tmp_path) == ("ngram", "no drafter ships with this model")


def test_of_equal_shapes_the_weights_decide(target: ModelSource, tmp_path: Path) -> None:
    other = open_model(str(write_tiny_hf_model(tmp_path / "models" / "other", seed=1)), progress=False)
    folder = ship(ship(tmp_path / "drafters", target, "a-of-target"), other, "b-of-other")
    for source, name in ((target, "a-of-target"), (other, "b-of-other")):
        assert [d.name for d in made_for(shipped_drafters(folder), source, source.fingerprint)] == [name]
        assert choose_speculation(AUTO, source, folder=folder).model == name


def test_weights_are_read_only_where_all_else_fits(target: ModelSource, tmp_path: Path) -> None:
    def must_not() -> str:
        raise AssertionError("the weights were read")

    ship(tmp_path, target, num_layers=4)
    assert made_for(shipped_drafters(tmp_path), target, must_not) == []


def test_nothing_ships_and_no_target(target: ModelSource, tmp_path: Path) -> None:
    assert method_and_reason(target, tmp_path / "none") == ("ngram", "no drafter ships with this model")
    assert method_and_reason(None, tmp_path / "none")[0] == "ngram"
    off = choose_speculation(None, target, folder=tmp_path)
    assert off.drafter is None and (off.as_setting().value, off.as_setting().source) == ("none", "user")


@pytest.mark.parametrize("asked", [{"method": "dspark"}, {"method": "chain", "drafters": ["ngram", "dspark"]}])
def test_a_method_without_a_model_takes_the_shipped_one(
    target: ModelSource, tmp_path: Path, asked: dict[str, Any]
) -> None:
    ship(tmp_path, target)
    for named in (asked, asked | {"model": NAME}, asked | {"model": str(tmp_path / NAME)}):
        found = choose_speculation(settings_from(named), target, folder=tmp_path)
        assert found.settings is not None and found.settings.model == str(tmp_path / NAME)
        assert found.as_setting().source == "user"


def test_a_folder_of_the_users_own_goes_before_a_shipped_one_of_its_name(
    target: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped, here = ship(tmp_path / "shipped", target), tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def chosen() -> str | None:
        found = choose_speculation(settings_from({"method": "dspark", "model": NAME}), target, folder=shipped)
        assert found.settings is not None and found.settings.model == str(drafter_folder(NAME, shipped))
        return found.settings.model

    assert chosen() == str(shipped / NAME)
    ship(here, target)
    assert chosen() == NAME


def test_what_does_not_ship_is_refused_with_what_does(target: ModelSource, tmp_path: Path) -> None:
    dspark = settings_from({"method": "dspark"})
    with pytest.raises(SettingError, match="no dspark drafter ships for tiny; none ships at all"):
        choose_speculation(dspark, target, folder=tmp_path / "none")
    ship(tmp_path / "a", target, name=NAME, num_layers=4)
    with pytest.raises(SettingError, match=r"no dspark drafter ships for tiny.*one ships for .*tiny-dspark"):
        choose_speculation(dspark, target, folder=tmp_path / "a")
    with pytest.raises(SettingError, match="no dflash drafter ships for tiny; none ships at all"):
        choose_speculation(settings_from({"method": "dflash"}), target, folder=tmp_path / "a")
    near = settings_from({"method": "dspark", "model": "tiny-dsparc"})
    with pytest.raises(SettingError, match=r"tiny-dsparc is no folder.*did you mean 'tiny-dspark'"):
        choose_speculation(near, target, folder=tmp_path / "a")
    by_name = settings_from({"method": "dspark", "model": NAME})
    with pytest.raises(ModelLoadError, match="made for another target"):
        choose_speculation(by_name, target, folder=tmp_path / "a")


def test_a_shipped_drafter_that_cannot_be_opened_costs_speed_alone(
    target: ModelSource, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ship(tmp_path, target)
    weights = tmp_path / NAME / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with caplog.at_level(logging.WARNING):
        method, reason = method_and_reason(target, tmp_path)
    assert method == OTHER_DEFAULT and NAME in reason and "model.safetensors" in reason
    assert "cannot be used" in caplog.text
    with pytest.raises(ModelLoadError):
        choose_speculation(settings_from({"method": "dspark"}), target, folder=tmp_path)


def test_a_broken_config_is_logged_and_hides_no_other(
    target: ModelSource, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ship(ship(tmp_path, target), target, "broken")
    (tmp_path / "broken" / "config.json").write_text("{")
    assert [drafter.name for drafter in shipped_drafters(tmp_path)] == [NAME]
    assert "broken" in caplog.text
    assert method_and_reason(target, tmp_path)[0] == ("dspark" if len(SHIPPED_DEFAULT) == 1 else "chain")


def test_what_the_package_ships_is_whole() -> None:
    """Every folder opens, names its target in full, and has a card."""
    folders = [path for path in SHIPPED_FOLDER.iterdir() if path.is_dir()]
    drafters = shipped_drafters()
    assert {drafter.folder for drafter in drafters} == set(folders)
    for drafter in drafters:
        config = open_drafter_checkpoint(drafter.folder).config
        assert drafter.target == config.target and None not in (config.target.weights, config.target.tokenizer)
        assert config.target.name is not None and drafter.name.startswith(config.target.name)
        assert (drafter.folder / "README.md").is_file()
    assert ModelSettings().model in {drafter.target.name for drafter in drafters} or not drafters
