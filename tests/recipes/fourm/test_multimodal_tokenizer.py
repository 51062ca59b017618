"""Ids of the 4M text vocabulary."""

import json

import pytest

from pretrainkit.errors import DataError
from pretrainkit.recipes.fourm.text import TextVocabulary
from pretrainkit.tokenizers.subwords import COCO_CLASSES, train_multimodal
from pretrainkit.tokenizers.train import TokenizerSettings, train_tokenizer

WORDS = {"a": 50, "dog": 20, "and": 30, "wine": 10, "glass": 10, "Café!": 3, "sits": 9, "sitting": 8, "airplanes": 4}
COUNTS = {word.encode(): count for word, count in sorted(WORDS.items())}


def folder(tmp_path, size=4330, **settings):
    words = tmp_path / "words.tsv"
    words.write_text("".join(f"{word}\t{count}\n" for word, count in WORDS.items()))
    out = tmp_path / "tokenizer"
    train_tokenizer(
        [words],
        out,
        TokenizerSettings(kind="multimodal", vocab_size=size, lowercase=True, classes=COCO_CLASSES, **settings),
    )
    return out


def test_ids_are_laid_out_as_published(tmp_path):
    vocabulary = TextVocabulary(folder(tmp_path))
    assert vocabulary.size == 4330
    assert (vocabulary.pad, vocabulary.unk, vocabulary.sos, vocabulary.eos) == (0, 1, 2, 3)
    assert vocabulary.sentinels == tuple(range(4, 204))
    words = ["v0=0", "v3=999", "airplane", "person", "wine glass", "zebra"]
    assert vocabulary.encode_words(words) == [204, 4203, 4204, 4253, 4282, 4283]


def test_reserved_words_are_detected_in_texts(tmp_path):
    vocabulary = TextVocabulary(folder(tmp_path))
    boxes, caption = vocabulary.encode(["v0=12 v1=3 v2=999 v3=0 potted plant", "A dog and a Wine glass"])
    assert boxes == [216, 1207, 3203, 3204, 4255]
    assert caption[1] == 4232
    assert caption[-1] == 4282
    assert caption[0] == caption[3] > 4283
    assert len(caption) == 5


def test_words_encoded_one_by_one_equal_the_text(tmp_path):
    vocabulary = TextVocabulary(folder(tmp_path))
    words = ["v0=1", "v1=20", "v2=300", "v3=4", "wine glass", "polygon", "sitting", "none"]
    assert vocabulary.encode_words(words) == vocabulary.encode([" ".join(words)])[0]


def test_words_that_are_looked_up_are_those_of_the_whole_text(tmp_path):
    vocabulary = TextVocabulary(folder(tmp_path))
    texts = [
        "A DOG, sitting; and sits.",
        "a wine glass",
        "Wine  glass and v0=12 v1=3",
        "wine and glass",
        "two\tdogs\nsitting",
        "Café! naïve",
        "[S_1] dog[S_2] [PAD] [unk] don't",
        "",
        " a  dog ",
    ]
    whole = [one.ids for one in vocabulary._tokenizer.encode_batch(texts, add_special_tokens=False)]
    assert vocabulary._splits_at_spaces
    assert [vocabulary._is_plain(text) for text in texts[:6]] == [True, False, False, False, False, False]
    assert vocabulary.encode(texts) == whole
    assert [vocabulary.encode_words(words) for words in (["v0=1", "sitting"], ["wine glass"])] == [
        vocabulary.encode_words(["v0=1", "sitting"]),
        vocabulary.encode_words(["wine glass"]),
    ]


def test_text_comes_back_without_sentinels(tmp_path):
    vocabulary = TextVocabulary(folder(tmp_path))
    ids = [5, *vocabulary.encode(["a dog sits"])[0], 6, 3, 0]
    assert vocabulary.decode(ids) == "a dog sits"


def test_equal_counts_give_equal_files_and_reserved_words_are_learned_once():
    texts = {train_multimodal(COUNTS, 4330, classes=COCO_CLASSES, num_sentinels=200, num_bins=1000) for _ in range(2)}
    assert len(texts) == 1
    vocabulary = json.loads(texts.pop())["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(4330))
    assert vocabulary["dog"] == 4232


def test_smaller_vocabularies_have_fewer_sentinels_and_numbers(tmp_path):
    vocabulary = TextVocabulary(folder(tmp_path, 262, num_sentinels=20, num_bins=30))
    assert len(vocabulary.sentinels) == 20
    assert vocabulary.encode_words(["v0=29", "v3=0"]) == [53, 114]


@pytest.mark.parametrize(("size", "message"), [(4284, "reserved"), (9000, "yields")])
def test_impossible_sizes_are_refused_with_a_possible_one(size, message):
    with pytest.raises(DataError, match=message):
        train_multimodal(COUNTS, size, classes=COCO_CLASSES, num_sentinels=200, num_bins=1000)


def test_a_vocabulary_without_a_size_has_all_pieces_of_the_text(tmp_path):
    words = tmp_path / "words.tsv"
    words.write_text("table\t5\n")
    settings = TokenizerSettings(kind="multimodal", classes=("chair",))
    manifest = train_tokenizer([words], tmp_path / "words", settings, as_many_as_possible=True)
    assert 4205 < manifest["vocab_size"] < 4220
    assert TextVocabulary(tmp_path / "words").decode(TextVocabulary(tmp_path / "words").encode(["table"])[0]) == "table"


def test_other_tokenizers_are_refused(tmp_path):
    words = tmp_path / "words.tsv"
    words.write_text("".join(f"{word}\t{count}\n" for word, count in WORDS.items()))
    train_tokenizer([words], tmp_path / "other", TokenizerSettings(kind="wordpiece", vocab_size=40))
    with pytest.raises(DataError, match="has no"):
        TextVocabulary(tmp_path / "other")
    with pytest.raises(DataError, match="cannot be read"):
        TextVocabulary(tmp_path / "nothing")
