"""Signs that end sentences, in all scripts. Source: Unicode's property Sentence_Terminal; and the shads of Tibetan."""

import re

ASCII_STOPS = ".!?"
ELLIPSIS = "…"
SPACED_STOPS = (
    "‼‽⁇⁈⁉⸮⸼"  # of several scripts
    "։؝؞؟۔܀܁܂߹࠷࠹࠽࠾"  # Armenian, Arabic, Urdu, Syriac, N'Ko, Samaritan
    "।॥༎།။።፧፨᙮᜵᜶។៕᠃᠉᥄᥅᪨᪩᪪᪫᭚᭛᭞᭟᰻᰼᱾᱿"  # of India, Tibet, Myanmar, Ethiopia, Canada, the Philippines, Cambodia, ...
    "꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉꩝꩞꩟꫰꫱꯫"  # Lisu, Vai, Bamum, Phags-pa, Saurashtra, Kayah Li, Javanese, Cham, Meetei
)
"""Need a space behind them, or the end."""
FREE_STOPS = "。！？｡"
"""Of scripts that are written without spaces."""
_CLOSING = re.escape("\"'”’»›)]}」』】》〉）］｝〕")


def stop_pattern(spaced: str) -> re.Pattern[str]:
    """Ends of sentences: stops, and the quotes and brackets that close behind them."""
    spaced, free = re.escape(spaced), re.escape(FREE_STOPS)
    stops = spaced + free
    return re.compile(
        # What follows another stop begins no match, and what was matched is not given back: linear in any text.
        rf"[{stops}](?<![{stops}]{{2}})"
        rf"(?:(?:(?<=[{free}])|[{spaced}]*+[{free}])[{stops}]*+[{_CLOSING}]*+"
        rf"|[{spaced}]*+[{_CLOSING}]*+(?=\s|$))"
    )


def cut_at(pattern: re.Pattern[str], text: str) -> list[str]:
    """The text in parts that end where `pattern` matches."""
    ends = [match.end() for match in pattern.finditer(text)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
