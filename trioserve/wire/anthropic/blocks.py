"""The messages of /v1/messages, from their blocks to the messages of a chat.

Owns: the kinds of blocks, and what messages they make. Must not know: templates.

- The texts of a message are joined by newlines; so are its thoughts, which are ``reasoning_content``.
- The results of tools in a message of the user are messages of their own, in their place. Templates have no place for
  the news that a tool failed: its result says so in its first word.
- What only tells about a block is taken, so that one answer can be given back as it is. Marks for a cache are too: the
  cache of this server needs none.
"""

from __future__ import annotations

from typing import Final

from trioserve.errors import ParamError
from trioserve.wire.calls import Message
from trioserve.wire.fields import Fields
from trioserve.wire.messages import PART_SEPARATOR
from trioserve.wire.neutral import Labels, Neutral, take_labels, take_neutral

FAILURE: Final = "Error: "
"""In front of the result of a tool that failed."""
ROLES: Final = ("user", "assistant", "system")
TEXT_NEUTRAL: Final[Neutral] = {"citations": ([],)}
TOOL_USE_NEUTRAL: Final[Neutral] = {"caller": ({"type": "direct"},), "toolset_name": ()}
TOOL_RESULT_NEUTRAL: Final[Neutral] = {"toolset_name": ()}
THINKING_LABELS: Final[Labels] = {"signature": (str, "a string")}
BLOCK_LABELS: Final[Labels] = {"choice": (int, "an integer")}
CACHE_TTLS: Final = (None, "5m", "1h")


def build_conversation(fields: Fields) -> tuple[Message, ...]:
    """``system`` and ``messages``.

    Raises:
        ParamError: there is no message, one is wrong, or the last one is an answer.
    """
    messages: list[Message] = []
    system = fields.take("system")
    if system is not None:
        messages.append({"role": "system", "content": _take_texts(system, "system")})
    items = fields.array("messages")
    if items is None:
        raise fields.missing("messages")
    if not items:
        raise ParamError("messages must have at least one message.", "messages")
    for i, item in enumerate(items):
        messages += _build_messages(Fields.of(item, f"messages.{i}"))
    if messages[-1]["role"] == "assistant":
        path = f"messages.{len(items) - 1}.role"
        raise ParamError(f"{path} must not be assistant: this server begins an answer, and can't continue one.", path)
    return tuple(messages)


def _build_messages(fields: Fields) -> list[Message]:
    role = fields.required_text("role")
    if role not in ROLES:
        raise fields.wrong("role", f"one of {', '.join(ROLES)}", role)
    content = fields.take("content")
    if content is None:
        raise fields.missing("content")
    path = fields.path("content")
    fields.finish()
    if role == "system" or isinstance(content, str):
        return [{"role": role, "content": _take_texts(content, path)}]
    blocks = _open_blocks(content, path)
    return [_build_answer(blocks)] if role == "assistant" else _build_turn(blocks)


def _open_blocks(content: object, path: str) -> list[Fields]:
    if not isinstance(content, list):
        raise Fields({}).wrong(path, "a string or an array of blocks", content)
    if not content:
        raise ParamError(f"{path} must have at least one block.", path)
    return [Fields.of(block, f"{path}.{i}") for i, block in enumerate(content)]


def _build_turn(blocks: list[Fields]) -> list[Message]:
    """What a user says and, in between, what tools did."""
    messages: list[Message] = []
    texts: list[str] = []
    for block in blocks:
        kind = block.required_text("type")
        if kind == "text":
            texts.append(_take_text(block))
        elif kind == "tool_result":
            if texts:
                messages.append({"role": "user", "content": PART_SEPARATOR.join(texts)})
                texts = []
            messages.append(_take_result(block))
        else:
            raise block.wrong("type", "'text' or 'tool_result': this server takes nothing else of a user", kind)
        _finish_block(block)
    return [*messages, {"role": "user", "content": PART_SEPARATOR.join(texts)}] if texts else messages


def _build_answer(blocks: list[Fields]) -> Message:
    """What the assistant said, thought and called in an earlier turn."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Message] = []
    for block in blocks:
        kind = block.required_text("type")
        if kind == "text":
            texts.append(_take_text(block))
        elif kind == "thinking":
            thoughts.append(block.required_text("thinking"))
            take_labels(block, THINKING_LABELS)
        elif kind == "tool_use":
            calls.append(_take_call(block))
        else:
            raise block.wrong(
                "type", "'text', 'thinking' or 'tool_use': this server takes nothing else of the assistant", kind
            )
        _finish_block(block)
    message: dict[str, object] = {"role": "assistant", "content": PART_SEPARATOR.join(texts)}
    if thoughts:
        message["reasoning_content"] = PART_SEPARATOR.join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _take_texts(content: object, path: str) -> str:
    """A text, or the blocks of one, of which all are texts."""
    if isinstance(content, str):
        return content
    texts = []
    for block in _open_blocks(content, path):
        kind = block.required_text("type")
        if kind != "text":
            raise block.wrong("type", "'text': this server takes nothing else here", kind)
        texts.append(_take_text(block))
        _finish_block(block)
    return PART_SEPARATOR.join(texts)


def _take_text(block: Fields) -> str:
    take_neutral(block, TEXT_NEUTRAL)
    return block.required_text("text")


def _take_call(block: Fields) -> Message:
    call_id, name = block.required_text("id"), block.required_text("name")
    arguments = block.take("input")
    if not isinstance(arguments, dict):
        raise block.missing("input") if arguments is None else block.wrong("input", "an object", arguments)
    take_neutral(block, TOOL_USE_NEUTRAL)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _take_result(block: Fields) -> Message:
    call_id = block.required_text("tool_use_id")
    content = block.take("content")
    text = "" if content is None else _take_texts(content, block.path("content"))
    failed = block.flag("is_error")
    take_neutral(block, TOOL_RESULT_NEUTRAL)
    return {"role": "tool", "content": FAILURE + text if failed else text, "tool_call_id": call_id}


def _finish_block(block: Fields) -> None:
    take_labels(block, BLOCK_LABELS)
    take_cache_control(block)
    block.finish()


def take_cache_control(fields: Fields) -> None:
    """``cache_control``: a mark for a cache that has to be told what to keep. Every prefix is kept here.

    Raises:
        ParamError: it is no such mark.
    """
    control = fields.nested("cache_control")
    if control is None:
        return
    kind = control.required_text("type")
    if kind != "ephemeral":
        raise control.wrong("type", "'ephemeral'", kind)
    ttl = control.text("ttl", None)
    if ttl not in CACHE_TTLS:
        raise control.wrong("ttl", "'5m' or '1h'", ttl)
    control.finish()
