"""RoBERTa, CamemBERT and XLM-RoBERTa of transformers as our BERT: equal logits, ids, and a run that continues."""

import json

import pytest
import torch

from pretrainkit import api
from pretrainkit.errors import CheckpointError
from support.command_line import succeed
from support.remedies import followed

transformers = pytest.importorskip("transformers")
TEXTS = ["a red dog runs near the house", "the cat", "blue birds sit on a tree and sing"]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A byte-level BPE with the control tokens of RoBERTa, as transformers saves it."""
    from tokenizers import ByteLevelBPETokenizer

    folder = tmp_path_factory.mktemp("bpe")
    made = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    made.train_from_iterator(TEXTS * 5, vocab_size=300, special_tokens=special)
    made.save_model(str(folder))
    theirs = transformers.RobertaTokenizerFast(
        vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"), model_max_length=40
    )
    theirs.save_pretrained(folder / "saved")
    return transformers.AutoTokenizer.from_pretrained(folder / "saved")


def random_model(kind, vocab_size, *, has_head=True):
    torch.manual_seed(0)
    config_class = {
        "roberta": transformers.RobertaConfig,
        "camembert": transformers.CamembertConfig,
        "xlm-roberta": transformers.XLMRobertaConfig,
    }[kind]
    config = config_class(
        vocab_size=vocab_size, max_position_embeddings=42, type_vocab_size=1, layer_norm_eps=1e-5, **SIZES
    )
    maker = transformers.AutoModelForMaskedLM if has_head else transformers.AutoModel
    model = maker.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model


@pytest.mark.parametrize("kind", ["roberta", "camembert", "xlm-roberta"])
def test_logits_equal_those_of_transformers(kind, tokenizer, tmp_path):
    theirs = random_model(kind, len(tokenizer))
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    succeed("import", str(tmp_path / "theirs"), "--recipe", "bert", "--out", str(tmp_path / "ours"))
    opened = api.open_model(tmp_path / "ours")
    assert opened.config.model.max_positions == 40
    ids = opened.recipe.input_ids(opened.config, opened.tokenizer, TEXTS)
    assert ids == tokenizer(TEXTS)["input_ids"]
    succeed("export", str(tmp_path / "ours"), "--out", str(tmp_path / "back"))
    again = transformers.BertForMaskedLM.from_pretrained(tmp_path / "back").eval()
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected, found = theirs(**inputs).logits, again(**inputs).logits
    is_real = inputs["attention_mask"].bool()
    torch.testing.assert_close(found[is_real], expected[is_real], rtol=0, atol=1e-5)
    back = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert back(TEXTS)["input_ids"] == ids


def test_an_encoder_that_was_saved_alone_gets_a_fresh_head(tokenizer, tmp_path, caplog):
    theirs = random_model("roberta", len(tokenizer), has_head=False)
    theirs.save_pretrained(tmp_path / "theirs")
    succeed("import", str(tmp_path / "theirs"), "--recipe", "bert", "--out", str(tmp_path / "ours"))
    assert "masked_lm" in caplog.text
    state = api.open_model(tmp_path / "ours").model.state_dict()
    assert torch.equal(state["embeddings.word.weight"], theirs.state_dict()["embeddings.word_embeddings.weight"])
    positions = theirs.state_dict()["embeddings.position_embeddings.weight"]
    assert torch.equal(state["embeddings.position.weight"], positions[2:])


@pytest.mark.slow
def test_pretraining_continues_with_its_own_tokenizer(tokenizer, tmp_path):
    theirs = random_model("roberta", len(tokenizer))
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    succeed("import", str(tmp_path / "theirs"), "--recipe", "bert", "--out", str(tmp_path / "ours"))
    (tmp_path / "raw").mkdir()
    lines = [json.dumps({"text": " ".join(TEXTS[number % 3 :] + TEXTS) + f" {number}."}) for number in range(60)]
    (tmp_path / "raw" / "lines.jsonl").write_text("\n".join(lines))
    succeed("corpus", "shuffle", str(tmp_path / "raw"), "--out", str(tmp_path / "corpus"))
    encode = ("tokenizer", "encode", str(tmp_path / "corpus"), "--tokenizer", str(tmp_path / "ours" / "tokenizer"))
    succeed(*encode, "--out", str(tmp_path / "tokens"))
    words = "data.max_seq_length=32 data.batch_size=8 num_steps=20 precision.compute=float32 log.every_steps=10"
    words += " schedule.warmup_share=0.1 optimizer.peak_lr=1e-3 optimizer.layer_decay=0.8 checkpoint.asynchronous=false"
    places = (f"init_from={tmp_path}/ours", f"data.train={tmp_path}/tokens", "--out", str(tmp_path / "run"), "-q")
    succeed("train", str(tmp_path / "ours" / "config.yaml"), *words.split(), *places)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0]


def test_deberta_is_refused_with_the_part_that_is_missing(tmp_path):
    config = transformers.DebertaV2Config(vocab_size=30, pooler_hidden_size=32, **SIZES)
    transformers.DebertaV2ForMaskedLM(config).save_pretrained(tmp_path / "theirs")
    with pytest.raises(CheckpointError, match="disentangled attention") as refused:
        api.import_model(tmp_path / "theirs", "bert", tmp_path / "ours")
    advice = followed(refused.value, "recipes/bert/convert.py: config.json has model_type")
    api.import_model(tmp_path / "theirs", advice.split()[-1], tmp_path / "ours")
