"""Whole models, from files to LoadedModel, in both formats."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioserve.errors import ModelError
from trioserve.model.hf import read_template
from trioserve.model.load import load_model
from trioserve.model.loaded import LoadedModel
from trioserve.model.sources import ResolvedModel
from trioserve.testing.checkpoints import CHAT_TEMPLATE, TinyLlama, make_weights, write_tiny_gguf, write_tiny_llama

TEXT = "The rain in Spain, 1234 times. <|im_end|>"


def halves(pairs: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k from rope pairs (2 i, 2 i + 1) to (i, i + D / 2)."""
    return pairs.reshape(heads, -1, 2, *pairs.shape[1:]).swapaxes(1, 2).reshape(pairs.shape)


@pytest.fixture(params=["gguf", "folder"])
def tiny_path(request: pytest.FixtureRequest, tiny_gguf: Path, tiny_folder: Path) -> Path:
    return tiny_gguf if request.param == "gguf" else tiny_folder


def change_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def load_and_close(folder: Path) -> LoadedModel:
    model = load_model(folder)
    model.weights.close()
    return model


def test_a_model_of_either_format(tiny_path: Path) -> None:
    steps: list[tuple[str, int, int | None]] = []

    model = load_model(tiny_path, lambda *step: steps.append(step))

    assert (model.name, model.path) == ("tiny", tiny_path)
    assert (model.spec.architecture, model.spec.layers) == ("llama", 2)
    assert model.warnings == ()
    assert model.default_temperature is None
    assert [stage for stage, *_ in steps] == ["opening", "opening"]
    assert steps[-1][1] == steps[-1][2] != 0
    for name, shape in model.spec.weight_shapes().items():
        assert model.weights.float32(name).shape == model.weights.raw(name).shape == shape
    with pytest.raises(KeyError):
        model.weights.raw("no such weight")
    model.weights.close()
    model.weights.close()


def test_a_name_may_be_given(tiny_gguf: Path) -> None:
    model = load_model(ResolvedModel("another", tiny_gguf, "gguf"))

    assert model.name == "another"
    model.weights.close()


@pytest.mark.parametrize("tied", [False, True])
def test_both_formats_hold_the_same_model(tmp_path: Path, tied: bool) -> None:
    tiny = TinyLlama(seed=3, tied=tied, attention_bias=True, mlp_bias=True)
    folder = load_model(write_tiny_llama(tmp_path / "hf", tiny, shards=3))
    gguf = load_model(write_tiny_gguf(tmp_path / "a.gguf", tiny))

    rope = attrs.evolve(folder.spec.rope, interleaved=True)
    eps = gguf.spec.norm_eps  # float32 in one of them
    assert attrs.evolve(folder.spec, rope=rope, norm_eps=eps) == gguf.spec
    for name in folder.spec.weight_shapes():
        ours = gguf.weights.float32(name)
        if name.split(".")[-1] in ("q", "k", "q_bias", "k_bias"):
            ours = halves(ours, tiny.heads if ".q" in name else tiny.kv_heads)
        np.testing.assert_array_equal(ours, folder.weights.float32(name))
    folder.weights.close()
    gguf.weights.close()


def test_weights_are_those_that_were_written(tiny_folder: Path) -> None:
    model = load_model(tiny_folder)

    written = make_weights(TinyLlama())
    np.testing.assert_array_equal(model.weights.float32("head"), written["lm_head.weight"])
    np.testing.assert_array_equal(
        model.weights.float32("layers.1.down"), written["model.layers.1.mlp.down_proj.weight"]
    )
    model.weights.close()


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_1"])
def test_quantised_weights_are_near_those_that_were_written(tmp_path: Path, kind: str) -> None:
    model = load_model(write_tiny_gguf(tmp_path / "a.gguf", kind=kind))

    assert model.weights.raw("head").kind == kind
    error = np.abs(model.weights.float32("head") - make_weights(TinyLlama())["lm_head.weight"]).max()
    assert 0 < error < {"F16": 0.001, "Q8_0": 0.005, "Q4_1": 0.05}[kind]
    model.weights.close()


def test_both_formats_have_the_same_tokenizer_and_template(tiny_gguf: Path, tiny_folder: Path) -> None:
    models = [load_model(tiny_gguf), load_model(tiny_folder)]

    first, second = [model.tokenizer for model in models]
    ids = first.encode(TEXT, add_special=True)
    assert ids == second.encode(TEXT, add_special=True)
    assert ids[-1] == 2
    assert first.decode(ids, skip_special=False) == second.decode(ids, skip_special=False) == TEXT
    assert first.vocab_size == second.vocab_size == 320
    assert (first.eos_ids, second.eos_ids) == ({0, 2}, {2})  # a GGUF file's end tokens are also known by name
    for model in models:
        assert model.template is not None
        prompt = model.template.render([{"role": "user", "content": "Hi"}])
        assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        model.weights.close()


def test_a_template_knows_the_special_tokens(tmp_path: Path) -> None:
    tiny = TinyLlama(chat_template="{{ bos_token }}/{{ eos_token }}")
    for path in (write_tiny_llama(tmp_path / "hf", tiny), write_tiny_gguf(tmp_path / "a.gguf", tiny)):
        model = load_and_close(path)
        assert model.template is not None
        assert model.template.render([]) == "<|im_start|>/<|im_end|>"


def test_a_template_that_is_wrong_is_told_with_the_model(tmp_path: Path) -> None:
    tiny = TinyLlama(chat_template="{% if %}")
    for path in (write_tiny_llama(tmp_path / "hf", tiny), write_tiny_gguf(tmp_path / "a.gguf", tiny)):
        with pytest.raises(ModelError, match=f"^{path}.*template"):
            load_model(path)


def test_a_model_without_a_template(tmp_path: Path) -> None:
    tiny = TinyLlama(chat_template=None)
    for path in (write_tiny_llama(tmp_path / "hf", tiny), write_tiny_gguf(tmp_path / "a.gguf", tiny)):
        model = load_model(path)
        assert model.template is None
        model.weights.close()


# --- GGUF files: case gguf-pretokenizer


def test_without_a_pre_tokenizer_the_model_loads_with_a_warning(tmp_path: Path) -> None:
    model = load_model(write_tiny_gguf(tmp_path / "a.gguf", metadata={"tokenizer.ggml.pre": None}))

    assert len(model.warnings) == 1
    assert "has no tokenizer.ggml.pre" in model.warnings[0]
    model.weights.close()


def test_an_unknown_pre_tokenizer_is_refused(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "a.gguf", metadata={"tokenizer.ggml.pre": "made-up"})

    with pytest.raises(ModelError, match=f"^{path}: .*'made-up'"):
        load_model(path)


def test_without_any_end_token_the_model_loads_with_a_warning(tmp_path: Path) -> None:
    kinds = np.array([1, 1, 1] + [1] * 317, dtype=np.int32)
    changes = {"tokenizer.ggml.eos_token_id": None, "tokenizer.ggml.token_type": kinds}
    model = load_model(write_tiny_gguf(tmp_path / "a.gguf", metadata=changes))

    assert model.tokenizer.eos_ids == frozenset()
    assert "no end-of-sequence token" in model.warnings[0]
    model.weights.close()


@pytest.mark.parametrize(
    ("number", "pooling"), [(None, None), (0, None), (1, "mean"), (2, None), (3, "last"), (4, None)]
)
def test_the_pooling_of_a_gguf_file(tmp_path: Path, number: int | None, pooling: str | None) -> None:
    model = load_model(write_tiny_gguf(tmp_path / "a.gguf", metadata={"llama.pooling_type": number}))

    assert model.pooling == pooling
    assert model.warnings == ()
    model.weights.close()


def test_metadata_that_has_no_effect_is_warned_of(tmp_path: Path) -> None:
    model = load_model(write_tiny_gguf(tmp_path / "a.gguf", metadata={"llama.new_feature": 3}))

    assert model.warnings == ("the file's llama.new_feature is not understood and has no effect",)
    model.weights.close()


@pytest.mark.parametrize("stage", ["structure", "tokenizer"])
@pytest.mark.parametrize("form", ["gguf", "folder"])
def test_a_model_that_is_refused_does_not_stay_mapped(tmp_path: Path, form: str, stage: str) -> None:
    if form == "gguf":
        path = write_tiny_gguf(tmp_path / "a.gguf", metadata={"tokenizer.ggml.model": "t5"})
        if stage == "structure":
            path.write_bytes(path.read_bytes()[:-200])
    else:
        path = write_tiny_llama(tmp_path / "tiny", shards=2)
        if stage == "structure":
            (path / "model-00002-of-00002.safetensors").unlink()
        else:
            (path / "tokenizer.json").unlink()

    # the exception, which is still there, keeps the frames that opened the files
    with pytest.raises(ModelError) as caught:
        load_model(path)

    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    del caught


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_mutation_of_a_file_raises_anything_but_model_error(tiny_gguf: Path, data: st.DataObject) -> None:
    content = bytearray(tiny_gguf.read_bytes())
    header = content.index(b"token_embd.weight") + 1500  # the rest is weights
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, header) | st.integers(0, 1200))
        content[position] = data.draw(st.integers(0, 255))
    path = tiny_gguf.with_name("mutated.gguf")
    path.write_bytes(content)

    message = f"{path}: "
    try:
        load_and_close(path)
    except ModelError as error:
        message = str(error)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message


@pytest.mark.model
def test_the_default_model(default_model_path: Path) -> None:
    model = load_model(default_model_path)

    assert model.warnings == ()
    assert model.tokenizer.eos_ids == {0, 2}
    assert model.tokenizer.encode("Hello world", add_special=True) == [19556, 905]
    assert model.template is not None
    assert model.template.render([{"role": "user", "content": "Hi"}]).endswith("<|im_start|>assistant\n")
    assert model.weights.raw("layers.0.q").kind == "Q4_1"
    assert np.isfinite(model.weights.float32("layers.29.down")).all()
    model.weights.close()


# --- folders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "tiny")


def test_end_tokens_come_from_all_three_files(folder: Path) -> None:
    change_json(folder / "generation_config.json", eos_token_id=[5, 6])
    change_json(folder / "config.json", eos_token_id=7)
    change_json(folder / "tokenizer_config.json", eos_token={"content": "<|endoftext|>"})

    assert load_and_close(folder).tokenizer.eos_ids == {0, 5, 6, 7}


def test_without_any_end_token_a_folder_loads_with_a_warning(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    change_json(folder / "config.json", eos_token_id=None)
    change_json(folder / "tokenizer_config.json", eos_token=None)

    model = load_and_close(folder)

    assert model.tokenizer.eos_ids == frozenset()
    assert model.warnings == ("no file names an end-of-sequence token",)


def test_a_bos_token_is_put_in_front_if_the_folder_says_so(folder: Path) -> None:
    assert load_and_close(folder).tokenizer.encode("a", add_special=True)[0] != 1

    change_json(folder / "tokenizer_config.json", add_bos_token=True)

    assert load_and_close(folder).tokenizer.encode("a", add_special=True)[0] == 1


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"do_sample": True, "temperature": 0.6}, 0.6),
        ({"do_sample": True}, None),
        ({"temperature": 0.6}, None),
        ({"do_sample": False, "temperature": 0.6}, None),
    ],
)
def test_the_default_temperature(folder: Path, generation: dict[str, object], expected: float | None) -> None:
    change_json(folder / "generation_config.json", **generation)

    assert load_and_close(folder).default_temperature == expected


def test_the_place_of_the_template(folder: Path) -> None:
    def source() -> str | None:
        return read_template(folder)

    assert source() == CHAT_TEMPLATE
    change_json(
        folder / "tokenizer_config.json",
        chat_template=[{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}],
    )
    assert source() == "named"
    change_json(folder / "tokenizer_config.json", chat_template=None)
    assert source() is None
    (folder / "chat_template.json").write_text('{"chat_template": "old"}')
    assert source() == "old"
    (folder / "chat_template.jinja").write_text("first")
    assert source() == "first"


def test_only_config_weights_and_tokenizer_are_needed(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    (folder / "tokenizer_config.json").unlink()

    model = load_and_close(folder)

    assert model.tokenizer.eos_ids == {2}
    assert model.template is None


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("generation_config.json", {"eos_token_id": "2"}, "eos_token_id is '2', not an integer"),
        ("generation_config.json", {"eos_token_id": [2, True]}, "eos_token_id is [2, True], not a list of integers"),
        ("generation_config.json", {"do_sample": 1}, "do_sample is 1, not a boolean"),
        ("generation_config.json", {"do_sample": True, "temperature": "hot"}, "temperature is 'hot', not a number"),
        ("generation_config.json", {"do_sample": True, "temperature": 2.5}, "temperature is not possible: temperature"),
        ("tokenizer_config.json", {"eos_token": 2}, "eos_token is 2, not a string"),
        ("tokenizer_config.json", {"eos_token": {}}, "eos_token.content is missing"),
        ("tokenizer_config.json", {"add_bos_token": "yes"}, "add_bos_token is 'yes', not a boolean"),
        ("tokenizer_config.json", {"chat_template": 1}, "chat_template is 1, not a string"),
        (
            "tokenizer_config.json",
            {"chat_template": [{"name": "tool_use", "template": ""}]},
            "chat_template is a list without a template named 'default'",
        ),
        ("tokenizer.json", {"added_tokens": 3}, "is broken: "),
        ("tokenizer.json", {"model": {"type": "WordPiece", "vocab": {}}}, "tokenizer.json"),
    ],
)
def test_a_file_with_a_value_of_the_wrong_type_is_named(
    folder: Path, file: str, changes: dict[str, object], message: str
) -> None:
    change_json(folder / file, **changes)

    with pytest.raises(ModelError) as caught:
        load_model(folder)

    assert str(caught.value).startswith(f"{folder / file}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_file_that_is_missing_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()

    with pytest.raises(ModelError, match=f"^{folder}.*{'safetensors' if name.startswith('model') else name}"):
        load_model(folder)


def test_an_end_token_outside_the_vocabulary_is_refused(folder: Path) -> None:
    change_json(folder / "config.json", eos_token_id=320)

    with pytest.raises(ModelError, match=f"^{folder}"):
        load_model(folder)


def test_a_tokenizer_with_more_tokens_than_the_embedding_is_refused(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 320, "content": "<pad>"})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))

    with pytest.raises(ModelError, match="has a token with id 320, but the embedding has 320 rows"):
        load_model(folder)


def test_rows_without_a_token_stand_for_nothing(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny", TinyLlama(vocab_size=330))
    write_tiny_llama(tmp_path / "small", TinyLlama(vocab_size=320))
    (tmp_path / "small" / "tokenizer.json").replace(folder / "tokenizer.json")

    tokenizer = load_and_close(folder).tokenizer

    assert tokenizer.token_bytes(329) == b""
    assert tokenizer.decode([329]) == ""
