"""Punctuation marks that end sentences, in all scripts (stops). Source: Unicode's property Sentence_Terminal, and the
shads of Tibetan."""

import re

ASCII_STOPS = ".!?"
ELLIPSIS = "…"
SPACED_STOPS = (
    "‼‽⁇⁈⁉⸮⸼"  # of several scripts
    "։؝؞؟۔܀܁܂߹࠷࠹࠽࠾"  # Armenian, Arabic, Urdu, Syriac, N'Ko, Samaritan
    "।॥༎།။።፧፨᙮᜵᜶។៕᠃᠉᥄᥅᪨᪩᪪᪫᭚᭛᭞᭟᰻᰼᱾᱿"  # of India, Tibet, Myanmar, Ethiopia, Canada, the Philippines, Cambodia, ...
    "꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉꩝꩞꩟꫰꫱꯫"  # Lisu, Vai, Bamum, Phags-pa, Saurashtra, Kayah Li, Javanese, Cham, Meetei
)
"""Stops that end a sentence only before a space or the end of the text."""
FREE_STOPS = "。！？｡"
"""Stops of scripts that are written without spaces. They end a sentence before any character."""
_CLOSING = re.escape("\"'”’»›)]}」』】》〉）］｝〕")


def stop_pattern(spaced: str) -> re.Pattern[str]:
    """Return a pattern of the ends of sentences: stops and the closing quotes and brackets after them."""
    spaced, free = re.escape(spaced), re.escape(FREE_STOPS)
    stops = spaced + free
    return re.compile(
        # A match never begins after another stop, and the quantifiers are possessive: the time is linear in any text.
        rf"[{stops}](?<![{stops}]{{2}})"
        rf"(?:(?:(?<=[{free}])|[{spaced}]*+[{free}])[{stops}]*+[{_CLOSING}]*+"
        rf"|[{spaced}]*+[{_CLOSING}]*+(?=\s|$))"
    )


def cut_at(pattern: re.Pattern[str], text: str) -> list[str]:
    """Cut the text after each match of `pattern`."""
    ends = [match.end() for match in pattern.finditer(text)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
