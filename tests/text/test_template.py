"""What a chat template gets, and what becomes of its errors."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from trioserve.errors import ModelError, ParamError
from trioserve.text.template import MAX_SOURCE_LENGTH, ChatTemplate

# the default model's
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# in the manner of Llama 2's and Mistral's
STRICT = """
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- bos_token + '[INST] ' + message.content | trim + ' [/INST]' }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""
ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."
USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"q": 1}}}


def template(source: str, **limits: int) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", **limits)


def render(source: str, *messages: Mapping[str, object], now: datetime | None = None) -> str:
    return template(source).render(messages or [USER], now=now)


def say(*turns: str) -> list[dict[str, object]]:
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return [{"role": roles[turn[0]], "content": turn[2:]} for turn in turns]


# What it gets


def test_the_default_models_prompt() -> None:
    assert template(SMOLLM2).render(say("u:hi")) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    messages = say("s:Be <b>brief</b> & kind", "u:héllo\n", "a: 世界 ", "u:")
    assert template(SMOLLM2).render(messages, add_generation_prompt=False) == (
        "<|im_start|>system\nBe <b>brief</b> & kind<|im_end|>\n<|im_start|>user\nhéllo\n<|im_end|>\n"
        "<|im_start|>assistant\n 世界 <|im_end|>\n<|im_start|>user\n<|im_end|>\n"
    )


def test_special_tokens_and_blocks_without_their_line_ends() -> None:
    assert template(STRICT).render(say("u: a ", "a:b", "u:c")) == "<s>[INST] a [/INST] b</s><s>[INST] c [/INST]"
    # trim_blocks and lstrip_blocks
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"


def test_loop_controls() -> None:
    source = "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{{ m.content }}{% endfor %}"
    assert render(source, *say("u:a", "a:b", "u:c")) == "ac"
    assert render(source.replace("continue", "break"), *say("u:a", "a:b", "u:c")) == "a"


def test_generation_marks_are_only_marks() -> None:
    assert render("a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "ahib"


def test_tools_are_none_unless_given() -> None:
    source = "{% if tools is not none %}{{ tools | tojson }}{% endif %}."
    assert render(source) == "."
    tool = {"name": "<f>", "description": "é & 'x'"}
    assert template(source).render([USER], tools=[tool]) == '[{"name": "<f>", "description": "é & \'x\'"}].'


def test_tojson_has_the_options_of_transformers() -> None:
    value = "{'b': [1, none, true], 'a': 'é'}"
    assert render(f"{{{{ {value} | tojson }}}}") == '{"b": [1, null, true], "a": "é"}'
    assert render(f"{{{{ {value} | tojson(sort_keys=true, ensure_ascii=true) }}}}") == (
        '{"a": "\\u00e9", "b": [1, null, true]}'
    )
    assert render(f"{{{{ {value} | tojson(separators=(',', ':')) }}}}") == '{"b":[1,null,true],"a":"é"}'
    assert render("{{ {'a': [1]} | tojson(indent=2) }}") == '{\n  "a": [\n    1\n  ]\n}'


def test_time_is_an_argument() -> None:
    now = datetime(2024, 7, 4, 12, 30)
    assert render("{{ strftime_now('%d %b %Y') }}", now=now) == "04 Jul 2024"
    assert render("{{ strftime_now is defined }}") == "False"


def test_an_undefined_variable_writes_nothing_as_in_transformers() -> None:
    assert render("{{ documents }}{{ messages[0].name }}{{ messages[7] }}.") == "."


def test_messages_are_left_as_they_are() -> None:
    messages = say("u:a")
    with pytest.raises(ParamError, match="may not use 'append' of a list"):
        template("{{ messages.append(1) }}").render(messages)
    with pytest.raises(ParamError, match="may not use 'pop' of a dict"):
        template("{{ messages[0].pop('role') }}").render(messages)
    assert messages == say("u:a")


def test_threads_may_render_at_the_same_time() -> None:
    shared = template(SMOLLM2)
    conversations = [say(f"s:{n}", f"u:{n}") for n in range(50)]
    with ThreadPoolExecutor(4) as pool:
        many = list(pool.map(shared.render, conversations))
    assert many == [shared.render(messages) for messages in conversations]


# Messages without content


def test_null_content_is_empty_text_to_a_template_that_would_fail_on_it() -> None:
    # message-content-forms
    null, empty = ({"role": "assistant", "content": content, "tool_calls": [CALL]} for content in (None, ""))
    assert render(SMOLLM2, USER, null) == render(SMOLLM2, USER, empty)


def test_null_content_is_empty_text_to_a_template_that_would_write_none() -> None:
    # message-content-forms
    source = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    assert render(source, USER, {"role": "assistant", "content": None}) == "[hi][]"


@pytest.mark.parametrize("arguments", ["call.function.arguments.items() | list", "'' + call.function.arguments"])
def test_null_content_stays_null_to_a_template_that_asks_for_it(arguments: str) -> None:
    source = (
        "{% for m in messages %}{% if m.content is none %}{% for call in m.tool_calls %}"
        "<{{ call.function.name }}>{% set x = " + arguments + " %}{% endfor %}"
        "{% else %}{{ '' + m.content }}{% endif %}{% endfor %}"
    )
    form: object = {"q": 1} if "items" in arguments else '{"q": 1}'
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": form}}
    assert render(source, USER, {"role": "assistant", "content": None, "tool_calls": [call]}) == "hi<f>"


# Errors


@pytest.mark.parametrize("turns", [("s:a", "u:b"), ("u:a", "u:b"), ("a:a",)])
def test_what_a_template_refuses_is_a_param_error_with_its_message(turns: tuple[str, ...]) -> None:
    # chat-template-errors
    with pytest.raises(ParamError) as caught:
        template(STRICT).render(say(*turns))
    assert str(caught.value) == ALTERNATE
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ nothing.at_all }}", "'nothing' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ 'a' + messages }}", "can only concatenate str"),
        ("{{ messages | nothing if messages else 1 }}", "No filter named 'nothing'"),
        ("{% include 'other' %}", "no loader"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ raise_exception() }}", "missing 1 required positional argument"),
    ],
)
def test_any_failure_of_a_template_is_a_param_error(source: str, message: str) -> None:
    # chat-template-errors
    with pytest.raises(ParamError, match=f"chat template can't write these messages: .*{message}") as caught:
        render(source)
    assert caught.value.param == "messages"


def test_a_long_message_of_a_template_is_cut() -> None:
    with pytest.raises(ParamError) as caught:
        render("{{ raise_exception(messages[0].content) }}", {"role": "user", "content": "x" * 5000})
    assert str(caught.value) == "x" * 1000


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{% if %}", "wrong in line 2: Expected an expression"),
        ("{{ messages", "wrong in line 1: unexpected end of template"),
        ("{% for m in messages %}", "Unexpected end of template"),
        ("{{ messages | nothing }}", "No filter named 'nothing'"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "can't be compiled: maximum recursion depth"),
        ("{{ " + "9" * 5000 + " }}", "can't be compiled: Exceeds the limit"),
        ("x" * (MAX_SOURCE_LENGTH + 1), "has 262145 characters, more than 262144"),
    ],
)
def test_a_template_that_is_wrong_is_a_model_error_of_one_line(source: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        template(source)
    assert "\n" not in str(caught.value)


# What it takes


def test_a_short_work_is_done_briefly_and_a_long_one_is_not() -> None:
    assert template(SMOLLM2).render_briefly(say("u:hi")) == template(SMOLLM2).render(say("u:hi"))
    conversation = say(*["u:hi", "a:hello"] * 40)
    assert template(SMOLLM2).render_briefly(conversation) == template(SMOLLM2).render(conversation)
    long = "{% for a in range(20000) %}{{ a }}{% endfor %}"
    assert template(long).render_briefly([USER]) is None
    assert len(render(long)) == 10 + 2 * 90 + 3 * 900 + 4 * 9000 + 5 * 10000


def test_what_is_refused_is_refused_briefly() -> None:
    with pytest.raises(ParamError, match="must alternate"):
        template(STRICT).render_briefly(say("u:hi", "u:hi"))
    # of a template that may take no more, nobody waits for the rest
    with pytest.raises(ParamError, match="takes too many steps"):
        template("{% for a in range(20000) %}{{ a }}{% endfor %}", max_steps=1000).render_briefly([USER])
