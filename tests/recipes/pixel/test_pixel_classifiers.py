"""Fine-tuned models in the layout of the published ones: names, shapes, and the same weights when they are read."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

from pretrainkit import api
from pretrainkit.cli.main import app_of
from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.exporting.safetensors import read_tensors
from pretrainkit.recipes.exchange import TextClassifier
from pretrainkit.recipes.glue.recipe import RECIPE as GLUE
from pretrainkit.recipes.pixel.convert_classifier import read_classifier, write_classifier
from pretrainkit.recipes.pixel.model import build, position_table
from pretrainkit.recipes.pixel.text_encoder import build_text_encoder
from support.remedies import followed

SMALL = (
    "model.positions=grid",
    "model.hidden_size=16",
    "model.num_layers=2",
    "model.intermediate_size=24",
    "model.decoder_hidden_size=8",
    "model.decoder_num_layers=1",
    "model.decoder_intermediate_size=16",
    "model.max_patches=36",
    "data.max_patches=36",
)
ENCODER = {
    "vit.embeddings.cls_token": (1, 1, 16),
    "vit.embeddings.position_embeddings": (1, 37, 16),
    "vit.embeddings.patch_embeddings.projection.weight": (16, 3, 16, 16),
    "vit.embeddings.patch_embeddings.projection.bias": (16,),
    "vit.layernorm.weight": (16,),
    "vit.layernorm.bias": (16,),
}
LAYER = {
    "attention.attention.query": (16, 16),
    "attention.attention.key": (16, 16),
    "attention.attention.value": (16, 16),
    "attention.output.dense": (16, 16),
    "intermediate.dense": (24, 16),
    "output.dense": (16, 24),
    "layernorm_before": (16,),
    "layernorm_after": (16,),
}
CASES = {
    "mean": ("examples", {"pooler.linear": (16, 16), "pooler.ln": (16,), "classifier": (3, 16)}),
    "cls": ("examples", {"vit.pooler.dense": (16, 16), "classifier": (3, 16)}),
    "words": ("words", {"classifier": (3, 16)}),
    "spans": ("spans", {"qa_outputs": (2, 16)}),
}


def classifier(reads: str, *settings: str) -> tuple[object, TextClassifier]:
    torch.manual_seed(0)
    config = api.load_config("pixel/tiny", [*SMALL, *settings])
    encoder = build_text_encoder(config, build(config.model))
    with torch.no_grad():
        encoder.position_embedding += 0.01 * torch.randn_like(encoder.position_embedding)  # it is trained
    names = () if reads == "spans" else ("a", "b", "c")
    return config, TextClassifier(encoder, nn.Linear(16, len(names) or 2), names, 0.1, reads)


def published(case: str, folder: Path, *settings: str) -> tuple[TextClassifier, dict[str, torch.Tensor]]:
    from safetensors.torch import load_file

    pooling = [f"text.pooling={case}"] if case in ("mean", "cls") else []
    config, model = classifier(CASES[case][0], *pooling, *settings)
    write_classifier(model, config, folder, renderer=None)
    return model, load_file(folder / "model.safetensors")


@pytest.mark.parametrize("case", CASES)
def test_folders_have_the_published_names_and_shapes(case: str, tmp_path: Path) -> None:
    _, state = published(case, tmp_path / "out")
    pairs = {f"vit.encoder.layer.{layer}.{name}": shape for layer in range(2) for name, shape in LAYER.items()}
    pairs |= CASES[case][1]
    expected = ENCODER | {f"{name}.weight": shape for name, shape in pairs.items()}
    expected |= {f"{name}.bias": shape[:1] for name, shape in pairs.items()}
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == expected


def as_original(folder: Path, pooling: str, *settings: str) -> TextClassifier:
    """Write the folder of such a model as the original does: each has the layers of pooled patches, and config.json
    does not contain the pooling."""
    from safetensors.torch import save_file

    config, model = classifier("examples", f"text.pooling={pooling}", *settings)
    if pooling != "cls" and model.encoder.pooling.norm is not None:
        with torch.no_grad():
            model.encoder.pooling.norm.weight += 0.1 * torch.randn(16)  # it is trained
    write_classifier(model, config, folder, renderer=None)
    values = json.loads((folder / "config.json").read_text())
    del values["pooling"]
    (folder / "config.json").write_text(json.dumps(values))
    unused = {"linear.weight": torch.randn(16, 16), "linear.bias": torch.zeros(16)}
    unused |= {"ln.weight": torch.ones(16), "ln.bias": torch.zeros(16)}
    state = {f"pooler.{name}": tensor for name, tensor in unused.items()} | read_tensors(folder)
    save_file(state, folder / "model.safetensors")
    return model


def vectors_of(encoder: nn.Module) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    batch = {
        "patches": torch.randint(0, 256, (10, 256), dtype=torch.uint8, generator=generator),
        "positions": torch.tensor([*range(6), *range(4)], dtype=torch.int32),
        "cu_seqlens": torch.tensor([0, 6, 10], dtype=torch.int32),
    }
    with torch.no_grad():
        return encoder.eval()(batch, 36)


@pytest.mark.parametrize("settings", [(), ("text.pooling_norm=false",)])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_the_poolings_of_the_original_are_distinguished_or_must_be_chosen(
    pooling: str, settings: tuple[str, ...], tmp_path: Path
) -> None:
    model = as_original(tmp_path / "original", pooling, *settings)
    given = None if pooling == "cls" else pooling
    run, state = GLUE.import_huggingface(tmp_path / "original", given)
    trained = GLUE.build_model(run)
    trained.load_state_dict(state)
    torch.testing.assert_close(vectors_of(trained.encoder), vectors_of(model.encoder), rtol=1e-4, atol=1e-5)
    if pooling == "cls":
        with pytest.raises(InputError, match="pools by cls, not by max\n  leave --pooling out") as caught:
            GLUE.import_huggingface(tmp_path / "original", "max")
        followed(caught.value, "recipes/pixel/convert_classifier.py: … pools by …, not by")  # that is `given` None
    else:
        with pytest.raises(InputError, match="cannot pool by 'cls'") as caught:
            GLUE.import_huggingface(tmp_path / "original", "cls")
        advice = followed(caught.value, "recipes/pixel/convert_classifier.py: … cannot pool by")
        GLUE.import_huggingface(tmp_path / "original", re.search(r"--pooling (\w+)", advice)[1])


def test_a_folder_without_its_pooling_is_imported_as_the_message_advises(tmp_path: Path) -> None:
    model = as_original(tmp_path / "original", "mean")
    with pytest.raises(InputError, match="does not specify whether it pools by mean or max") as caught:
        api.open_model(tmp_path / "original")
    advice = followed(caught.value, "recipes/pixel/convert_classifier.py: … does not specify whether")
    command = next(line for line in advice.splitlines() if "fix: " in line).partition("fix: ")[2]
    words = shlex.split(command.replace("OUT", str(tmp_path / "imported")))
    assert words[:2] == ["pretrainkit", "import"]
    assert CliRunner().invoke(app_of("import"), words[2:]).exit_code == 0
    found = api.open_model(tmp_path / "imported").model
    torch.testing.assert_close(vectors_of(found.encoder), vectors_of(model.encoder), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="no option for pooling") as caught:
        api.import_model(tmp_path / "original", "pixel", tmp_path / "other", pooling="mean")
    assert "use --recipe glue" in followed(caught.value, "running/opened.py: recipe … has no option for pooling")
    api.import_model(tmp_path / "original", "glue", tmp_path / "other", pooling="mean")


@pytest.mark.parametrize("case", ["words", "spans"])
def test_models_that_pool_nothing_are_imported_without_pooling_as_advised(case: str, tmp_path: Path) -> None:
    published(case, tmp_path / "theirs")
    with pytest.raises(InputError) as caught:
        api.import_model(tmp_path / "theirs", "glue", tmp_path / "ours", pooling="mean")
    advice = followed(caught.value, "recipes/pixel/convert_classifier.py: … gives an answer per")
    assert "leave --pooling out" in advice
    api.import_model(tmp_path / "theirs", "glue", tmp_path / "ours")


def logits_of_the_original(state: dict[str, torch.Tensor], patches: torch.Tensor, num_real: int) -> torch.Tensor:
    """The original's formulas for one text of patches (L, F) with white ones behind `num_real`, pooled with 2 heads."""

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (16,), state[f"{name}.weight"], state[f"{name}.bias"], 1e-12)

    projection = "vit.embeddings.patch_embeddings.projection"
    kernel = state[f"{projection}.weight"].sum(1).flatten(1)  # grey
    x = F.linear(patches.float() / 255, kernel, state[f"{projection}.bias"])
    x = torch.cat([state["vit.embeddings.cls_token"][0], x]) + state["vit.embeddings.position_embeddings"][0]
    is_hidden = torch.arange(len(x)) > num_real
    for number in range(2):
        layer, inner = f"vit.encoder.layer.{number}", norm(f"vit.encoder.layer.{number}.layernorm_before", x)
        q, k, v = (linear(f"{layer}.attention.attention.{part}", inner) for part in ("query", "key", "value"))
        q, k, v = (part.unflatten(1, (2, -1)).transpose(0, 1) for part in (q, k, v))
        scores = (q @ k.mT * k.shape[-1] ** -0.5).masked_fill(is_hidden, -torch.inf)
        x = x + linear(f"{layer}.attention.output.dense", (scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
        inner = F.gelu(linear(f"{layer}.intermediate.dense", norm(f"{layer}.layernorm_after", x)))
        x = x + linear(f"{layer}.output.dense", inner)
    x = norm("pooler.ln", norm("vit.layernorm", x)[1:])
    mab = "pooler.pooling.pooler.mab"
    query, values = linear(f"{mab}.fc_q", state["pooler.pooling.pooler.S"][0]), linear(f"{mab}.fc_v", x)
    keys = linear(f"{mab}.fc_k", x) * (torch.arange(len(x)) < num_real)[:, None]
    halves = [half.chunk(2, 1) for half in (query, keys, values)]
    mixed = torch.cat([q + (q @ k.T / 16**0.5).softmax(1) @ v for q, k, v in zip(*halves, strict=True)], 1)
    return linear("classifier", mixed + linear(f"{mab}.fc_o", mixed).relu())[0]


def test_the_originals_pooling_by_attention_gives_its_logits(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    config, model = classifier("examples", "text.pooling=pma_padded:2", "model.pixel_zero=black")
    with torch.no_grad():
        for parameter in model.encoder.pooling.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    original = tmp_path / "original"
    write_classifier(model, config, original, renderer=None)
    values, path = json.loads((original / "config.json").read_text()), original / "model.safetensors"
    assert values.pop("pooling") == "pma_padded:2"
    (original / "config.json").write_text(json.dumps(values))
    state = load_file(path) | {"pooler.linear.weight": torch.randn(16, 16), "pooler.linear.bias": torch.zeros(16)}
    save_file(state, path)
    with pytest.raises(InputError, match="pools by attention, and its files do not specify") as caught:
        api.open_model(original)
    advice = followed(caught.value, "recipes/pixel/convert_classifier.py: … pools by attention, and its files")
    command = next(line for line in advice.splitlines() if "fix: " in line).partition("fix: ")[2]
    words = shlex.split(command.replace("OUT", str(tmp_path / "ours")).replace("pma_padded:8", "pma_padded:2"))
    assert CliRunner().invoke(app_of("import"), words[2:]).exit_code == 0
    opened = api.open_model(tmp_path / "ours")
    patches = torch.randint(0, 256, (2, 36, 256), dtype=torch.uint8)
    patches[1, 5:] = 255
    batch = {
        "patches": torch.cat([patches[0, :1], patches[0], patches[1, :1], patches[1, :5]]),
        "positions": torch.tensor([*range(37), *range(6)], dtype=torch.int32),
        "cu_seqlens": torch.tensor([0, 37, 43], dtype=torch.int32),
    }
    with torch.no_grad():
        ours = opened.model.eval().head(opened.model.encoder(batch, 36))
        expected = torch.stack([logits_of_the_original(state, *row) for row in zip(patches, (36, 5), strict=True)])
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    api.export(tmp_path / "ours", "huggingface", tmp_path / "back")
    again = load_file(tmp_path / "back" / "model.safetensors")
    assert all(torch.equal(tensor, state[name]) for name, tensor in again.items())


@pytest.mark.parametrize("zero", ["black", "white"])
@pytest.mark.parametrize("case", CASES)
def test_written_classifiers_are_read_with_the_same_features(case: str, zero: str, tmp_path: Path) -> None:
    model, _ = published(case, tmp_path / "out", f"model.pixel_zero={zero}")
    run, state = GLUE.import_huggingface(tmp_path / "out")
    assert run.data.kind == {"examples": "classes", "words": "tags", "spans": "spans"}[CASES[case][0]]
    assert run.data.max_seq_length == 36
    assert run.model.classes == model.classes
    trained = GLUE.build_model(run).eval()
    trained.load_state_dict(state)
    lengths = torch.tensor([0, 6, 10], dtype=torch.int32)
    positions = torch.tensor([*range(6), *range(4)], dtype=torch.int32)
    patches = torch.randint(0, 256, (10, 256), dtype=torch.uint8)
    batch = {"patches": patches, "positions": positions, "cu_seqlens": lengths}
    model.encoder.eval()
    with torch.no_grad():
        before, after = (encoder.tokens(batch, 36) for encoder in (model.encoder, trained.encoder))
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
        if model.reads == "examples":
            torch.testing.assert_close(trained.encoder(batch, 36), model.encoder(batch, 36), rtol=1e-4, atol=1e-5)
    assert torch.equal(trained.head.weight, model.head.weight)


def test_the_grid_of_a_shortened_model_is_inferred_from_its_trained_table(tmp_path: Path) -> None:
    config, model = classifier("words", "model.grid_width=23")
    with torch.no_grad():
        table = position_table(36, 16, 23)
        model.encoder.position_embedding.copy_(table + 0.02 * torch.randn_like(table))
    write_classifier(model, config, tmp_path / "out", renderer=None)
    assert read_classifier(tmp_path / "out").config.model.grid_width == 23
    published("words", tmp_path / "six")
    assert read_classifier(tmp_path / "six").config.model.grid_width is None


def test_a_model_without_a_published_form_is_refused(tmp_path: Path) -> None:
    config, model = classifier("examples", "text.pooling=pma:2")
    with pytest.raises(InputError, match="pma:2 has no Hugging Face form"):
        write_classifier(model, config, tmp_path / "out", renderer=None)
    config, model = classifier("examples", "text.pooling=max", "text.pooling_linear=false")
    with pytest.raises(InputError, match=r"without text\.pooling_linear has no Hugging Face form") as error:
        write_classifier(model, config, tmp_path / "out", renderer=None)
    advice = followed(error.value, "recipes/pixel/convert_classifier.py: text.pooling=… without text.pooling_linear")
    assert advice.strip() == "use --format safetensors"  # as for every run
    published("mean", tmp_path / "mean")
    path = tmp_path / "mean" / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"architectures": ["PIXELForMultipleChoice"]}))
    with pytest.raises(CheckpointError, match="PIXELForMultipleChoice\n  supported models: PIXELForSequence"):
        read_classifier(tmp_path / "mean")
    path.write_text(json.dumps(values | {"architectures": ["PIXELForQuestionAnswering"]}))
    with pytest.raises(CheckpointError, match=r"lacks 2 of .* qa_outputs\.weight"):
        read_classifier(tmp_path / "mean")


def test_a_parser_has_the_layout_and_the_scores_of_the_original(tmp_path):
    """The scores are those of the original's formula: biaffine, with a one behind dependents, and behind heads of
    relations."""
    from safetensors.torch import load_file

    from pretrainkit.recipes.glue.tree_model import Biaffine

    config, words = classifier("words", "text.pooling=cls")
    head = Biaffine(16, 3)
    for weights in head.parameters():
        nn.init.normal_(weights)
    model = TextClassifier(words.encoder, head, ("nsubj", "obj", "root"), 0.1, "trees")
    write_classifier(model, config, tmp_path / "parser", renderer=None)
    about = json.loads((tmp_path / "parser/config.json").read_bytes())
    assert about["architectures"] == ["PIXELForBiaffineParsing"]
    assert about["id2label"] == {"0": "nsubj", "1": "obj", "2": "root"}
    state = load_file(tmp_path / "parser/model.safetensors")
    assert state["biaffine_arcs.weight"].shape == (1, 17, 16)
    assert state["biaffine_rels.weight"].shape == (3, 17, 17)
    assert {"vit.pooler.dense.weight", "vit.pooler.dense.bias"} < state.keys()
    x, heads = torch.randn(4, 16), torch.randn(1, 5, 16)
    one = torch.ones(4, 1)
    arcs = torch.einsum("xi,oij,byj->xy", torch.cat([x, one], 1), state["biaffine_arcs.weight"], heads)
    torch.testing.assert_close(head.arcs(x, heads, torch.zeros(4, dtype=torch.long)), arcs)
    own = torch.cat([heads[0, :4], one], 1)
    relations = torch.einsum("xi,oij,xj->xo", torch.cat([x, one], 1), state["biaffine_rels.weight"], own)
    torch.testing.assert_close(head.relations(x, heads[0, :4]), relations)
    config, weights = GLUE.import_huggingface(tmp_path / "parser")
    assert (config.data.kind, config.model.classes) == ("tree", ("nsubj", "obj", "root"))
    built = GLUE.build_model(config)
    built.load_state_dict(weights)
    for name, value in head.state_dict().items():
        assert torch.equal(built.head.state_dict()[name], value)
    GLUE.export_huggingface(config, built, None, tmp_path / "again")
    again = load_file(tmp_path / "again/model.safetensors")
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], value) for name, value in state.items())


def test_a_parser_whose_root_is_not_the_class_token_is_refused(tmp_path):
    from pretrainkit.recipes.glue.tree_model import Biaffine

    config, words = classifier("words", "text.pooling=mean")
    model = TextClassifier(words.encoder, Biaffine(16, 3), ("a", "b", "c"), 0.1, "trees")
    with pytest.raises(InputError, match="the root of a tree is the class token") as error:
        write_classifier(model, config, tmp_path / "parser", renderer=None)
    advice = followed(error.value, "recipes/pixel/convert_classifier.py: a parser with text.pooling=…")
    assert "--format safetensors" in advice
    assert not (tmp_path / "parser").exists()
