"""Anthropic's Messages API: /v1/messages.

    call     what a request asks for
    blocks   the blocks of its messages -> the messages of a chat
    decode   parse_message, parse_count: bytes -> a call, or ParamError
    shapes   the message and its blocks, as JSON
    answer   the events of a request as one message
    stream   the same events as a stream of events of that API
    errors   the bodies of errors

A block of the answer belongs to one choice, whose index it tells as ``choice``, an extension.
"""
