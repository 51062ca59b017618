"""Captions to ids with tokenizers of every kind."""

import json
import pickle

import numpy as np
import pytest

from pretrainkit.api import load_config
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.clip.captions import CaptionTokenizer, find_folder, tokenizer_folder
from support.pair_sets import WORDS, caption, make_tokenizer

TEXTS = [caption(number) for number in range(40)] + ["a" * 60, "[SEP] <mask> [CLS]", "dog"]
VOCAB_SIZES = {"wordpiece": 80, "bpe": 300, "unigram": 300}


@pytest.fixture(scope="module", params=VOCAB_SIZES)
def folder(request, tmp_path_factory):
    kind = request.param
    return make_tokenizer(tmp_path_factory.mktemp(kind) / "tokenizer", kind, VOCAB_SIZES[kind])


def test_a_caption_is_between_cls_and_sep_and_never_exceeds_its_length(folder):
    """Fact 3, for each kind of tokenizer of ours."""
    tokenizer = CaptionTokenizer(folder)
    special = json.loads((folder / "manifest.json").read_text())["special"]
    encoded = tokenizer.encode(TEXTS, 25, num_columns=25)
    assert encoded["input_ids"].shape == (len(TEXTS), 25)
    assert encoded["input_ids"].dtype == encoded["num_tokens"].dtype == np.int32
    for row, (ids, bare) in enumerate(zip(encoded["input_ids"], tokenizer.encode_bare(TEXTS))):
        assert ids[0] == special["cls"]
        assert (ids == special["sep"]).sum() == 1
        assert encoded["num_tokens"][row] == min(25, len(bare) + 2)
        assert ids[encoded["num_tokens"][row] - 1] == special["sep"]
        assert (ids[encoded["num_tokens"][row] :] == special["pad"]).all()
        assert not np.isin(bare, [special[role] for role in ("cls", "sep", "mask", "pad")]).any()


def test_ids_are_those_of_transformers(folder):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(folder))
    texts = TEXTS[:-2]  # it reads control tokens spelled out, we do not
    found = theirs(texts, max_length=12, truncation=True, padding="longest")
    encoded = CaptionTokenizer(folder).encode(texts, 12)
    np.testing.assert_array_equal(encoded["input_ids"], found["input_ids"])
    np.testing.assert_array_equal(encoded["num_tokens"], np.sum(found["attention_mask"], 1))


def test_a_batch_is_as_wide_as_its_longest_caption_and_rows_do_not_depend_on_it(folder):
    tokenizer = CaptionTokenizer(folder)
    alone = tokenizer.encode(["dog"], 25)
    both = tokenizer.encode(["dog", "a small red dog runs"], 25)
    assert alone["input_ids"].shape == (1, alone["num_tokens"][0])
    assert both["input_ids"].shape[1] == both["num_tokens"].max()
    np.testing.assert_array_equal(both["input_ids"][0, : alone["num_tokens"][0]], alone["input_ids"][0])


def test_a_copy_in_another_process_is_the_same_tokenizer(folder):
    tokenizer = CaptionTokenizer(folder)
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.fingerprint == tokenizer.fingerprint
    assert copy.encode_bare(TEXTS) == tokenizer.encode_bare(TEXTS)


def test_a_list_of_pieces_is_read_as_berts_tokenizer(tmp_path):
    from transformers import BertTokenizer

    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "a\u2028b",
        "\x85",
        *WORDS,
        "##s",
        "##ing",
        ",",
        *"0123456789",
    ]
    pieces += [f"##{digit}" for digit in "0123456789"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    tokenizer = CaptionTokenizer(tmp_path)
    theirs = BertTokenizer.from_pretrained(str(tmp_path))
    texts = [caption(number) for number in range(20)] + ["Dogs, CATS and Cärs"]
    assert tokenizer.is_wordpiece
    assert (tokenizer.pad_id, tokenizer.mask_id, tokenizer.prefix, tokenizer.suffix) == (0, 4, (2,), (3,))
    for text, ids in zip(texts, tokenizer.encode_bare(texts)):
        assert [2, *ids, 3] == theirs(text)["input_ids"]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert CaptionTokenizer(tmp_path).encode_bare(["DOG"]) == [[1]]


def test_begin_and_end_are_those_of_the_tokenizer_and_no_mask_is_needed(tmp_path):
    """CLIP's own tokenizer is like this."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

    model = Tokenizer(models.WordLevel({"a": 0, "dog": 1, "<unk>": 2, "<start>": 3, "<end>": 4}, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    model.add_special_tokens([AddedToken(token, special=True) for token in ("<start>", "<end>")])
    model.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", 3), ("<end>", 4)]
    )
    model.save(str(tmp_path / "tokenizer.json"))
    tokenizer = CaptionTokenizer(tmp_path)
    assert (tokenizer.prefix, tokenizer.suffix, tokenizer.pad_id, tokenizer.mask_id) == ((3,), (4,), 4, None)
    encoded = tokenizer.encode(["a dog", "dog", ""], 77)
    assert encoded["input_ids"].tolist() == [[3, 0, 1, 4], [3, 1, 4, 4], [3, 4, 4, 4]]
    assert encoded["num_tokens"].tolist() == [4, 3, 2]


def test_the_tokenizer_of_a_run_is_the_one_it_names_or_that_of_its_text_tower(tmp_path):
    run = load_config("clip/tiny")
    with pytest.raises(ConfigError, match=r"data\.tokenizer is not set"):
        tokenizer_folder(run)
    assert tokenizer_folder(load_config("clip/tiny", [f"data.tokenizer={tmp_path}"])) == tmp_path
    text = {"kind": "huggingface", "name": str(tmp_path)}
    tower = load_config("clip/tiny", [f"model.text={json.dumps(text)}"])
    assert tokenizer_folder(tower) == tmp_path


def test_a_file_that_is_not_a_tokenizer_is_refused_by_name(tmp_path):
    with pytest.raises(DataError, match="has no tokenizer"):
        CaptionTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        CaptionTokenizer(tmp_path)
    with pytest.raises(DataError, match="there is no tokenizer folder"):
        find_folder(str(tmp_path / "absent"))
    with pytest.raises(DataError, match="is not a folder, and cannot be downloaded"):
        find_folder("no-such-owner/no-such-tokenizer")
