"""Which format a model has, and tools for templates that know none."""

from __future__ import annotations

import pytest

from trioserve.errors import ParamError
from trioserve.text.reasoning import reasoning_format_of
from trioserve.text.template import ChatTemplate
from trioserve.text.tools.formats import tool_format_of
from trioserve.text.tools.rendering import has_tools, write_tools

# what tells the templates of these families apart, as it stands in them
QWEN = """{%- if tools %}{{- "\\n\\nYou are provided with function signatures within <tools></tools> XML tags:\\n<tools>" }}
{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- "</tools>\\n\\nreturn a json object with function name and \
arguments within <tool_call></tool_call> XML tags:\\n<tool_call>" }}{%- endif %}"""
QWEN_3 = (
    QWEN
    + """{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"""
)
QWEN_CODER = """{%- if tools %}{{ tools | tojson }}{{- "<tool_call>\\n<function=example_function_name>\\n<parameter=" }}{% endif %}"""
LLAMA_3 = """{%- if tools is not none %}{{- 'Respond in the format {"name": function name, "parameters": dictionary of \
argument name and its value}.' }}{%- for t in tools %}{{- t | tojson(indent=4) }}{%- endfor %}{%- endif %}{{- "<|python_tag|>" }}"""
LLAMA_4 = """{%- if tools %}{{- "use [func_name1(params_name1=params_value1), func_name2(params)]" }}{{- tools | tojson }}{%- endif %}\
{{- '<|python_start|>' }}"""
MISTRAL_3 = """{%- if tools %}{{- "[AVAILABLE_TOOLS] " + (tools | tojson) + "[/AVAILABLE_TOOLS]" }}{%- endif %}{{- "[TOOL_CALLS] [" }}"""
MISTRAL_11 = """{%- if tools %}{{- "[AVAILABLE_TOOLS]" + (tools | tojson) + "[/AVAILABLE_TOOLS]" }}{%- endif %}\
{{- "[TOOL_CALLS]" + "f" + "[ARGS]" + "{}" }}"""
DEEPSEEK = """{%- if tools %}{{ tools | tojson }}{% endif %}{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'}}{{'<think>\\n'}}"""
SMOLLM_2 = """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'}}\
{% endfor %}"""


@pytest.mark.parametrize(
    ("source", "tools", "reasoning"),
    [
        (QWEN, "hermes", None),
        (QWEN_3, "hermes", "think"),
        (QWEN_CODER, None, None),
        (LLAMA_3, "llama3_json", None),
        (LLAMA_4, "pythonic", None),
        (MISTRAL_3, "mistral", None),
        (MISTRAL_11, "mistral_v11", None),
        (MISTRAL_11 + "{{ '[THINK]' }}", "mistral_v11", "mistral"),
        (DEEPSEEK, None, "think"),
        # it knows of no tools, and is told in the form of Hermes
        (SMOLLM_2, "hermes", None),
    ],
)
def test_the_template_shows_the_formats(source: str, tools: str | None, reasoning: str | None) -> None:
    template = ChatTemplate(source, bos_token="", eos_token="")
    assert template.renders_tools == (source is not SMOLLM_2)
    form = tool_format_of(source, renders_tools=template.renders_tools)
    assert (form and form.name) == tools
    thinks = reasoning_format_of(source)
    assert (thinks and thinks.name) == reasoning


CALLING = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"q": "é"}}}],
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def test_tools_are_written_into_the_messages_of_a_template_that_knows_none() -> None:
    user = {"role": "user", "content": "q"}
    result = {"role": "tool", "tool_call_id": "c", "content": "42"}
    written = write_tools([user, CALLING, result], [TOOL])
    assert [message["role"] for message in written] == ["system", "user", "assistant", "user"]
    system, _, calling, told = (str(message["content"]) for message in written)
    assert '{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}\n</tools>' in system
    assert '{"name": <function name>, "arguments": <arguments as a JSON object>}' in system
    assert calling == '<tool_call>\n{"name": "f", "arguments": {"q": "é"}}\n</tool_call>'
    assert told == "<tool_response>\n42\n</tool_response>"
    assert all("tool_calls" not in message for message in written)


def test_what_the_system_says_stays_in_front_of_the_tools() -> None:
    (system,) = write_tools([{"role": "system", "content": "Be kind."}], [TOOL])
    assert str(system["content"]).startswith("Be kind.\n\nYou can call functions")
    assert write_tools([{"role": "system", "content": "x"}], []) == [{"role": "system", "content": "x"}]


def test_calls_and_results_are_found_in_messages() -> None:
    assert has_tools([CALLING])
    assert has_tools([{"role": "tool", "content": "x"}])
    assert not has_tools([{"role": "user", "content": "x"}])


def test_a_template_is_given_values_for_its_own_variables_alone() -> None:
    source = (
        "{% if thinking is defined and thinking %}think {% endif %}{% set own = 1 %}{{ own }}{{ messages[0].content }}"
    )
    template = ChatTemplate(source, bos_token="", eos_token="")
    messages = [{"role": "user", "content": "q"}]
    assert template.variables == {"thinking", "messages"}
    assert template.render(messages) == "1q"
    assert template.render(messages, arguments={"thinking": True}) == "think 1q"
    assert template.render_briefly(messages, arguments={"thinking": True}) == "think 1q"
    for name in ("other", "own", "messages", "tools", "raise_exception", "x" * 100):
        with pytest.raises(ParamError, match="has no variable") as caught:
            template.render(messages, arguments={name: 1})
        assert caught.value.param == f"chat_template_kwargs.{name[:60]}"
