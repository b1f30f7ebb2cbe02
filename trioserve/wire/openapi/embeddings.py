"""The bodies of /v1/embeddings, as the document shows them.

Owns: type and meaning of their fields. Must not know: how vectors are made.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from trioserve.wire.openapi.body import Body
from trioserve.wire.openapi.marks import meaning
from trioserve.wire.openapi.requests import PROMPTS
from trioserve.wire.openapi.sampling import Count


class EmbeddingsRequest(Body, kw_only=True):
    """Texts, or token ids, to make vectors of."""

    model: Annotated[str, meaning("The id of the served model, as /v1/models tells it.")]
    input: Annotated[
        object,
        Meta(
            description="A text, an array of token ids, or an array of such texts. Each must fit the context.",
            extra_json_schema=PROMPTS,
        ),
    ]
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        meaning("How a vector is written: as numbers, or as the base64 of its float32 numbers, lowest byte first."),
    ] = "float"
    dimensions: Annotated[Count | None, meaning("Numbers in a vector: as many as the model's have, or none.")] = None


class EmbeddingVector(Struct, kw_only=True):
    """A vector of length 1."""

    object: Literal["embedding"]
    index: Annotated[int, meaning("That of its text.")]
    embedding: list[float] | str


class EmbeddingsUsage(Struct, kw_only=True):
    """The tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct, kw_only=True):
    """The vectors, in the order of the texts."""

    object: Literal["list"]
    data: list[EmbeddingVector]
    model: str
    usage: EmbeddingsUsage
