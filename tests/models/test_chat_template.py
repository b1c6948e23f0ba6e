"""Chat templates render as in transformers, inside a sandbox."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tiny_models import SPECIAL_TOKENS, write_tiny_hf_model

from slipstream.models.chat_template import ChatTemplate
from slipstream.models.config import ModelLoadError
from slipstream.models.embedded import ensure_embedded_model
from slipstream.models.loading import open_model
from slipstream.request import RequestError

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": "Be <brief> & kind."}, {"role": "user", "content": "  hi\n"}],
    [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "2 😀"},
        {"role": "user", "content": "{{ 7 * 7 }}{% raw %}"},
    ],
]
TOOLS = [{"type": "function", "function": {"name": "look", "description": 'Sieh <nach> für "mich"', "parameters": {}}}]

# What the templates in use need: blocks on lines of their own, namespaces, tests, tojson, slices, loop controls,
# whitespace control, and the marks around the assistant's words.
ELABORATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] + '\\n' }}
    {%- endif %}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{% set state = namespace(last=-1) %}
{% for message in messages %}
    {% if message.role is not string %}
        {% continue %}
    {% endif %}
    {% if message.role == "assistant" %}
        {% generation %}
            {{- eos_token + message.content | trim }}
        {% endgeneration %}
    {% elif message.role == "user" or (message.role == "system" and not loop.first) %}
{{ bos_token }}{{ message.role }}
{{ message.content }}
    {% endif %}
    {% set state.last = loop.index0 %}
{% endfor %}
last={{ state.last }} {{ tools is none }} {{ messages[::-1][0].content | length }} {{ thinking is defined }}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(write_tiny_hf_model(tmp_path_factory.mktemp("model")))


def check_against(oracle: Any, template: ChatTemplate) -> None:
    for chat in CHATS:
        for add in (True, False):
            for extra in ({}, {"tools": TOOLS}, {"thinking": True}):
                expected = oracle.apply_chat_template(
                    chat, chat_template=template.source, tokenize=False, add_generation_prompt=add, **extra
                )
                assert template.render(chat, add_generation_prompt=add, **extra) == expected


def test_elaborate_template_equals_transformers(oracle: Any) -> None:
    tokens = {"bos_token": SPECIAL_TOKENS[1], "eos_token": SPECIAL_TOKENS[2]}
    check_against(oracle, ChatTemplate(ELABORATE, special_tokens=tokens))


@pytest.mark.model
def test_smollm_template_equals_transformers(oracle: Any) -> None:
    template = open_model(str(ensure_embedded_model())).chat_template
    assert template is not None
    check_against(oracle, template)
    assert template.render(CHATS[0]).startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")


def test_strftime_now() -> None:
    assert ChatTemplate("{{ strftime_now('%Y') }}").render([]) == time.strftime("%Y")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[5].content }}", "5|undefined"),
        ("{{ messages[0].content + 1 }}", ""),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safely"),
        ("{{ cycler.__init__.__globals__.os.system('true') }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "loader"),
    ],
)
def test_template_errors_are_request_errors(source: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason or None) as caught:
        ChatTemplate(source).render([{"role": "user", "content": "hi"}])
    assert caught.value.parameter == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}" + "x" * 200 + "{% endfor %}{% endfor %}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ [1] * 10 ** 10 }}",
        "{{ 10 ** (10 ** 10) }}",
    ],
)
def test_templates_that_would_never_end(source: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RequestError):
            ChatTemplate(source).render([])
        assert tracemalloc.get_traced_memory()[1] < 400_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("source", ["{% for x in %}", "{{ unclosed", "{% nonsense %}", "{{ 1 | nosuchfilter }}"])
def test_invalid_templates_are_refused_at_start(tmp_path: Path, source: str) -> None:
    with pytest.raises(ModelLoadError, match="chat template"):
        ChatTemplate(source)
    directory = write_tiny_hf_model(tmp_path)
    (directory / "chat_template.jinja").write_text(source)
    with pytest.raises(ModelLoadError, match=r"chat_template\.jinja"):
        open_model(str(directory))
