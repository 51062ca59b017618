"""tokenizer.json gives the ids of sentencepiece.model, for any text; `transformers` loads it."""

import os
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.tokenizers.load import HuggingFaceTokenizer, SentencePieceTokenizer
from pretrainkit.tokenizers.unigram import is_of_sabertooth
from pretrainkit.tokenizers.unigram_json import read_rules

SAMPLE = Path(os.environ.get("PRETRAINKIT_SAMPLE_DATA", Path(__file__).resolve().parents[3] / "shared/data"))
STRINGS = [
    *(
        "",
        " ",
        "  ",
        "a  b",
        " a",
        "a ",
        "\t",
        "a\tb\nc\r\nd",
        "\u00a0a\u00a0b ",
        "\u200b",
        "a\u200bb",
        "\ufeffx",
        "\u3000x",
    ),
    *("<mask>", "a <mask> b", "<s>", "</s><pad>", "<unk>", "<0x41>", "x<0x41>y", "<<0x41>>", "<0x4g>", "[MASK]"),
    *(
        "▁",
        "▁a",
        "a▁b",
        "▁▁ x ▁",
        "ﬁ",
        "Ａ",
        "½ cup",
        "™️",
        "²\u0301",
        "\x00",
        "\x0b",
        "\x85",
        "\u2028",
        "~～",
        "\u00ad",
    ),
    *("e\u0323\u0302", "e\u0302\u0323", "\u00ea\u0301", "o\u0331\u0301", "\u0301", "\u0301\u0300a", "ｶﾞｷﾞ", "か\u3099"),
    *(
        "\u1112\u1161\u11ab",
        "\ud55c\u11ab",
        "\u0958",
        "กำ",
        "👩‍👩‍👧",
        "🇩🇪",
        "👍🏽",
        "\u1000\u103a\u1037",
        "سَلَام",
        "\u0344",
    ),
]
PIECES = st.one_of(
    st.sampled_from(STRINGS),
    st.text(st.characters(codec="utf-8", max_codepoint=0x3FF), max_size=6),
    st.text(st.characters(codec="utf-8"), max_size=4),
    st.text("aeioukABN \u0300\u0301\u0302\u0303\u0308\u0323\u0327\u0331\u0345\u200d\u0338\u00ea\u01a1αω", max_size=6),
)


VANISHING = r"\x01-\x08\x0b\x0e-\x1f\x7f\x8f\x9f"
NEWER = (
    "\ua7f1-\ua7f3\U000105d2-\U000105da\U00010783-\U000107a2\U00011382-\U000113c2\U00011935"
    "\U0001611e-\U00016129\U00016d63-\U00016d67\U0001ccd6-\U0001ccef\U0001e030-\U0001e068"
)
"""Characters that the library's Unicode tables do not know."""
MAY_DIFFER = re.compile(f"^[\ufdd0\ufdd1{NEWER}{VANISHING}]{{2,}}|[\ufdd0\ufdd1{NEWER}]")
"""See the docstring of unigram_json.py. Several vanishing characters at the start vanish with those that do so
anyway."""


@pytest.fixture(scope="module")
def both(unigram):
    return SentencePieceTokenizer(unigram, None), HuggingFaceTokenizer(unigram, None)


def assert_equal_ids(both, texts):
    for text, *ids in zip(texts, *(tokenizer.encode_batch(texts) for tokenizer in both), strict=True):
        assert ids[0].tolist() == ids[1].tolist(), ascii(text)


def test_equal_ids_for_strings_that_are_known_to_be_hard(both):
    assert_equal_ids(both, STRINGS)
    assert_equal_ids(both, [f"a{text}b {text} c{text}" for text in STRINGS])


def test_equal_ids_for_prose_in_every_normal_form(both, prose):
    for form in ("NFC", "NFD", "NFKD"):
        # A long rule (=====) is pieces of equal score in several orders; the two need not choose the same.
        texts = [re.sub(r"([=~*-])\1{7,}", r"\1", text) for text in prose]
        assert_equal_ids(both, [unicodedata.normalize(form, text) for text in texts])


@settings(max_examples=400, deadline=None)
@given(texts=st.lists(st.lists(PIECES, max_size=4).map("".join), max_size=6))
def test_equal_ids_for_any_text(both, texts):
    assert_equal_ids(both, [MAY_DIFFER.sub("", text) for text in texts])


def test_equal_ids_for_rules_of_several_characters(both, unigram):
    from sentencepiece import sentencepiece_model_pb2

    data = (unigram / "sentencepiece.model").read_bytes()
    rules = read_rules(sentencepiece_model_pb2.ModelProto.FromString(data).normalizer_spec.precompiled_charsmap)
    keys = [key for key in rules if len(key) > 1 and not MAY_DIFFER.search(key)][::32]
    assert len(keys) > 5_000
    assert_equal_ids(both, ["x".join(keys[start : start + 64]) for start in range(0, len(keys), 64)])


def test_equal_ids_for_every_character(both):
    characters = [chr(code) for code in (*range(0xD800), *range(0xE000, 0x30000)) if not 0xFDD0 <= code <= 0xFDD1]
    assert_equal_ids(both, ["x".join(characters[start : start + 64]) for start in range(0, len(characters), 64)])


def test_equal_ids_in_325_languages(both):
    if not SAMPLE.is_dir():
        pytest.skip("sample data not present")
    lines = {
        line
        for path in sorted((SAMPLE / "multilingual/udhr").glob("*.txt"))
        for line in path.read_text(encoding="utf-8").split("\n")
    }
    assert_equal_ids(both, sorted(lines))


def test_the_table_is_read_whole(unigram):
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

    data = (unigram / "sentencepiece.model").read_bytes()
    rules = read_rules(sentencepiece_model_pb2.ModelProto.FromString(data).normalizer_spec.precompiled_charsmap)
    assert (rules["ﬁ"], rules["\t"], rules["e\u0323\u0302"]) == ("fi", " ", "ệ")
    model = SentencePieceProcessor(model_proto=data)
    some = [(key, value) for key, value in list(rules.items())[::997] if " " not in value]
    assert [model.normalize(f"x{key}x") for key, _ in some] == [f"▁x{value}x" for _, value in some]
    assert read_rules(b"") == {}


def test_transformers_loads_the_folder(both, unigram):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(unigram)
    assert (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id) == (257, 258, 259)
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.model_max_length) == (260, 256, 512)
    first, second = (both[0].encode(text).tolist() for text in ("The value.", "An object"))
    single = tokenizer("The value.")
    assert single["input_ids"] == [257, *first, 258]
    pair = tokenizer("The value.", "An object")
    assert pair["input_ids"] == [257, *first, 258, *second, 258]
    assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert tokenizer.decode(single["input_ids"], skip_special_tokens=True) == "The value."
    assert len(tokenizer) == 1500


def test_a_typed_mask_is_recognized_and_leaves_its_neighbours_unchanged(both, unigram):
    from transformers import AutoTokenizer

    encode = both[0].encode
    tokenizer = AutoTokenizer.from_pretrained(unigram)
    ids = tokenizer("The <mask> is <mask>.", add_special_tokens=False)["input_ids"]
    pieces = both[0].pieces()
    stop = pieces.index(".") if "." in pieces else None
    assert ids[: len(encode("The")) + 1] == [*encode("The").tolist(), 259]
    assert ids[-2:] == [259, stop]
    assert ids[-2 - len(encode("is")) : -2] == encode("is").tolist()
    plain = AutoTokenizer.from_pretrained(unigram, split_special_tokens=True)
    assert plain("The <mask>.", add_special_tokens=False)["input_ids"] == encode("The <mask>.").tolist()


def test_only_models_with_the_options_of_sabertooth_are_of_its_kind(unigram: Path) -> None:
    from sentencepiece import sentencepiece_model_pb2

    data = (unigram / "sentencepiece.model").read_bytes()
    assert is_of_sabertooth(data)
    for change in ("swap", "defined", "identity", "no rules", "broken rules", "no bytes", "suffix"):
        model = sentencepiece_model_pb2.ModelProto.FromString(data)
        if change == "swap":
            model.pieces[257].piece, model.pieces[258].piece = "</s>", "<s>"
        elif change == "defined":
            model.pieces[300].type = model.pieces[300].USER_DEFINED
        elif change == "identity":
            model.normalizer_spec.name = "identity"
        elif change == "no rules":
            model.normalizer_spec.precompiled_charsmap = b""
        elif change == "broken rules":
            model.normalizer_spec.precompiled_charsmap = model.normalizer_spec.precompiled_charsmap[:5000]
        elif change == "no bytes":
            model.trainer_spec.byte_fallback = False
        else:
            model.trainer_spec.treat_whitespace_as_suffix = True
        assert not is_of_sabertooth(model.SerializeToString()), change
    assert not is_of_sabertooth(b"a model")
