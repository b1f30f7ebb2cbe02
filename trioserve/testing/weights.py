"""A model in memory with random weights, for any DecoderSpec.

Owns: RandomWeights and random_model. Must not know: file formats.
"""

from __future__ import annotations

import math
from pathlib import Path

import attrs
import numpy as np

from trioserve.model.loaded import Float32Array, LoadedModel, RawTensor
from trioserve.model.spec import DecoderSpec
from trioserve.testing.tokenizer import ByteTokenizer


@attrs.define(eq=False)
class RandomWeights:
    """A Weights that follows from a spec and a seed, and from the name of each weight."""

    spec: DecoderSpec
    seed: int = 0

    def float32(self, name: str) -> Float32Array:
        shapes = self.spec.weight_shapes()
        shape = shapes[name]
        random = np.random.default_rng((self.seed, list(shapes).index(name)))
        values = random.standard_normal(shape)
        if len(shape) == 2:
            values /= math.sqrt(shape[1])
        else:
            values = 0.1 * values + (0.0 if name.endswith("_bias") else 1.0)
        return values.astype(np.float32)

    def raw(self, name: str) -> RawTensor:
        array = self.float32(name)
        return RawTensor("F32", array.shape, memoryview(array.tobytes()))

    def close(self) -> None:
        pass


def random_model(spec: DecoderSpec, seed: int = 0) -> LoadedModel:
    """A LoadedModel over RandomWeights; its tokenizer is a ByteTokenizer, whatever the spec's vocabulary is."""
    return LoadedModel(
        name="random",
        path=Path("random"),
        spec=spec,
        weights=RandomWeights(spec, seed),
        tokenizer=ByteTokenizer(),
        template=None,
    )
