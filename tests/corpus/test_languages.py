import pytest

from pretrainkit.corpus.stats import classifier, script_of

TEXTS = {
    "en": ("Latin", "All human beings are born free and equal in dignity and rights."),
    "de": ("Latin", "Alle Menschen sind frei und gleich an Würde und Rechten geboren."),
    "bg": ("Cyrillic", "Всички хора се раждат свободни и равни по достойнство и права."),
    "el": ("Greek", "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια."),
    "ar": ("Arabic", "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق."),
    "hi": ("Devanagari", "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।"),
    "ja": ("Kana", "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。"),
    "zh": ("Han", "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。"),
    "ko": ("Hangul", "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다."),
}


@pytest.mark.parametrize("language", TEXTS)
def test_scripts_and_languages_of_a_sentence(language):
    script, text = TEXTS[language]
    assert script_of(text) == script
    pytest.importorskip("py3langid")
    assert classifier()(text) == language


@pytest.mark.parametrize("text", ["", "12345 67890 12345 67890", "short", "\ue000" * 50])
def test_files_with_hardly_any_text_are_not_judged(text):
    assert script_of(text) == "unknown" or not text.isascii()
    pytest.importorskip("py3langid")
    assert classifier()(text) == "unknown"
