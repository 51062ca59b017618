"""Folders of transformers whose vocabulary is not a tokenizer.json: it is kept, converted, or refused, never lost."""

import json
import re
import shutil
from pathlib import Path

import pytest
import tokenizers
import torch

import pretrainkit as pk
from pretrainkit.recipes.bert.config import BertModelConfig
from pretrainkit.recipes.bert.convert import write_huggingface
from pretrainkit.recipes.bert.model import build
from pretrainkit.recipes.clip.captions import CaptionTokenizer
from pretrainkit.recipes.t5.config import T5ModelConfig
from pretrainkit.recipes.t5.convert import write_huggingface as write_t5
from pretrainkit.recipes.t5.model import T5
from pretrainkit.tasks.vocabulary import TokenizerJsonVocabulary
from pretrainkit.tasks.vocabulary_folder import open_vocabulary
from pretrainkit.tokenizers.load import load_tokenizer
from pretrainkit.tokenizers.shards import TokenShards
from support.command_line import refused, succeed
from support.remedies import followed

TEXTS = [
    "The cat is walking here, and the dog was walking there (really)!",
    "Cats and dogs like the garden; naïve ones too. Über-Größe",
    "it's 1,024 東京 🙂 unknownword\ttab  two blanks",
    "",
]
CONTROL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETRAINKIT_CACHE", str(tmp_path / "cache"))


def wordpiece(folder: Path, **about: object) -> Path:
    """vocab.txt alone, as the first BERTs were published; settings where they are not the usual ones."""
    found = tokenizers.BertWordPieceTokenizer(lowercase=bool(about.get("do_lower_case", True)))
    found.train_from_iterator(TEXTS * 9, vocab_size=180, show_progress=False, special_tokens=CONTROL)
    found.save_model(str(folder))
    if about:
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **about}))
    return folder


def byte_level(folder: Path) -> Path:
    """vocab.json and merges.txt, as RoBERTa was published."""
    found = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    found.train_from_iterator(TEXTS * 9, vocab_size=330, special_tokens=special, show_progress=False)
    found.save_model(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer"}))
    return folder


def sentencepieces(folder: Path) -> Path:
    """spiece.model alone, as ALBERT was published."""
    import sentencepiece

    (folder / "text.txt").write_text("\n".join(TEXTS * 9))
    sentencepiece.SentencePieceTrainer.train(
        input=f"{folder}/text.txt", model_prefix=f"{folder}/spiece", vocab_size=120, hard_vocab_limit=False,
        pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, minloglevel=2, user_defined_symbols=["[CLS]", "[SEP]", "[MASK]"],
        pad_piece="<pad>",
    )  # fmt: skip
    (folder / "text.txt").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "AlbertTokenizer"}))
    return folder


def model_in(folder: Path, vocab_size: int = 400) -> Path:
    """A tiny BERT as transformers writes it, without a tokenizer."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 24, "max_positions": 64}
    config = BertModelConfig(vocab_size=vocab_size, **sizes)
    write_huggingface(build(config, has_sentence_order=True).state_dict(), config, folder)
    return folder


KINDS = {
    "vocab.txt": wordpiece,
    "vocab.txt with case": lambda folder: wordpiece(folder, do_lower_case=False),
    "vocab.txt with accents": lambda folder: wordpiece(folder, do_lower_case=True, strip_accents=False),
    "merges.txt": byte_level,
    "spiece.model": sentencepieces,
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_import_keeps_the_vocabulary_and_reads_as_transformers_does(kind: str, tmp_path: Path, transformers) -> None:
    folder = KINDS[kind](model_in(tmp_path / "there"))
    assert not (folder / "tokenizer.json").is_file()
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    succeed("import", folder, "--out", tmp_path / "here")
    own = load_tokenizer(tmp_path / "here" / "tokenizer")
    assert [own.encode(text).tolist() for text in TEXTS] == expected
    assert len({index for ids in expected for index in ids}) > 30
    assert own.special.mask == theirs.mask_token_id
    assert pk.open_model(folder).generate(["the cat <mask> here"])[0]["text"].startswith("the cat")


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_list_of_pieces_is_read_as_the_library_of_tokenizers_reads_it(tmp_path: Path, lowercase: bool) -> None:
    folder = wordpiece(model_in(tmp_path / "there"), do_lower_case=lowercase)
    theirs = tokenizers.BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=lowercase)
    own = load_tokenizer(pk.open_model(folder).tokenizer)
    for text in TEXTS:
        assert own.encode(text).tolist() == theirs.encode(text, add_special_tokens=False).ids


def test_the_export_of_such_an_import_brings_its_tokenizer(tmp_path: Path, transformers) -> None:
    folder = wordpiece(model_in(tmp_path / "there"))
    pk.export(pk.import_model(folder, "bert", tmp_path / "here"), "huggingface", tmp_path / "again")
    theirs, again = (transformers.AutoTokenizer.from_pretrained(path) for path in (folder, tmp_path / "again"))
    assert again(TEXTS)["input_ids"] == theirs(TEXTS)["input_ids"]


def test_a_lone_tokenizer_json_is_exported_so_that_transformers_reads_its_ids(tmp_path: Path, transformers) -> None:
    """The file is as the library `tokenizers` saves it. The class for the type of model would split at other places."""
    letters = {piece: index for index, piece in enumerate([*CONTROL, *"ACGT"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(letters, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder = model_in(tmp_path / "there", vocab_size=9)
    made.save(str(folder / "tokenizer.json"))
    pk.export(folder, "huggingface", tmp_path / "again")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert theirs("AC[MASK]TN")["input_ids"] == [2, 5, 6, 4, 8, 1, 3]


def test_a_corpus_is_encoded_with_a_list_of_pieces(tmp_path: Path, transformers) -> None:
    (folder := tmp_path / "words").mkdir()
    (tmp_path / "text.txt").write_text("the cat is walking\n")
    made = transformers.BertTokenizerFast(vocab=str(wordpiece(folder) / "vocab.txt"))
    succeed("tokenizer", "encode", tmp_path / "text.txt", "--tokenizer", folder, "--out", tmp_path / "tokens")
    (sentence,) = TokenShards.open(tmp_path / "tokens").document(0)
    assert sentence.tolist() == made("the cat is walking", add_special_tokens=False)["input_ids"]
    shown = succeed("tokenizer", "show", "the cat", "--tokenizer", folder, "--json")
    assert json.loads(shown)["ids"] == sentence[:2].tolist()


def saved(transformers, kind: str, folder: Path, **about: object) -> Path:
    """A tokenizer that transformers saved, with changed settings; None removes one."""
    (folder / "words").mkdir(parents=True)
    if kind == "BertTokenizer":
        wordpiece(folder / "words")
        made = transformers.BertTokenizerFast(vocab=str(folder / "words/vocab.txt"))
    else:
        byte_level(folder / "words")
        names = {
            name: str(folder / "words" / file) for name, file in (("vocab", "vocab.json"), ("merges", "merges.txt"))
        }
        made = transformers.RobertaTokenizerFast(**names)
    made.save_pretrained(folder)
    values = json.loads((folder / "tokenizer_config.json").read_text()) | {"tokenizer_class": kind, **about}
    kept = {name: value for name, value in values.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(kept))
    return folder


@pytest.mark.parametrize(
    ("kind", "about"),
    [
        ("BertTokenizer", {"do_lower_case": False}),
        ("BertTokenizer", {"strip_accents": False}),
        ("BertTokenizer", {"tokenize_chinese_chars": False}),
        ("RobertaTokenizer", {"add_prefix_space": True}),
        ("GPT2Tokenizer", {"add_prefix_space": True}),
    ],
)
def test_settings_that_contradict_a_tokenizer_json_count_as_there(kind, about, tmp_path, transformers) -> None:
    """They were ignored, so that texts became other ids."""
    plain, folder = (saved(transformers, kind, tmp_path / name, **more) for name, more in (("a", {}), ("b", about)))
    theirs = [transformers.AutoTokenizer.from_pretrained(path) for path in (plain, folder)]
    expected = [one(TEXTS, add_special_tokens=False)["input_ids"] for one in theirs]
    assert expected[0] != expected[1]
    for path, ids in zip((plain, folder), expected, strict=True):
        assert [load_tokenizer(path).encode(text).tolist() for text in TEXTS] == ids
        assert CaptionTokenizer(path).encode_bare(TEXTS) == ids
        assert TokenizerJsonVocabulary(path, pad="[PAD]").encode_batch(TEXTS) == ids
    assert load_tokenizer(plain).fingerprint != load_tokenizer(folder).fingerprint


def test_rows_of_one_length_in_a_tokenizer_json_do_not_change_what_is_filled_in(tmp_path: Path, transformers) -> None:
    """Pads were read as tokens."""
    folder = saved(transformers, "BertTokenizer", model_in(tmp_path / "there"))
    prompts = ["the cat is <mask> here, and the dog was walking there"]
    expected = pk.open_model(folder).generate(prompts)
    words = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    words.enable_padding(length=48)
    words.save(str(folder / "tokenizer.json"))
    assert pk.open_model(folder).generate(prompts) == expected
    words.no_padding()
    words.enable_truncation(6)
    words.save(str(folder / "tokenizer.json"))
    assert pk.open_model(folder).generate(prompts) == expected


def test_an_import_tells_that_transformers_reads_other_ids(tmp_path: Path, transformers, caplog) -> None:
    folder = saved(transformers, "BertTokenizer", model_in(tmp_path / "there"))
    pk.import_model(folder, None, tmp_path / "equal")
    assert "AutoTokenizer" not in caplog.text
    words = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()  # transformers 5 replaces it
    words.save(str(folder / "tokenizer.json"))
    pk.import_model(folder, None, tmp_path / "other")
    (message,) = [text for text in caplog.messages if "AutoTokenizer reads" in text]
    assert "import the model with --tokenizer" in followed(message, "running/exchange.py: …: … / if the model was")
    caplog.clear()
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "words")
    pk.import_model(folder, None, tmp_path / "advised", tokenizer=tmp_path / "words")
    assert "AutoTokenizer" not in caplog.text


def test_a_vocabulary_that_cannot_be_read_is_refused_with_a_fix(tmp_path: Path) -> None:
    """A class that has no such file makes a tokenizer of nothing from it, without an error."""
    folder = byte_level(model_in(tmp_path / "there"))
    good = shutil.copytree(folder, tmp_path / "good")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    message = refused("import", folder, "--out", tmp_path / "here")
    assert "the tokenizer in" in message
    assert "--tokenizer FOLDER" in message
    assert not (tmp_path / "here").exists()
    succeed("import", folder, "--tokenizer", good, "--out", tmp_path / "here")
    assert load_tokenizer(tmp_path / "here" / "tokenizer").encode("the cat").size


def test_a_message_of_transformers_that_lists_causes_is_not_cut_off(tmp_path: Path, transformers) -> None:
    """ModernBERT's class does not read vocab.txt, which a tokenizer of BERT's in another folder replaces."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    torch.manual_seed(0)
    config = transformers.ModernBertConfig(vocab_size=400, **sizes, **ids)
    transformers.ModernBertForMaskedLM(config).save_pretrained(tmp_path / "there")
    wordpiece(tmp_path / "there")
    message = refused("import", tmp_path / "there", "--out", tmp_path / "here")
    assert "cannot be read" in message
    assert not re.search(r"\bof:\s*\n", message)
    assert re.search(r"from one of: \(1\) .* \(3\) .*\.\n", message)
    assert "--tokenizer FOLDER" in followed(message, "exporting/foreign_tokenizer.py: the tokenizer in")
    (tmp_path / "pieces").mkdir()
    words = wordpiece(tmp_path / "pieces")
    succeed("import", tmp_path / "there", "--tokenizer", words, "--out", tmp_path / "here")


def test_a_model_without_a_vocabulary_requires_the_one_it_was_trained_with(tmp_path: Path) -> None:
    """Training another vocabulary, the earlier advice, gives wrong ids."""
    folder = model_in(tmp_path / "there")
    succeed("import", folder, "--out", tmp_path / "here")
    for path in (folder, tmp_path / "here"):
        message = refused("generate", path, "the cat <mask> here")
        assert "tokenizer train" not in message
        assert "--tokenizer TOKENIZER" in message
    words = wordpiece(tmp_path)
    succeed("import", folder, "--tokenizer", words, "--out", tmp_path / "again")
    assert succeed("generate", tmp_path / "again", "the cat <mask> here").startswith("the cat")


def text_to_text(folder: Path, num_sentinels: int | None = None) -> Path:
    """A tiny T5 with spiece.model alone, as T5 and umT5 were published: their sentinels are in no file of pieces."""
    import sentencepiece

    sizes = {"hidden_size": 16, "head_size": 8, "num_heads": 2, "intermediate_size": 16}
    config = T5ModelConfig(vocab_size=512, num_encoder_layers=1, num_decoder_layers=1, **sizes)
    write_t5(T5(config).state_dict(), config, folder)
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "pad_piece": "<pad>"}
    with (folder / "spiece.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS * 9), model_writer=file, vocab_size=60, minloglevel=2, **ids
        )
    if num_sentinels is not None:
        about = {"tokenizer_class": "T5Tokenizer", "extra_ids": num_sentinels}
        (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder


@pytest.mark.parametrize("num_sentinels", [None, 100, 300])
def test_sentinels_of_text_to_text_models_are_those_of_transformers(num_sentinels, tmp_path, transformers) -> None:
    folder = text_to_text(tmp_path / "there", num_sentinels)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    own = open_vocabulary(pk.import_model(folder, None, tmp_path / "here") / "tokenizer")
    for text in [*TEXTS, "the cat <extra_id_0> here <extra_id_1>"]:
        assert own.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
    assert len(own.sentinel_ids) == (num_sentinels or 100)
    exported = pk.export(tmp_path / "here", "huggingface", tmp_path / "again")
    again = transformers.AutoTokenizer.from_pretrained(exported)
    assert again.convert_tokens_to_ids("<extra_id_0>") == own.sentinel_ids[0]


def test_two_towers_without_a_vocabulary_require_theirs(tmp_path: Path, transformers) -> None:
    """`export a run`, as was advised, is no way on with a model of others, and a new vocabulary gives wrong ids."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    words = {**sizes, "vocab_size": 180, "max_position_embeddings": 16, "eos_token_id": 3}
    pictures = {**sizes, "image_size": 16, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=words, vision_config=pictures, projection_dim=8)
    transformers.CLIPModel(config).save_pretrained(tmp_path / "there")
    succeed("import", tmp_path / "there", "--out", tmp_path / "here")
    message = refused("evaluate", tmp_path / "here", f"data.valid={tmp_path}")
    assert "a trained model needs the one it was trained with" in message
    export = ("--format", "huggingface", "--out", tmp_path / "exported")
    message = refused("export", tmp_path / "here", *export)
    assert "import ... --tokenizer FOLDER" in followed(message, "recipes/clip/convert.py: there is no tokenizer")
    succeed("import", tmp_path / "there", "--tokenizer", wordpiece(tmp_path), "--out", tmp_path / "again")
    succeed("export", tmp_path / "again", *export)
