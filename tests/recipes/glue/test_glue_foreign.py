"""Encoders of transformers under a head have the outputs of transformers."""

import json
import logging

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from pretrainkit import api
from pretrainkit.cli.main import app
from pretrainkit.errors import CheckpointError, DataError, InputError
from pretrainkit.recipes.exchange import ConvertsClassifiers
from pretrainkit.recipes.huggingface.config import HuggingFaceRun
from pretrainkit.recipes.huggingface.encoder import family_of
from pretrainkit.recipes.registry import able, find_recipe
from pretrainkit.running.initial import load_initial
from pretrainkit.running.opened import open_model
from support.glue_toys import QUICK, SPECIAL, WORDS, write_encoder, write_tokenizer
from support.whole_runs import assert_exports_are_the_run

pytestmark = pytest.mark.slow

SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
FAMILIES = {
    "roberta": {**SHAPE, "max_position_embeddings": 66, "type_vocab_size": 1},
    "electra": {**SHAPE, "embedding_size": 8, "max_position_embeddings": 64},
    "deberta": {**SHAPE, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0},
    "deberta-v2": {
        **SHAPE,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
    "albert": {**SHAPE, "embedding_size": 8},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
}
SPECIAL_IDS = {"pad_token_id": SPECIAL.pad, "bos_token_id": SPECIAL.cls, "eos_token_id": SPECIAL.sep}


def write_foreign(transformers, folder, family, head="AutoModelForMaskedLM", **more):
    """A random encoder, and a tokenizer with its family's control tokens."""
    from tokenizers import Tokenizer, processors

    torch.manual_seed(0)
    values = {"vocab_size": len(WORDS), **SPECIAL_IDS, **FAMILIES[family], **more}
    config = transformers.AutoConfig.for_model(family, **values)
    getattr(transformers, head).from_config(config).save_pretrained(folder)
    write_tokenizer(folder)
    words = Tokenizer.from_file(str(folder / "tokenizer.json"))
    is_roberta = family == "roberta"
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] [SEP] $B [SEP]" if is_roberta else "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", SPECIAL.cls), ("[SEP]", SPECIAL.sep)],
    )
    words.save(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    names = ["input_ids", "attention_mask", *([] if is_roberta else ["token_type_ids"])]
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_input_names": names}))
    return folder


def finetune(task, encoder, glue, out, *more):
    folders = json.dumps({"glue": str(glue)})
    words = [f"init_from={encoder}", f"data.task_folders={folders}", *QUICK, "num_steps=2", "data.num_epochs=null"]
    return api.train(api.load_config(f"glue/{task}", [*words, *more]), out, device="cpu")


def test_the_first_deberta_is_tuned_where_bfloat16_is_fast(glue, tmp_path, transformers):
    """Its attention fails under autocast, so it computes in float32."""
    encoder = write_foreign(transformers, tmp_path / "encoder", "deberta")
    finetune("rte", encoder, glue, tmp_path / "run", "precision.compute=bfloat16")


@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_is_the_run(family, glue, tmp_path, transformers):
    finetune("rte", write_foreign(transformers, tmp_path / "encoder", family), glue, tmp_path / "run")
    assert_exports_are_the_run(tmp_path / "run", tmp_path, "glue")


def pairs_of_rte(glue):
    lines = (glue / "RTE" / "dev.tsv").read_text().splitlines()[1:]
    return [line.split("\t")[1:3] for line in lines]


def answered_by_transformers(transformers, folder, pairs):
    """(rows, classes) shares, by its own tokenizer and model."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    batch = tokenizer(*map(list, zip(*pairs, strict=True)), padding=True, return_tensors="pt")
    if model.config.model_type == "distilbert":
        batch.pop("token_type_ids")
    with torch.no_grad():
        return model(**batch).logits.softmax(1), model.config.id2label


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_tuned_and_answers_as_transformers_does_with_its_export(family, glue, tmp_path, transformers):
    encoder = write_foreign(transformers, tmp_path / "encoder", family)
    finetune("rte", encoder, glue, tmp_path / "run")
    encoder.rename(tmp_path / "gone")
    out = api.predict(tmp_path / "run", tmp_path / "out.jsonl", split="validation", device="cpu")
    api.export(tmp_path / "run", "huggingface", tmp_path / "hf")
    theirs, names = answered_by_transformers(transformers, tmp_path / "hf", pairs_of_rte(glue))
    ours = [json.loads(line)["probabilities"] for line in out.read_text().splitlines()]
    found = torch.tensor([[one[names[number]] for number in range(2)] for one in ours])
    torch.testing.assert_close(found, theirs, atol=2e-6, rtol=0, check_dtype=False)


def test_the_adapter_has_the_outputs_of_our_own_bert(glue, tmp_path):
    encoder = write_encoder(tmp_path / "bert")
    found = {}
    for name, more in (("ours", ()), ("theirs", ("init.recipe=huggingface",))):
        finetune("rte", encoder, glue, tmp_path / name, "optimizer.peak_lr=1e-12", "model.pooling=mean", *more)
        opened = api.open_model(tmp_path / name)
        assert opened.config.model.encoder.recipe == ("huggingface" if more else "bert")
        batch = first_batch(opened)
        with torch.no_grad():
            found[name] = opened.model.encoder.tokens(batch, 32), opened.model.features(batch, 32)
    for ours, theirs in zip(found["ours"], found["theirs"], strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=0)


def test_an_encoder_alone_is_not_evaluated_on_any_data(glue, tmp_path, transformers):
    """No message advises to encode data again without need."""
    origin = write_foreign(transformers, tmp_path / "electra", "electra")
    api.import_model(origin, "huggingface", tmp_path / "ours")
    shards = tmp_path / "shards"
    write_tokenizer(shards / "tokenizer")
    path = shards / "tokenizer" / "tokenizer.json"
    path.write_text(path.read_text().replace(WORDS[-1], "another"))
    for data in (None, shards):
        with pytest.raises(InputError, match="cannot pretrain or evaluate an encoder"):
            api.evaluate(tmp_path / "ours", data)


def first_batch(opened):
    import numpy as np

    from pretrainkit.recipes.glue.answers import records_of

    source = opened.recipe.open_data(opened.config, "valid")
    return {name: torch.from_numpy(array) for name, array in source.build(records_of(source, np.arange(4))).items()}


@pytest.mark.parametrize("is_modern", [False, True])
def test_an_exported_classifier_is_read_with_its_head(is_modern, glue, tmp_path):
    finetune("rte", write_encoder(tmp_path / "bert", is_modern=is_modern), glue, tmp_path / "run")
    api.export(tmp_path / "run", "huggingface", tmp_path / "hf")
    metrics = finetune("rte", tmp_path / "hf", glue, tmp_path / "again", "optimizer.peak_lr=1e-12")
    assert metrics["valid_loss"] == pytest.approx(api.evaluate(tmp_path / "run", device="cpu")["loss"], abs=1e-6)
    opened = api.open_model(tmp_path / "hf")
    assert opened.config.model.classes == ("entailment", "not_entailment")
    for name, tensor in api.load_model(tmp_path / "run").state_dict().items():
        torch.testing.assert_close(opened.model.state_dict()[name], tensor, atol=0, rtol=0)


def test_a_classifier_of_another_family_is_read_with_its_head(glue, tmp_path, transformers):
    finetune("rte", write_foreign(transformers, tmp_path / "encoder", "roberta"), glue, tmp_path / "run")
    api.export(tmp_path / "run", "huggingface", tmp_path / "hf")
    ours, again = (api.load_model(tmp_path / name).state_dict() for name in ("run", "hf"))
    assert ours.keys() == again.keys()
    assert all(torch.equal(ours[name], again[name]) for name in ours)
    folders = json.dumps({"glue": str(glue)})
    settings = [f"data.task_folders={folders}", "data.max_seq_length=32", "precision.compute=float32"]
    said = [
        api.predict(
            tmp_path / name,
            tmp_path / f"{name}.jsonl",
            task="rte",
            split="validation",
            device="cpu",
            overrides=settings,
        )
        for name in ("run", "hf")
    ]
    assert said[0].read_text() == said[1].read_text()


def save_classifier(transformers, folder, kind="SequenceClassification", **settings):
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(WORDS), **SHAPE, **SPECIAL_IDS, **settings)
    model = getattr(transformers, f"BertFor{kind}")(config).eval()
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def test_an_imported_classifier_predicts_as_in_transformers(tmp_path, transformers):
    """Without a recipe, it keeps its head and its dropout, and no text is cut that its encoder can read."""
    names = {0: "b", 1: "c", 2: "a"}
    theirs = save_classifier(transformers, tmp_path / "saved", id2label=names, classifier_dropout=0.4)
    api.import_model(tmp_path / "saved", None, tmp_path / "ours")
    config = api.open_model(tmp_path / "ours").config
    assert (config.recipe, config.data.kind, config.model.dropout) == ("glue", "classes", 0.4)

    texts = ["the film was fine", "dull " * 300]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"said": text}) + "\n" for text in texts))
    rows = {"input": tmp_path / "rows.jsonl", "device": "cpu"}
    with pytest.raises(DataError, match="no columns of texts are set"):
        api.predict(tmp_path / "ours", tmp_path / "out.jsonl", **rows)
    settings = ["data.texts=[said]", "precision.compute=float32"]
    out = api.infer(tmp_path / "ours", tmp_path / "out.jsonl", overrides=settings, **rows)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    for text, line in zip(texts, out.read_text().splitlines(), strict=True):
        ids = [SPECIAL.cls, *tokenizer(text, add_special_tokens=False)["input_ids"], SPECIAL.sep]
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).logits[0].softmax(0)
        found = json.loads(line)["probabilities"]
        assert list(found) == list(names.values())
        torch.testing.assert_close(torch.tensor([*found.values()]), expected, atol=2e-6, rtol=0, check_dtype=False)


def test_pretraining_from_a_classifier_reads_its_encoder_as_advised(tmp_path, transformers):
    save_classifier(transformers, tmp_path / "saved")
    as_bert = open_model(tmp_path / "saved", recipe="bert")
    config = api.load_config("bert/tiny", [f"init_from={tmp_path}/saved", "data.train=x"])
    config = config.changed(model=as_bert.config.model)
    model = find_recipe("bert").build_model(config)
    with pytest.raises(
        CheckpointError, match=r"is a classifier .*\n  set init.recipe to bert to read only its encoder"
    ):
        load_initial(model, config)
    load_initial(model, config.changed(init={"recipe": "bert"}))
    for name, tensor in as_bert.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)


def test_a_reader_of_answers_of_transformers_answers_without_settings(tmp_path, transformers):
    save_classifier(transformers, tmp_path / "saved", "QuestionAnswering")
    row = {"id": "1", "question": "the film", "context": "a man was kind " * 200}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    out = api.predict(tmp_path / "saved", tmp_path / "out.jsonl", input=tmp_path / "rows.jsonl", device="cpu")
    assert json.loads(out.read_text())["answer"] in row["context"]


def test_layers_that_the_config_does_not_count_are_refused_or_reported(tmp_path, transformers, caplog):
    save_classifier(transformers, tmp_path / "bert")
    write_foreign(transformers, tmp_path / "electra", "electra")
    for name in ("bert", "electra"):
        path = tmp_path / name / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 1}))
    with pytest.raises(
        CheckpointError, match=r"16 tensors have no place in this model, such as bert.encoder.layer.1\."
    ):
        api.import_model(tmp_path / "bert", None, tmp_path / "ours")
    with caplog.at_level(logging.WARNING):
        api.import_model(tmp_path / "electra", None, tmp_path / "ours")
    assert "electra.encoder.layer.1." in caplog.text


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("SequenceClassification", {"problem_type": "multi_label_classification"}, "problem type multi_label_classif"),
        ("SequenceClassification", {"problem_type": "regression"}, "problem type regression with 3 outputs"),
        ("SequenceClassification", {"id2label": {"0": "a", "1": "b", "2": "a"}}, "classes of the same name"),
        ("TokenClassification", {"id2label": {"3": "d"}}, "id2label with 1 classes|mismatched_sizes"),
        ("MultipleChoice", {}, "is a BertForMultipleChoice; the supported heads are ForSequenceClassification"),
    ],
)
@pytest.mark.parametrize("encoder", ["bert", "huggingface"])
def test_heads_with_other_outputs_are_refused(kind, change, message, encoder, tmp_path, transformers):
    save_classifier(transformers, tmp_path / "saved", kind, num_labels=3)
    path = tmp_path / "saved" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=message):
        able(find_recipe(encoder), ConvertsClassifiers).import_text_classifier(tmp_path / "saved")


@pytest.mark.parametrize("head", ["BertModel", "BertForTokenClassification", "BertForMaskedLM"])
def test_a_bert_is_an_encoder_whatever_its_head(head, glue, tmp_path, transformers):
    encoder = write_encoder(tmp_path / "bert")
    model = getattr(transformers, head).from_pretrained(encoder)
    model.save_pretrained(tmp_path / "other")
    write_tokenizer(tmp_path / "other")
    finetune("rte", tmp_path / "other", glue, tmp_path / "run", "optimizer.peak_lr=1e-12")
    found = api.load_model(tmp_path / "run").state_dict()
    source = api.load_model(encoder).state_dict()
    for name in ("embeddings.word.weight", "layers.1.attention.qkv.weight"):
        torch.testing.assert_close(found[f"encoder.{name}"], source[name], atol=1e-6, rtol=0)
    if head == "BertModel":
        pooler = source["sentence_order.pooler.weight"]
        torch.testing.assert_close(found["encoder.pooler.dense.weight"], pooler, atol=1e-6, rtol=0)


def test_a_setting_that_bert_lacks_is_refused_with_a_fix_that_works(glue, tmp_path, transformers):
    ids = {**SPECIAL_IDS, "cls_token_id": SPECIAL.cls, "sep_token_id": SPECIAL.sep}
    config = transformers.ModernBertConfig(vocab_size=len(WORDS), attention_bias=True, **SHAPE, **ids)
    transformers.ModernBertForMaskedLM(config).save_pretrained(tmp_path / "biased")
    write_tokenizer(tmp_path / "biased")
    with pytest.raises(CheckpointError, match="attention_bias True; this recipe only supports False") as refused:
        finetune("rte", tmp_path / "biased", glue, tmp_path / "run")
    advice = str(refused.value).splitlines()[-1]
    assert advice.startswith("  use a model with attention_bias False, or fine-tune it")
    finetune("rte", tmp_path / "biased", glue, tmp_path / "run", advice.rpartition(" ")[2])


def test_a_model_that_is_not_a_text_encoder_is_refused_by_name(glue, tmp_path, transformers):
    config = transformers.AutoConfig.for_model("gpt2", vocab_size=40, n_embd=16, n_layer=1, n_head=2)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(CheckpointError, match="gpt2"):
        finetune("rte", tmp_path / "gpt2", glue, tmp_path / "run")
    with pytest.raises(CheckpointError, match="model_type 'pixel'") as refused:
        family_of({"model_type": "pixel"}, "here")
    assert len(str(refused.value)) < 250, "not all names that transformers knows"


@pytest.mark.parametrize("verb", ["train", "check_data", "deep", "make_plan"])
def test_warnings_about_a_folder_and_the_data_are_logged_once(verb, tmp_path, transformers, caplog):
    encoder = write_foreign(transformers, tmp_path / "encoder", "roberta")
    rows = [{"text": text, "label": text} for text in ("fine", "dull")] * 8
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = [f"data.{split}={tmp_path}/rows.jsonl" for split in ("train", "valid")]
    config = api.load_config(
        "glue/own", [f"init_from={encoder}", *data, "data.texts=text", "data.batch_size=8", *QUICK]
    )
    do = {
        "train": lambda: api.train(config, tmp_path / "run", device="cpu"),
        "check_data": lambda: api.check_data(config),
        "deep": lambda: api.check_data(config, deep=True),
        "make_plan": lambda: api.make_plan(config),
    }[verb]
    with caplog.at_level(logging.WARNING):
        do()
    for warning in ("tensors are not read", "held-out rows have the same texts"):
        assert sum(warning in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_the_work_of_an_encoder_is_that_of_its_matrices(family, tmp_path, transformers):
    recipe = find_recipe("huggingface")
    config, _ = recipe.import_huggingface(write_foreign(transformers, tmp_path / "encoder", family))
    short, long, both = (recipe.text_encoder_flops(config, np.array(lengths)) for lengths in ([5], [30], [5, 30]))
    width, inner, num_layers = 16, 32, 2
    ours = [3 * num_layers * (2 * n * (4 * width**2 + 2 * width * inner) + 4 * n**2 * width) for n in (5, 30)]
    if family in ("roberta", "distilbert"):
        assert [short, long, both] == pytest.approx([*ours, sum(ours)])
    else:  # embeddings of another width, or work on relative positions, which the texts of a batch share
        assert short > ours[0]
        assert long > ours[1]
        assert sum(ours) < both <= short + long


def test_an_encoder_that_pads_to_whole_windows_is_not_counted(tmp_path, transformers):
    values = {"attention_window": 16, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    longformer = transformers.LongformerConfig(vocab_size=40, num_hidden_layers=1, **values)
    config = HuggingFaceRun(model={"architecture": longformer.to_dict(), "max_positions": None})
    assert find_recipe("huggingface").text_encoder_flops(config, np.array([5, 30])) == 0


def test_a_plan_with_an_encoder_whose_work_is_not_counted_has_no_times(tmp_path, transformers, monkeypatch):
    monkeypatch.setattr("pretrainkit.recipes.huggingface.recipe._text_flops", lambda config: (0.0, 0.0, 0.0))
    write_foreign(transformers, tmp_path / "encoder", "roberta")
    rows = [{"text": text, "label": text} for text in ("fine", "dull")] * 8
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [f"init_from={tmp_path}/encoder", f"data.train={tmp_path}/rows.jsonl", "data.texts=text", "num_steps=2"]
    done = CliRunner().invoke(app, ["plan", "glue/own", *words, "data.max_seq_length=32", "data.batch_size=8"])
    assert done.exit_code == 0, done.output
    assert "uncounted FLOPs" in done.output
    assert "no time estimate: the work of this encoder is unknown" in done.output
    assert "the time of a step on NVIDIA H200 is unknown" in done.output


def test_predictions_of_an_imported_classifier_log_its_warnings_once(tmp_path, transformers, caplog):
    save_classifier(transformers, tmp_path / "saved", "QuestionAnswering")
    (tmp_path / "saved/modules.json").write_text(json.dumps([{"type": "a.Pooling", "path": "1_Pooling"}]))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"id": "1", "question": "the film", "context": "a man"}))
    with caplog.at_level(logging.WARNING):
        api.predict(tmp_path / "saved", tmp_path / "out.jsonl", input=tmp_path / "rows.jsonl", device="cpu")
    assert sum("model of sentence-transformers" in record.getMessage() for record in caplog.records) == 1
    with pytest.raises(InputError, match="pass it to open_model"):
        api.infer(
            api.open_model(tmp_path / "saved"), tmp_path / "2.jsonl", input=tmp_path / "rows.jsonl", averaged=True
        )


def test_layers_that_the_folder_lacks_are_drawn_by_the_seed(glue, tmp_path, transformers):
    encoder = write_foreign(transformers, tmp_path / "encoder", "roberta")
    for name, seed in (("one", 1), ("two", 1), ("three", 2)):
        finetune("rte", encoder, glue, tmp_path / name, f"seed={seed}", "optimizer.peak_lr=1e-12")
    one, two, three = (api.load_model(tmp_path / n).state_dict() for n in ("one", "two", "three"))
    name = "encoder.model.classifier.dense.weight"
    assert torch.equal(one[name], two[name])
    assert not torch.allclose(one[name], three[name], atol=1e-4)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_pooling_is_over_the_tokens_of_the_example_alone(pooling, encoder, glue, tmp_path):
    finetune("rte", encoder, glue, tmp_path / "run", f"model.pooling={pooling}")
    opened = api.open_model(tmp_path / "run")
    batch = first_batch(opened)
    with torch.no_grad():
        found, x_TD = opened.model.features(batch, 32), opened.model.encoder.tokens(batch, 32)
    for number, (begin, end) in enumerate(zip(batch["cu_seqlens"], batch["cu_seqlens"][1:], strict=False)):
        own = x_TD[begin:end]
        expected = {"cls": own[0], "mean": own.mean(0), "max": own.amax(0)}[pooling]
        torch.testing.assert_close(found[number], expected)
    trainable = {name for name, p in opened.model.named_parameters() if p.requires_grad}
    assert not any("pooler" in name for name in trainable)
