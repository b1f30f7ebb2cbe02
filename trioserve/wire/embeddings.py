"""Vectors of texts: /v1/embeddings.

Owns: the fields of a request, and the answer. Must not know: how vectors are made.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Literal

import attrs

from trioserve.errors import ParamError
from trioserve.params import INT32_MAX, Limits
from trioserve.wire.body import open_body
from trioserve.wire.calls import Prompt
from trioserve.wire.fields import Fields
from trioserve.wire.line import json_line
from trioserve.wire.neutral import EMBEDDING_LABELS, take_labels
from trioserve.wire.prompts import build_prompts, split_prompts

Encoding = Literal["float", "base64"]


@attrs.frozen(kw_only=True)
class EmbeddingsCall:
    """A request to /v1/embeddings."""

    model: str
    prompts: tuple[Prompt, ...]
    """At least one."""
    encoding: Encoding
    dimensions: int | None
    """Numbers in a vector; None: as many as the model's have."""

    @property
    def names(self) -> Mapping[str, str]:
        """What the request calls a parameter of the engine."""
        return {"prompt": "input", **{f"prompt.{i}": f"input.{i}" for i in range(len(self.prompts))}}

    def check_dimensions(self, embedding_dim: int) -> None:
        """Raise ParamError unless the model's vectors have as many numbers as were asked for."""
        if self.dimensions is not None and self.dimensions != embedding_dim:
            raise ParamError(
                f"dimensions must be {embedding_dim}, that of the model's embeddings, got {self.dimensions}.",
                "dimensions",
            )


def parse_embeddings(body: bytes, limits: Limits) -> EmbeddingsCall:
    """A request to /v1/embeddings.

    Raises:
        ParamError: anything at all is wrong with ``body``.
    """
    fields = open_body(body)
    model = fields.required_text("model")
    encoding = _take_encoding(fields)
    dimensions = fields.integer("dimensions", None)
    if dimensions is not None and not 1 <= dimensions <= INT32_MAX:
        raise fields.wrong("dimensions", "a positive integer", dimensions)
    take_labels(fields, EMBEDDING_LABELS)
    value = fields.take("input")
    fields.finish()
    if value is None:
        raise fields.missing("input")
    prompts = split_prompts(value, "input")
    if len(prompts) > limits.max_choices:
        raise ParamError(f"input takes at most {limits.max_choices} texts, got {len(prompts)}.", "input")
    return EmbeddingsCall(
        model=model, prompts=build_prompts(prompts, "input"), encoding=encoding, dimensions=dimensions
    )


def _take_encoding(fields: Fields) -> Encoding:
    value = fields.text("encoding_format", "float")
    if value == "float":
        return "float"
    if value == "base64":
        return "base64"
    raise fields.wrong("encoding_format", "'float' or 'base64'", value)


def embeddings_body(call: EmbeddingsCall, vectors: Sequence[array[float]], prompt_tokens: int) -> bytes:
    """The answer. ``vectors``: "f" for each of the prompts; ``prompt_tokens``: of all of them."""
    encode = _as_base64 if call.encoding == "base64" else _as_numbers
    return json_line(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": encode(vector)}
                for index, vector in enumerate(vectors)
            ],
            "model": call.model,
            "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
        }
    )


def _as_numbers(vector: array[float]) -> object:
    return vector.tolist()


def _as_base64(vector: array[float]) -> object:
    """The bytes of the numbers as float32, the lowest byte first whatever the machine."""
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()
