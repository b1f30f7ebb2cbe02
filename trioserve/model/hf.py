"""Loads a Hugging Face folder: config.json, safetensors, tokenizer.json and what goes with them.

Owns: which file says what. Must not know: what the config's numbers mean, the format of weights.

End-of-sequence ids come from generation_config.json, config.json and tokenizer_config.json together: each alone is
often incomplete. The default temperature is that of generation_config.json if it asks for sampling (do_sample).
The chat template is chat_template.jinja, else that of tokenizer_config.json, else chat_template.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from trioserve.errors import ModelError, ParamError
from trioserve.model.fields import Fields
from trioserve.model.files import MIB, fault, naming, read_json, read_text, shown
from trioserve.model.hf_families import family_of
from trioserve.model.loaded import LoadedModel
from trioserve.model.safetensors import read_checkpoint
from trioserve.model.spec import DecoderSpec
from trioserve.model.weights import MappedWeights, match_weights
from trioserve.params import SamplingParams
from trioserve.text.template import ChatTemplate
from trioserve.text.tokenizer import BpeTokenizer

_MAX_CONFIG: Final = 16 * MIB
"""A tokenizer_config.json with many added tokens has some megabytes."""
_MAX_TOKENIZER: Final = 256 * MIB


def read_config(folder: Path) -> Fields:
    """The folder's config.json.

    Raises:
        ModelError: it is missing or broken.
    """
    path = folder / "config.json"
    return Fields(path, read_json(path, _MAX_CONFIG))


def read_template(folder: Path) -> str | None:
    """The source of the folder's chat template; None: it has none.

    Raises:
        ModelError: a file is broken.
    """
    jinja = folder / "chat_template.jinja"
    if jinja.exists():
        return read_text(jinja, _MAX_CONFIG)
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = _template_of(_optional(folder / name))
        if template is not None:
            return template
    return None


def load_hf(folder: Path, name: str) -> LoadedModel:
    """The model of a folder, served as ``name``. Its weight files stay mapped until the weights are closed.

    Raises:
        ModelError: a file is missing or broken, or something in it is not supported.
    """
    config = read_config(folder)
    family = family_of(config)
    checkpoint = read_checkpoint(folder)
    try:
        with naming(config.path):
            spec = family.spec(config, checkpoint.tensors)
        names = match_weights(folder, spec, checkpoint.tensors, family.names, family.ignored(spec, checkpoint.tensors))
        return _load(folder, name, config, spec, MappedWeights(checkpoint.files, names))
    except BaseException:
        checkpoint.close()
        raise


def _load(folder: Path, name: str, config: Fields, spec: DecoderSpec, weights: MappedWeights) -> LoadedModel:
    generation = _optional(folder / "generation_config.json")
    settings = _optional(folder / "tokenizer_config.json")
    bos_token, eos_token = _token_text(settings, "bos_token"), _token_text(settings, "eos_token")
    eos_ids = _ids(generation, "eos_token_id") | _ids(config, "eos_token_id")
    bos_id, add_bos = config.integer("bos_token_id", None), settings.boolean("add_bos_token", None)
    path = folder / "tokenizer.json"
    text = read_text(path, _MAX_TOKENIZER)
    with naming(path):
        ids = _added_tokens(text)
        tokenizer = BpeTokenizer.from_json(
            text,
            eos_ids=eos_ids | {token_id for token, token_id in ids.items() if token == eos_token},
            bos_id=bos_id if bos_token is None else ids.get(bos_token, bos_id),
            add_bos=add_bos,
            vocab_size=spec.vocab_size,
        )
    if tokenizer.vocab_size > spec.vocab_size:
        highest, rows = tokenizer.vocab_size - 1, spec.vocab_size
        raise fault(path, f"has a token with id {highest}, but the embedding has {rows} rows")
    template = None
    source = read_template(folder)
    if source is not None:
        with naming(folder):
            template = ChatTemplate(source, bos_token=bos_token or "", eos_token=eos_token or "")
    return LoadedModel(
        name=name,
        path=folder,
        spec=spec,
        weights=weights,
        tokenizer=tokenizer,
        template=template,
        default_temperature=_default_temperature(generation),
        warnings=() if tokenizer.eos_ids else ("no file names an end-of-sequence token",),
    )


def _template_of(fields: Fields) -> str | None:
    value = fields.value("chat_template")
    if not isinstance(value, list):
        return fields.text("chat_template", None)
    # several templates with names; the others are for tools or retrieval
    for entry in value:
        if isinstance(entry, dict) and entry.get("name") == "default" and isinstance(entry.get("template"), str):
            return str(entry["template"])
    raise fields.fault("chat_template", "is a list without a template named 'default'")


def _optional(path: Path) -> Fields:
    """The values of a JSON file that need not be there."""
    return Fields(path, read_json(path, _MAX_CONFIG) if path.exists() else {})


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _AddedTokens(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


def _added_tokens(tokenizer_json: str) -> dict[str, int]:
    """The ids of the tokens that tokenizer.json adds to its model's; special tokens are among them."""
    try:
        added = msgspec.json.decode(tokenizer_json, type=_AddedTokens).added_tokens
    except (msgspec.DecodeError, RecursionError) as error:
        raise ModelError(f"is broken: {error}") from error
    return {token.content: token.id for token in added}


def _token_text(fields: Fields, key: str) -> str | None:
    """A special token, which is written as a string or as an object with ``content``."""
    if isinstance(fields.value(key), dict):
        section = fields.section(key)
        return None if section is None else section.text("content")
    return fields.text(key, None)


def _ids(fields: Fields, key: str) -> frozenset[int]:
    """Token ids, which are written as one number or a list."""
    value = fields.value(key)
    if not isinstance(value, list):
        one = fields.integer(key, None)
        return frozenset() if one is None else frozenset({one})
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        raise fields.fault(key, f"is {shown(value)}, not a list of integers")
    return frozenset(value)


def _default_temperature(generation: Fields) -> float | None:
    temperature = generation.number("temperature", None)
    if not generation.boolean("do_sample", False) or temperature is None:
        return None
    try:
        SamplingParams(temperature=temperature)
    except ParamError as error:
        # as a default it would make every request fail that doesn't say otherwise
        raise generation.fault("temperature", f"is not possible: {error}") from error
    return temperature
