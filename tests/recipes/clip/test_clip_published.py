"""Models of open_clip, OpenAI and SigLIP, in and out: equal embeddings in the library that wrote or reads them."""

import json
import re

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pretrainkit import api
from pretrainkit.api import export, import_model, open_model
from pretrainkit.config.yaml import dump_yaml
from pretrainkit.errors import CheckpointError, ConfigError, DataError, InputError
from pretrainkit.exporting.native import write_native
from pretrainkit.recipes.clip.captions import CaptionTokenizer, tokenizer_folder
from pretrainkit.recipes.clip.config import ProjectionConfig, TemperatureConfig
from support.clip_models import (
    CAPTIONS,
    VOCAB,
    images,
    make_tokenizer,
    random_model,
    run_config,
    text,
    tiny_bert,
    tiny_timm,
    vit,
)
from support.command_line import succeed
from support.hub_server import served_hub
from support.pair_sets import make_tokenizer as make_pair_tokenizer
from support.pair_sets import rows, write_csv_set
from support.remedies import followed

pytestmark = pytest.mark.slow

END = VOCAB - 1
OPENAI_LIKE = {"embed_dim": 20, "quick_gelu": True, "vision_cfg": {}, "text_cfg": {}}
SIGLIP_TEXT = {"no_causal_mask": True, "pool_type": "last", "proj_bias": True, "norm_kwargs": {"eps": 1e-6}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer") / "wordpiece")


def model_cfg(vision=None, caption=None, **more):
    sizes = {"layers": 2, "width": 128, "patch_size": 8, "image_size": 32}
    words = {"context_length": 12, "vocab_size": VOCAB, "width": 64, "heads": 2, "layers": 2}
    return {"embed_dim": 20, "vision_cfg": sizes | (vision or {}), "text_cfg": words | (caption or {}), **more}


def random_open_clip(open_clip, config):
    torch.manual_seed(0)
    is_custom = config.pop("custom_text", False)
    model = (open_clip.CustomTextCLIP if is_custom else open_clip.CLIP)(**config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith("logit"):
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model


def save(folder, model, config, preprocess=None):
    folder.mkdir()
    torch.save(model.state_dict(), folder / "open_clip_pytorch_model.bin")
    content = {"model_cfg": config, "preprocess_cfg": preprocess or {"mean": [0.5] * 3, "std": [0.25] * 3}}
    (folder / "open_clip_config.json").write_text(json.dumps(content))
    return folder


def their_ids(end=END, lengths=(4, 9, 6), width=12):
    """(B, T) with the end token behind each caption, and zeros behind it."""
    ids = torch.zeros(len(lengths), width, dtype=torch.long)
    generator = torch.Generator().manual_seed(2)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(5, END, (length,), generator=generator)
        ids[row, length - 1] = end
    return ids, torch.tensor(lengths)


@torch.no_grad()
def assert_same(ours, theirs, size=32, end=END):
    pixels = ours.normalized(images(size=size))
    ids, num_tokens = their_ids(end)
    own = ours(pixels, ids, num_tokens)
    torch.testing.assert_close(own["image"], theirs.encode_image(pixels, normalize=True), rtol=0, atol=1e-5)
    torch.testing.assert_close(own["text"], theirs.encode_text(ids, normalize=True), rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.logit_scale(), theirs.logit_scale.exp().reshape(()), rtol=1e-5, atol=0)
    if theirs.logit_bias is not None:
        torch.testing.assert_close(ours.logit_bias, theirs.logit_bias.reshape(1))


def without_text(state):
    """The same names with and without `custom_text`."""
    return {name.removeprefix("text."): tensor for name, tensor in state.items()}


CLIPA = {"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True}


def with_head(name, pool, **words):
    """The classifier of an encoder of timm is the projection."""
    vision = {"timm_model_name": name, "timm_pool": pool, "timm_proj": None, "image_size": 160}
    return model_cfg(vision, words, custom_text=True)


CONFIGS = {
    "gelu": model_cfg(),
    "quick gelu": model_cfg(quick_gelu=True),
    "wide heads, tanh, mean": model_cfg(
        {"head_width": 32, "pool_type": "avg", "act_kwargs": {"approximate": "tanh"}, "mlp_ratio": 2.2},
        {"act_kwargs": {"approximate": "tanh"}, "norm_kwargs": {"eps": 1e-6}},
    ),
    "first token, bias of the logits": model_cfg(None, {"pool_type": "first"}, init_logit_bias=-10),
    "custom text": model_cfg(custom_text=True),
    "timm": model_cfg({"timm_model_name": "test_convnext", "timm_pool": "", "image_size": 160}),
    "siglip": model_cfg(
        {"timm_model_name": "vit_base_patch32_siglip_256", "timm_pool": "map", "timm_proj": "none", "image_size": 256},
        SIGLIP_TEXT,
        embed_dim=768,
        custom_text=True,
        init_logit_bias=-10,
    ),
    "siglip without a projection": model_cfg(
        {"timm_model_name": "test_vit3", "timm_pool": "map", "timm_proj": "none", "image_size": 160},
        {**SIGLIP_TEXT, "proj_bias": False, "proj_type": "none", "width": 96, "heads": 3},
        embed_dim=96,
        custom_text=True,
    ),
    "clipa": model_cfg(CLIPA, {"no_causal_mask": True, "pool_type": "last"}),
    "usual heads": model_cfg(text_cfg={"context_length": 12, "vocab_size": VOCAB, "width": 32, "layers": 2}),
    "texts without a projection": model_cfg(None, {"proj_type": "none"}, embed_dim=64),
    "layer scale": model_cfg({"ls_init_value": 0.3}, {"ls_init_value": 0.2}),
    "eva": with_head("test_vit", "token"),
    "mobileclip": with_head("test_convnext", "avg", no_causal_mask=True),
    "perception encoder": with_head("test_vit3", "map"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_of_open_clip_is_imported_and_exported(name, tokenizer, tmp_path):
    open_clip = pytest.importorskip("open_clip")
    config = json.loads(json.dumps(CONFIGS[name]))
    theirs = random_open_clip(open_clip, json.loads(json.dumps(config)))
    folder = save(tmp_path / "theirs", theirs, config)
    import_model(folder, None, tmp_path / "ours", format="openclip", tokenizer=tokenizer)
    opened = open_model(tmp_path / "ours")
    size = config["vision_cfg"]["image_size"]
    assert_same(opened.model, theirs, size)
    assert opened.config.data.normalize == ((0.5,) * 3, (0.25,) * 3)
    export(tmp_path / "ours", "openclip", tmp_path / "back")
    again, _, transform = open_clip.create_model_and_transforms(f"local-dir:{tmp_path / 'back'}")
    assert_same(opened.model, again.eval(), size, end=CaptionTokenizer(tokenizer).suffix[-1])
    state, wanted = without_text(again.state_dict()), without_text(theirs.state_dict())
    if name == "siglip without a projection":
        assert torch.equal(state.pop("text_projection.weight"), torch.eye(96))
        assert not state.pop("text_projection.bias").any()
    if name == "texts without a projection":
        assert torch.equal(state.pop("text_projection"), torch.eye(64))
    if name == "layer scale":  # written as part of the layers before
        state, wanted = ({key: some[key] for key in some if "resblocks" not in key} for some in (state, wanted))
    assert state.keys() == wanted.keys()
    for key, tensor in state.items():
        torch.testing.assert_close(tensor, wanted[key], rtol=0, atol=1e-6)
    assert str(size) in str(transform)
    assert "[0.5, 0.5, 0.5]" in str(transform)
    assert (tmp_path / "back" / "README.md").read_text().count("open_clip.get_tokenizer") == 1


HF_TEXTS = {
    "as published": ({}, "mean", "text_mlp"),
    "first token, linear": (
        {"hf_pooler_type": "cls_last_hidden_state_pooler", "hf_proj_type": "linear"},
        0,
        "linear",
    ),
}


@pytest.mark.parametrize("kind", ["BertConfig", "RobertaConfig", "XLMRobertaConfig"])
@pytest.mark.parametrize("name", HF_TEXTS)
def test_a_text_encoder_of_transformers_in_open_clip_is_imported_and_exported(name, kind, tokenizer, tmp_path):
    open_clip, transformers = pytest.importorskip("open_clip"), pytest.importorskip("transformers")
    more, pool, projection = HF_TEXTS[name]
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    shape = getattr(transformers, kind)(vocab_size=VOCAB, max_position_embeddings=20, pad_token_id=0, **sizes)
    shape.save_pretrained(tmp_path / "words")
    caption = {"hf_model_name": str(tmp_path / "words"), "hf_tokenizer_name": "x", "hf_model_pretrained": False, **more}
    config = {**model_cfg(quick_gelu=True, custom_text=True), "text_cfg": {**caption, "context_length": 12}}
    theirs = random_open_clip(open_clip, json.loads(json.dumps(config)))
    del config["text_cfg"]["hf_model_pretrained"]
    folder = save(tmp_path / "theirs", theirs, config)
    import_model(folder, None, tmp_path / "ours", format="openclip", tokenizer=tokenizer)
    opened = open_model(tmp_path / "ours")
    assert (opened.config.model.text.pool_token, opened.config.model.projection.kind) == (pool, projection)
    assert opened.config.data.max_length == 12
    assert_same(opened.model, theirs)
    with torch.no_grad():
        ids = their_ids(lengths=(12, 12))[0]
        unpadded = opened.model(input_ids=ids)["text"]
        torch.testing.assert_close(unpadded, theirs.encode_text(ids, normalize=True), rtol=0, atol=1e-5)
    export(tmp_path / "ours", "openclip", tmp_path / "back")
    again, _, _ = open_clip.create_model_and_transforms(f"local-dir:{tmp_path / 'back'}")
    assert_same(opened.model, again.eval())
    state, wanted = again.state_dict(), theirs.state_dict()
    assert state.keys() == wanted.keys()
    for key, tensor in state.items():
        torch.testing.assert_close(tensor, wanted[key], rtol=0, atol=1e-6)
    if pool == "mean":
        with pytest.raises(InputError) as refused:
            export(tmp_path / "ours", "zerovl", tmp_path / "model.pth")
        advice = followed(refused.value, "recipes/clip/original.py: ZeroVL reads captions from one token")
        export(tmp_path / "ours", advice.split()[-1], tmp_path / "native")
        with pytest.raises(InputError, match=r"do not support model\.projection\.kind=text_mlp"):
            export(tmp_path / "ours", "huggingface", tmp_path / "dual")


def test_the_exported_tokenizer_gives_open_clip_the_same_ids(tokenizer, tmp_path, monkeypatch):
    open_clip = pytest.importorskip("open_clip")
    theirs = random_open_clip(open_clip, model_cfg())
    folder = save(tmp_path / "theirs", theirs, model_cfg())
    import_model(folder, None, tmp_path / "ours", format="openclip", tokenizer=tokenizer)
    export(tmp_path / "ours", "openclip", tmp_path / "back")
    ids = open_clip.get_tokenizer(f"local-dir:{tmp_path / 'back'}")(CAPTIONS)
    expected = CaptionTokenizer(tokenizer).encode(CAPTIONS, 12, num_columns=12)["input_ids"]
    assert ids.tolist() == expected.tolist()
    monkeypatch.chdir(tmp_path)
    (snippet,) = re.findall(r"```python\n(.*?)```", (tmp_path / "back" / "README.md").read_text(), re.DOTALL)
    exec(compile(snippet, "card", "exec"), {})
    (command,) = re.findall(r"^pretrainkit (.*)$", (tmp_path / "back" / "README.md").read_text(), re.MULTILINE)
    with pytest.raises(DataError) as refused_alone:
        import_model("back", None, tmp_path / "model")
    format = followed(refused_alone.value, "running/exchange.py: … is a model of open_clip").split()[-1]
    assert f" --format {format} " in command
    succeed(*command.split())
    assert open_model(tmp_path / "model").config.model == open_model(tmp_path / "ours").config.model
    export(tmp_path / "ours", "openclip", tmp_path / "named", name="someone/model")
    assert '("hf-hub:someone/model")' in (tmp_path / "named" / "README.md").read_text()


def word_tokenizer(folder):
    """A tokenizer that keeps case and punctuation, in the form of a hub repository."""
    import tokenizers

    pieces = ["<pad>", "</s>", "<unk>", "a", "Photo", "photo", "of", "A", "CAT", "cat", ",", ".", "(", ")", "_", "b"]
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(dict(zip(pieces, range(16), strict=True)), "<unk>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    model.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


@pytest.mark.parametrize("cleaning", ["canonicalize", "lower", "whitespace"])
def test_captions_are_cleaned_as_open_clip_cleans_them(cleaning, tmp_path):
    """The SigLIPs of open_clip have lower case without punctuation, which is in no file of their tokenizer."""
    open_clip = pytest.importorskip("open_clip")
    options = {"hf_tokenizer_name": "any", "tokenizer_kwargs": {"clean": cleaning}, "pool_type": "eos", "eos_id": 1}
    config = model_cfg(None, {"vocab_size": 16})
    theirs = random_open_clip(open_clip, json.loads(json.dumps(config)))
    config["text_cfg"] |= options
    folder = save(tmp_path / "theirs", theirs, config)
    word_tokenizer(folder)
    import_model(folder, None, tmp_path / "ours", format="openclip")
    texts = ["A  Photo of\ta CAT, (cat).", "a_b", "photo", ""]
    expected = open_clip.get_tokenizer(f"local-dir:{folder}")(texts).tolist()
    ours = CaptionTokenizer(tmp_path / "ours" / "tokenizer")
    assert ours.encode(texts, 12, num_columns=12)["input_ids"].tolist() == expected
    export(tmp_path / "ours", "openclip", tmp_path / "back")
    assert open_clip.get_tokenizer(f"local-dir:{tmp_path / 'back'}")(texts).tolist() == expected


@pytest.mark.parametrize("name", ["clipa", "mobileclip"])
def test_rows_are_filled_as_in_open_clip(name, tokenizer, tmp_path):
    """Models that attend to padding need that of their training, for any files of the tokenizer."""
    open_clip = pytest.importorskip("open_clip")
    is_clipa = name == "clipa"
    pool = {"pool_type": "last"} if is_clipa else {"pool_type": "eos", "eos_id": 3}
    config = model_cfg(None, {"no_causal_mask": True, **pool})
    theirs = random_open_clip(open_clip, json.loads(json.dumps(config)))
    if is_clipa:
        config["text_cfg"] |= {"hf_tokenizer_name": "any", "tokenizer_kwargs": {"strip_sep_token": True}}
    folder = save(tmp_path / "theirs", theirs, config)
    pad = {"pad_token": "[PAD]" if is_clipa else "[SEP]"}
    about = json.loads((tokenizer / "tokenizer_config.json").read_text())
    (folder / "tokenizer.json").write_bytes((tokenizer / "tokenizer.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({**about, **pad}))
    (folder / "special_tokens_map.json").write_text(json.dumps(pad))
    import_model(folder, None, tmp_path / "ours", format="openclip")
    export(tmp_path / "ours", "openclip", tmp_path / "back")
    texts = [*CAPTIONS, CAPTIONS[1] * 4]
    ours = CaptionTokenizer(tmp_path / "ours" / "tokenizer").encode(texts, 12, num_columns=12)
    ids, num_tokens = map(torch.from_numpy, ours.values())
    expected = torch.from_numpy(CaptionTokenizer(tokenizer).encode(texts, 12, num_columns=12)["input_ids"])
    if is_clipa:
        expected = open_clip.get_tokenizer(f"local-dir:{folder}")(texts)
    assert ids.tolist() == expected.tolist()
    assert open_clip.get_tokenizer(f"local-dir:{tmp_path / 'back'}")(texts).tolist() == expected.tolist()
    again, _, _ = open_clip.create_model_and_transforms(f"local-dir:{tmp_path / 'back'}")
    with torch.no_grad():
        own = open_model(tmp_path / "ours").model(input_ids=ids, num_tokens=num_tokens)["text"]
        for model in (theirs, again.eval()):
            torch.testing.assert_close(own, model.encode_text(ids.long(), normalize=True), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"tokenizer_kwargs": {"clean": "other"}}, "has tokenizer_kwargs.clean 'other', which is not supported"),
        ({"tokenizer_mode": "clips"}, "has tokenizer_mode 'clips', which this recipe does not support"),
    ],
)
def test_tokenizers_that_are_used_in_another_way_are_refused(setting, message, tmp_path):
    state = {name: tensor.contiguous() for name, tensor in LikeOpenAI().state_dict().items()}
    save_file(state, tmp_path / "open_clip_model.safetensors")
    content = {"model_cfg": model_cfg(None, {"heads": 1, **setting})}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=message):
        import_model(tmp_path, None, tmp_path / "ours", format="openclip")


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, width // 64)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", nn.Linear(width, 4 * width))
        self.mlp.add_module("c_proj", nn.Linear(4 * width, width))


class Stack(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.resblocks = nn.Sequential(Layer(width), Layer(width))


class Visual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 8, 8, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(width))
        self.positional_embedding = nn.Parameter(torch.randn(17, width))
        self.ln_pre, self.ln_post, self.transformer = nn.LayerNorm(width), nn.LayerNorm(width), Stack(width)
        self.proj = nn.Parameter(torch.randn(width, 20))


class LikeOpenAI(nn.Module):
    """The names of OpenAI's files; its forward pass does not matter."""

    def __init__(self):
        super().__init__()
        self.visual, self.transformer, self.ln_final = Visual(128), Stack(64), nn.LayerNorm(64)
        self.token_embedding = nn.Embedding(VOCAB, 64)
        self.positional_embedding = nn.Parameter(torch.randn(12, 64))
        self.text_projection, self.logit_scale = nn.Parameter(torch.randn(64, 20)), nn.Parameter(torch.tensor(3.0))
        self.register_buffer("input_resolution", torch.tensor(32))
        self.register_buffer("context_length", torch.tensor(12))
        self.register_buffer("vocab_size", torch.tensor(VOCAB))

    def forward(self, image):
        return self.visual.conv1(image)


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("kind", ["program", "state dict", "training checkpoint"])
def test_files_of_openai_are_read_without_running_them(kind, tmp_path):
    torch.manual_seed(0)
    theirs, path = LikeOpenAI().half(), tmp_path / "ViT-B-32.pt"
    if kind == "program":
        torch.jit.save(torch.jit.trace(theirs, torch.zeros(1, 3, 32, 32).half()), path)
    else:
        prefix = "" if kind == "state dict" else "module."
        state = {prefix + name: tensor for name, tensor in theirs.state_dict().items()}
        torch.save(state if kind == "state dict" else {"epoch": 3, "state_dict": state}, path)
    import_model(path, None, tmp_path / "ours", format="openai")
    opened = open_model(tmp_path / "ours")
    assert opened.config.model.image.activation == opened.config.model.text.activation == "quick_gelu"
    assert opened.config.model.image.image_size == 32
    assert opened.config.model.image.num_heads == 2
    assert opened.config.data.normalize[0][0] == pytest.approx(0.48145466)
    state, wanted = opened.model.state_dict(), theirs.float().state_dict()
    assert torch.equal(state["image_projection.linear.weight"], wanted["visual.proj"].T)
    assert torch.equal(
        state["text.encoder.layers.1.attention.qkv.weight"], wanted["transformer.resblocks.1.attn.in_proj_weight"]
    )
    open_clip = pytest.importorskip("open_clip")
    model = open_clip.CLIP(**model_cfg(None, {"heads": 1}, quick_gelu=True)).eval()
    model.load_state_dict({name: wanted[name] for name in model.state_dict()})
    assert_same(opened.model, model)


def test_a_file_alone_needs_a_config_with_its_heads(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(LikeOpenAI().state_dict(), path)
    with pytest.raises(InputError, match="does not state the heads"):
        import_model(path, None, tmp_path / "ours", format="openclip")
    torch.save({"visual.conv1.weight": torch.zeros(3, 3, 3, 3)}, path)
    with pytest.raises(CheckpointError, match="must be a vision transformer with a class token, a ResNet of OpenAI"):
        import_model(path, None, tmp_path / "ours", format="openai")
    torch.save({"visual.conv1.weight": torch.zeros(8, 3, 3, 3), "visual.layer1.0.conv1.weight": torch.ones(1)}, path)
    with pytest.raises(CheckpointError, match=r"a ResNet of 8 channels and \(1, 0, 0, 0\) blocks"):
        import_model(path, None, tmp_path / "ours", format="openai")


@pytest.mark.parametrize("is_openai", [True, False])
def test_resnets_of_openai_are_encoders_of_timm(is_openai, tokenizer, tmp_path):
    open_clip = pytest.importorskip("open_clip")
    width = 128 if is_openai else 64
    config = model_cfg({}, {"heads": width // 64, "width": width}, quick_gelu=is_openai)
    config["vision_cfg"] = {"layers": [3, 4, 6, 3], "width": 64, "patch_size": None, "image_size": 224}
    theirs = random_open_clip(open_clip, dict(config))
    with torch.no_grad():
        for name, buffer in theirs.visual.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(std=0.1)
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 2)
        theirs.visual.attnpool.c_proj.bias.normal_()
    if is_openai:
        path = tmp_path / "RN50.pt"
        torch.save(theirs.state_dict(), path)
        import_model(path, None, tmp_path / "ours", format="openai")
    else:
        folder = save(tmp_path / "theirs", theirs, config)
        import_model(folder, None, tmp_path / "ours", format="openclip", tokenizer=tokenizer)
    opened = open_model(tmp_path / "ours")
    assert opened.config.model.image.name == "resnet50_clip"
    assert_same(opened.model, theirs, size=224)
    if not is_openai:
        export(tmp_path / "ours", "openclip", tmp_path / "back")
        again, *_ = open_clip.create_model_and_transforms(f"local-dir:{tmp_path / 'back'}")
        assert_same(opened.model, again.eval(), size=224, end=CaptionTokenizer(tokenizer).suffix[-1])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"text_cfg": {"hf_model_name": "bert-base-uncased", "hf_pooler_type": "cls_pooler"}},
            "hf_pooler_type 'cls_pooler': the model reads captions with a pooler",
        ),
        (
            {"text_cfg": {"hf_model_name": "bert-base-uncased", "hf_proj_type": None}},
            "hf_proj_type None with a projection of images",
        ),
        ({"vision_cfg": {"attentional_pool": True}}, "attentional_pool True"),
        ({"vision_cfg": {"new_thing": 3}}, "new_thing 3, which is unknown"),
        ({"multimodal_cfg": {"width": 3}}, "multimodal_cfg"),
        ({"text_cfg": {"no_causal_mask": True, "pool_type": "first"}}, "the first token attends to padding"),
        ({"vision_cfg": {"no_ln_pre": True}}, "no_ln_pre True and final_ln_after_pool False with pool_type None"),
        ({"vision_cfg": {**CLIPA, "no_ln_pre": False}}, "no_ln_pre False and final_ln_after_pool True"),
        ({"vision_cfg": {"image_size": [16, 64]}}, r"image_size \[16, 64\]"),  # as many patches as of 32 by 32 pixels
        ({"preprocess_cfg": {"size": [32, 48]}}, r"size \[32, 48\]"),
        ({"preprocess_cfg": {"mode": "L"}}, "mode 'L', which this recipe does not support"),
    ],
)
def test_parts_that_ours_lack_are_refused(change, told, tmp_path):
    config, preprocess = model_cfg(), change.get("preprocess_cfg", {})
    for name, values in change.items():
        if name != "preprocess_cfg":
            config[name] = {**config.get(name, {}), **values}
    folder = tmp_path / "theirs"
    folder.mkdir()
    torch.save(LikeOpenAI().state_dict(), folder / "open_clip_pytorch_model.bin")
    about = {"model_cfg": config, "preprocess_cfg": preprocess}
    (folder / "open_clip_config.json").write_text(json.dumps(about))
    with pytest.raises(CheckpointError, match=told):
        import_model(folder, None, tmp_path / "ours", format="openclip")


@pytest.mark.parametrize("kind", ["huggingface", "siglip", "openclip"])
def test_tensors_without_a_place_are_refused(kind, transformers, tmp_path):
    """The library that wrote them may use them."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    parts = {**sizes, "vocab_size": VOCAB}, {**sizes, "image_size": 32, "patch_size": 8}
    names, old = ["classifier.weight", "text_model.head.norm"], {"text_model.embeddings.position_ids": torch.ones(1)}
    folder = tmp_path / kind
    if kind == "openclip":
        folder = save(folder, LikeOpenAI(), model_cfg())
        (folder / "open_clip_pytorch_model.bin").unlink()
        state, names, old = LikeOpenAI().state_dict(), ["visual.norm.weight", "transformer.gate"], {}
    else:
        model = transformers.CLIPModel if kind == "huggingface" else transformers.SiglipModel
        model = model(model.config_class(text_config=parts[0], vision_config=parts[1]))
        model.save_pretrained(folder)
        state = model.state_dict()
    state = {name: tensor.contiguous() for name, tensor in state.items()} | old
    format = "openclip" if kind == "openclip" else "huggingface"
    for name in names:
        save_file(state | {name: torch.ones(1)}, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match="1 tensors have no place"):
            import_model(folder, None, tmp_path / "ours", format=format)
    save_file(state, folder / "model.safetensors")
    import_model(folder, None, tmp_path / "ours", format=format)


def siglip(transformers, words=None, **vision):
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    shared = {**sizes, "intermediate_size": 80, "vocab_size": VOCAB, "max_position_embeddings": 12}
    shape = {**sizes, "intermediate_size": 100, "image_size": 32, "patch_size": 8}
    torch.manual_seed(0)
    config = transformers.SiglipConfig(
        text_config={**shared, "projection_size": 48, **(words or {})}, vision_config={**shape, **vision}
    )
    model = transformers.SiglipModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
            if name.startswith("logit"):
                parameter.fill_(2.5 if name == "logit_scale" else -7.0)
    return model


@torch.no_grad()
def assert_same_siglip(ours, theirs, size=32):
    pixels = ours.normalized(images(size=size))
    ids, num_tokens = their_ids()
    own, other = ours(pixels, ids, num_tokens), theirs(pixel_values=pixels, input_ids=ids)
    torch.testing.assert_close(own["image"], other.image_embeds, rtol=0, atol=1e-5)
    torch.testing.assert_close(own["text"], other.text_embeds, rtol=0, atol=1e-5)
    logits = own["image"] @ own["text"].T * ours.logit_scale() + ours.logit_bias
    torch.testing.assert_close(logits, other.logits_per_image, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("vision", [{}, {"image_size": 36, "patch_size": 8, "hidden_act": "gelu"}])
def test_siglip_of_transformers_is_imported_and_exported(timm, transformers, tokenizer, vision, tmp_path):
    theirs = siglip(transformers, **vision)
    theirs.save_pretrained(tmp_path / "theirs")
    import_model(tmp_path / "theirs", None, tmp_path / "ours", tokenizer=tokenizer)
    opened = open_model(tmp_path / "ours")
    assert opened.config.objective.loss == "siglip"
    assert opened.config.data.pad_captions == "max_length"
    assert opened.config.data.max_length == 12
    size = vision.get("image_size", 32)
    assert_same_siglip(opened.model, theirs, size)
    export(tmp_path / "ours", "huggingface", tmp_path / "back")
    again = transformers.SiglipModel.from_pretrained(tmp_path / "back").eval()
    assert_same_siglip(opened.model, again, size)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in theirs.state_dict().items())
    processor = transformers.AutoProcessor.from_pretrained(tmp_path / "back")
    assert type(processor).__name__ == "SiglipProcessor"
    assert_processed_alike(opened, processor, size)


def assert_processed_alike(opened, processor, size):
    from PIL import Image

    from pretrainkit.images.transforms import compose

    pixels = images(1, 90)[0].permute(1, 2, 0).numpy()
    theirs = processor.image_processor(images=[Image.fromarray(pixels)], return_tensors="pt")["pixel_values"]
    transform = compose(opened.config.data.valid_transforms)
    assert transform.size == size
    assert theirs.shape[-1] == size


def test_naflex_is_refused_with_the_releases_that_are_read(transformers, tmp_path):
    save_file({"logit_scale": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "siglip2"}')
    with pytest.raises(CheckpointError, match="fixed resolution"):
        import_model(tmp_path, None, tmp_path / "ours")


TEXTS = ["A photo of 2 Cats, (maybe dogs)!", "don't   STOP", "", "über-naïve…", "a red cat"]


def test_siglips_tokenizer_gives_the_ids_of_transformers(transformers, tmp_path):
    import sentencepiece

    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(["a photo of a cat", "a red dog and two blue cats", "über naive don t stop maybe"] * 20))
    sentencepiece.SentencePieceTrainer.train(
        input=str(lines),
        model_prefix=str(tmp_path / "spiece"),
        vocab_size=60,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    theirs = transformers.SiglipTokenizer(str(tmp_path / "spiece.model"), pad_token="</s>", model_max_length=16)
    theirs.save_pretrained(tmp_path / "folder")
    ours = CaptionTokenizer(tmp_path / "folder")
    expected = theirs(TEXTS, padding="max_length", max_length=16, truncation=True)["input_ids"]
    assert ours.encode(TEXTS, 16, num_columns=16)["input_ids"].tolist() == expected


@pytest.mark.parametrize("has_lower_case", [True, False])
def test_siglip_2s_tokenizer_gives_the_ids_of_transformers(has_lower_case, transformers, tmp_path):
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += list("aocatphfdogsmybedn2!,()")
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    theirs = transformers.Siglip2Tokenizer(vocab=vocab, merges=[], add_eos_token=True)
    theirs.save_pretrained(tmp_path / "folder")
    path = tmp_path / "folder" / "tokenizer.json"
    content = json.loads(path.read_text())
    if not has_lower_case:  # as Gemma's own file
        content["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        path.write_text(json.dumps(content))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert theirs.tokenize("CAT") == ["c", "a", "t"]
    assert CaptionTokenizer(tmp_path / "folder").encode_bare(TEXTS) == [
        theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS
    ]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A setting that names a set of pairs, and the folder of its tokenizer."""
    root = tmp_path_factory.mktemp("pairs")
    write_csv_set(root / "set", "train", rows(12, 2))
    write_csv_set(root / "set", "valid", rows(6, 2, first=100))
    return f"data.train={root}/set", make_pair_tokenizer(root / "tokenizer")


def train_on(folder, pairs, out, *settings):
    words = [
        *(f"init_from={folder}", f"data.train={pairs}", f"data.valid={pairs}", f"data.tokenizer={folder}/tokenizer"),
        *("data.batch_size=8", "data.microbatch_size=4", "num_steps=20", "schedule.num_warmup_steps=2"),
        *("schedule.warmup_share=null", "data.num_epochs=null", "optimizer.peak_lr=1e-3", "precision.compute=float32"),
        *("checkpoint.asynchronous=false", "log.every_steps=10", "evaluate.every_steps=20"),
    ]
    succeed("train", str(folder / "config.yaml"), "--out", str(out), "-q", *words, *settings)
    return api.open_model(out)


def changed(before, after):
    """The first parts of the names of tensors that differ."""
    return {name.partition(".")[0] for name, tensor in after.items() if not torch.equal(tensor, before[name])}


TRAINED = {
    "locked": model_cfg({"width": 64}, {"vocab_size": 80, "heads": 1}),
    "mobileclip": with_head("test_vit", "token", vocab_size=80, heads=1, no_causal_mask=True),
    "clipa": model_cfg(CLIPA, {"vocab_size": 80, "pool_type": "last", "no_causal_mask": True}),
}


@pytest.mark.parametrize("name", TRAINED)
def test_a_model_of_open_clip_is_trained_and_used_there_again(name, pairs, tmp_path):
    open_clip = pytest.importorskip("open_clip")
    sets, tokenizer = pairs
    config, settings = TRAINED[name], ()
    theirs = random_open_clip(open_clip, json.loads(json.dumps(config)))
    import_model(
        save(tmp_path / "theirs", theirs, config), None, tmp_path / "ours", format="openclip", tokenizer=tokenizer
    )
    if name == "locked":
        settings = ("model.image.trainable=false", "optimizer.layer_decay=0.7")
    trained = train_on(tmp_path / "ours", sets.partition("=")[2], tmp_path / "run", *settings)
    before, after = open_model(tmp_path / "ours").model.state_dict(), trained.model.state_dict()
    everything = {"image", "text", "image_projection", "text_projection", "temperature"}
    assert changed(before, after) == (everything - {"image"} if settings else everything)
    succeed("export", str(tmp_path / "run"), "--format", "openclip", "--out", str(tmp_path / "back"))
    again, _, _ = open_clip.create_model_and_transforms(f"local-dir:{tmp_path / 'back'}")
    texts = ["a red dog", "the cat sits near a house"]
    ids = open_clip.get_tokenizer(f"local-dir:{tmp_path / 'back'}")(texts)
    own = CaptionTokenizer(trained.tokenizer).encode(texts, 12, num_columns=12)
    size = config["vision_cfg"]["image_size"]
    pixels = torch.randn(2, 3, size, size)
    with torch.no_grad():
        ours = trained.model.eval()(pixels, *(torch.from_numpy(own[name]) for name in ("input_ids", "num_tokens")))
        image, text = again.eval().encode_image(pixels, normalize=True), again.encode_text(ids, normalize=True)
    torch.testing.assert_close(ours["image"], image, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours["text"], text, rtol=0, atol=1e-5)


def test_a_short_run_from_an_imported_model_needs_its_data_and_its_tokenizer_alone(pairs, tokenizer, tmp_path):
    open_clip = pytest.importorskip("open_clip")
    theirs = random_open_clip(open_clip, model_cfg())
    folder = save(tmp_path / "theirs", theirs, model_cfg())
    import_model(folder, None, tmp_path / "ours", format="openclip", tokenizer=tokenizer)
    settings = [f"init_from={tmp_path / 'ours'}", pairs[0], "data.batch_size=4", "num_steps=20"]
    config = api.load_config(str(tmp_path / "ours" / "config.yaml"), settings)
    assert config.problems() == []
    assert config.schedule.warmup_steps(400_000) == 2000
    with pytest.raises(ConfigError) as refused:
        tokenizer_folder(config)
    setting = followed(refused.value, "recipes/clip/captions.py: data.tokenizer is not set")
    assert tokenizer_folder(config.changed(data={"tokenizer": setting.partition("=")[2]})).is_dir()


@pytest.mark.parametrize("settings", [("objective.loss=siglip",), ("objective.loss=infonce",)])
def test_a_siglip_is_trained_and_used_in_transformers_again(timm, transformers, settings, pairs, tmp_path):
    sets, tokenizer = pairs
    theirs = siglip(transformers, words={"vocab_size": 80})
    theirs.save_pretrained(tmp_path / "theirs")
    import_model(tmp_path / "theirs", None, tmp_path / "ours", tokenizer=tokenizer)
    trained = train_on(tmp_path / "ours", sets.partition("=")[2], tmp_path / "run", *settings)
    before, after = open_model(tmp_path / "ours").model.state_dict(), trained.model.state_dict()
    bias = {"logit_bias"} if settings == ("objective.loss=siglip",) else set()
    assert changed(before, after) == {"image", "text", "text_projection", "temperature"} | bias
    succeed("export", str(tmp_path / "run"), "--out", str(tmp_path / "back"))
    again = transformers.SiglipModel.from_pretrained(tmp_path / "back").eval()
    processor = transformers.AutoProcessor.from_pretrained(tmp_path / "back")
    texts = ["a red dog", "the cat sits near a house"]
    inputs = processor(text=texts, padding="max_length", return_tensors="pt")
    own = CaptionTokenizer(trained.tokenizer).encode(texts, 12, num_columns=12)
    assert inputs["input_ids"].tolist() == own["input_ids"].tolist()
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        ours = trained.model.eval()(pixels, torch.from_numpy(own["input_ids"]))
        other = again(pixel_values=pixels, input_ids=inputs["input_ids"])
    torch.testing.assert_close(ours["image"], other.image_embeds, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours["text"], other.text_embeds, rtol=0, atol=1e-5)


def test_reading_the_last_slot_needs_rows_of_one_length(timm, transformers, tokenizer, tmp_path):
    siglip(transformers).save_pretrained(tmp_path / "theirs")
    import_model(tmp_path / "theirs", None, tmp_path / "ours", tokenizer=tokenizer)
    path = str(tmp_path / "ours" / "config.yaml")
    [told] = [
        one for one in api.load_config(path, ["data.pad_captions=longest"]).problems() if "attends to padding" in one
    ]
    setting = followed(told, "recipes/clip/config.py: model.text.pool=… attends to padding").split()[1]
    assert not [one for one in api.load_config(path, [setting]).problems() if "attends to padding" in one]


def test_a_model_on_the_hub_is_imported_by_name_also_without_network_later(tokenizer, tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    save_file(
        {name: tensor.contiguous() for name, tensor in LikeOpenAI().state_dict().items()},
        folder / "open_clip_model.safetensors",
    )
    content = {"model_cfg": model_cfg(None, {"heads": 1})}
    (folder / "open_clip_config.json").write_text(json.dumps(content))
    with served_hub(tmp_path) as hub:
        hub.stored.update({path.name: path.read_bytes() for path in [*folder.iterdir(), tokenizer / "tokenizer.json"]})
        hub.stored["pytorch_model.bin"] = b"is not fetched where there are safetensors"
        hub.stored["README.md"] = b"---\nlicense: apache-2.0\n---\n# Someone's model\n"
        words = ("import", "hf-hub:someone/set", "--format", "openclip", "--out")
        done = hub.command(*words, str(tmp_path / "ours"))
        assert done.returncode == 0, done.stderr
        missing = hub.command("import", "hf-hub:someone/nothing", "--out", str(tmp_path / "none"))
        assert missing.returncode == 2
        assert "someone/nothing cannot be downloaded from the hub" in missing.stderr
        hub.environment["HF_HUB_OFFLINE"] = "1"
        again = hub.command(*words, str(tmp_path / "again"))
        assert again.returncode == 0, again.stderr
        assert "using a copy of an earlier download" in again.stderr
        assert "someone/set: licence apache-2.0; read it" in again.stderr
        unknown = hub.command("import", "hf-hub:someone/nothing", "--out", str(tmp_path / "none"))
        assert unknown.returncode == 2
        assert "there is no copy of an earlier download of someone/nothing\n" in unknown.stderr
        assert "using a copy" not in unknown.stderr
    assert not [*tmp_path.rglob("pytorch_model.bin")]
    for name in ("ours", "again"):
        opened = open_model(tmp_path / name)
        assert opened.tokenizer is not None
        assert opened.config.model.image.hidden_size == 128


def test_a_run_is_given_to_zerovl(timm, transformers, tmp_path):
    """Its `ckpt.external_resume` reads this form: a mapping with `state_dict`, names without `module.`."""
    config = run_config(tiny_timm(), tiny_bert(tmp_path / "bert"), temperature=TemperatureConfig(kind="parameter"))
    model = random_model(config)
    write_native(config, model, None, tmp_path / "ours")
    succeed("export", str(tmp_path / "ours"), "--format", "zerovl", "--out", str(tmp_path / "model.pth"))
    state = torch.load(tmp_path / "model.pth", weights_only=True)["state_dict"]
    assert {name.split(".")[0] for name in state} == {
        *("image_encoder", "text_encoder", "image_projection", "text_projection", "loss")
    }
    import_model(
        tmp_path / "model.pth", None, tmp_path / "again", format="zerovl", config=tmp_path / "ours" / "config.yaml"
    )
    again = open_model(tmp_path / "again").model.state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(InputError, match=r"choose a file name that ends in \.pth"):
        export(tmp_path / "ours", "zerovl", tmp_path / "model.bin")


SIGLIP_WORDS = {"causal": False, "pool": "last"}
SIGLIP_VIT = {"patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 3}


def text_only(image=None, **words):
    image = image or tiny_timm(name="vit_base_patch16_siglip_224", options=SIGLIP_VIT)
    return run_config(image, text(**words), projection=ProjectionConfig(kind="text_only", dim=24))


@pytest.mark.parametrize(
    ("config", "site"),
    [
        (text_only(), "transformers' SigLIP needs model.text.pool=last"),
        (text_only(tiny_timm(), **SIGLIP_WORDS), "transformers' SigLIP has no image tower"),
    ],
    ids=["causal", "class token"],
)
def test_parts_that_siglip_of_transformers_lacks_are_exported_as_advised(config, site, timm, tokenizer, tmp_path):
    write_native(config, random_model(config), tokenizer, tmp_path / "ours")
    with pytest.raises(InputError) as refused:
        export(tmp_path / "ours", "huggingface", tmp_path / "theirs")
    if site.endswith("last"):
        advice = followed(
            refused.value, "recipes/clip/siglip_layout.py: transformers' SigLIP needs model.text.pool=last"
        )
    else:
        advice = followed(refused.value, "recipes/clip/siglip_layout.py: transformers' SigLIP has no image tower")
    export(tmp_path / "ours", advice.split()[-1], tmp_path / "again")


def test_images_without_projection_have_the_width_of_the_embeddings(timm):
    config = text_only().changed(model={"projection": {"dim": 20}})
    with pytest.raises(ConfigError) as refused:
        random_model(config)
    advice = followed(refused.value, "recipes/clip/model.py: model.projection.kind=text_only leaves")
    random_model(config.changed(model={"projection": {"dim": int(advice.rpartition("=")[2])}}))


def test_a_file_alone_is_read_with_the_settings_of_the_message(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(LikeOpenAI().state_dict(), path)
    with pytest.raises(InputError) as refused:
        import_model(path, None, tmp_path / "ours", format="openclip")
    assert "--config FILE" in followed(refused.value, "recipes/clip/open_clip_layout.py: … does not state the heads")
    config = run_config(
        vit(hidden_size=128, intermediate_size=512, num_heads=2),
        text(hidden_size=64, intermediate_size=256, num_heads=1),
    )
    (tmp_path / "mine.yaml").write_text(dump_yaml(config.model_dump(mode="json")))
    import_model(path, None, tmp_path / "first", format="openclip", config=tmp_path / "mine.yaml")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": model_cfg(None, {"heads": 1})}))
    import_model(path, None, tmp_path / "second", format="openclip")
    first, second = (open_model(tmp_path / name).config.model for name in ("first", "second"))
    assert (first.image, first.text) == (second.image, second.text)


def test_a_file_that_lacks_a_tensor_is_named(tmp_path):
    state = LikeOpenAI().state_dict()
    torch.save({name: tensor for name, tensor in state.items() if name != "ln_final.bias"}, tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match=r"has no tensor 'ln_final\.bias'\n  copy it again"):
        import_model(tmp_path / "weights.pt", None, tmp_path / "ours", format="openai")


def test_an_activation_that_siglip_of_transformers_lacks_is_exported_as_advised(timm, tokenizer, tmp_path):
    image = tiny_timm(name="vit_base_patch16_siglip_224", options=SIGLIP_VIT | {"act_layer": "relu"})
    config = text_only(image, **SIGLIP_WORDS)
    write_native(config, random_model(config), tokenizer, tmp_path / "ours")
    with pytest.raises(InputError) as refused:
        export(tmp_path / "ours", "huggingface", tmp_path / "theirs")
    advice = followed(refused.value, "recipes/clip/siglip_layout.py: … is not exported as a SigLIP")
    export(tmp_path / "ours", advice.split()[-1], tmp_path / "again")
