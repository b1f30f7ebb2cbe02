"""Loads a Hugging Face folder: config.json, safetensors, tokenizer.json and what goes with them.

Owns: which file says what. Must not know: what the config's numbers mean, the format of weights.

End-of-sequence ids come from generation_config.json, config.json and tokenizer_config.json together: each alone is
often incomplete. The default temperature is that of generation_config.json if it asks for sampling (do_sample).
The chat template is chat_template.jinja, else that of tokenizer_config.json, else chat_template.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trioserve.model.fields import Fields
from trioserve.model.files import MIB, fault, naming, read_json, read_text, shown
from trioserve.model.hf_families import family_of
from trioserve.model.loaded import LoadedModel
from trioserve.model.safetensors import Checkpoint, read_checkpoint
from trioserve.model.weights import MappedWeights, match_weights
from trioserve.params import MAX_TEMPERATURE
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
    if not 0 <= temperature <= MAX_TEMPERATURE:
        raise generation.fault("temperature", f"is {temperature:g}, which is not between 0 and {MAX_TEMPERATURE:g}")
    return temperature
