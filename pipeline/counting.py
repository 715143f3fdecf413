"""How many people a caption speaks of. English, and with care: what is not said clearly is not held against it."""

from __future__ import annotations

import math
import re

_NUMBERS = dict.fromkeys(("a", "an", "one", "another"), 1) | {
    word: number
    for number, word in enumerate(("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"), start=2)
}
_ONE = r"man|woman|person|boy|girl|child|kid|lady|gentleman|guy|pedestrian|someone|somebody"
_MANY = r"men|women|people|persons|boys|girls|children|kids|ladies|gentlemen|guys|pedestrians|adults"
_OPEN = r"(?:of|group|crowd|couple|pair|team|family|number|few|lot|bunch|line|in|on|at|with|and)\b"
_MENTION = re.compile(
    rf"\b(?:(?P<number>{'|'.join(_NUMBERS)}|\d{{1,3}})\s+(?:(?!{_OPEN})[a-z\-]+\s+){{0,3}}?(?:{_ONE}|{_MANY})|(?P<some>someone|somebody))\b"
)
_NOBODY = re.compile(rf"\b(?:no one|nobody|no (?:{_ONE}|{_MANY})|without (?:any )?(?:{_MANY}))\b")
_VAGUE = re.compile(rf"\b(?:several|some|many|few|group|crowd|couple|family|team|pair|each other|others?|{_MANY})\b")
_JOINED = re.compile(r"\s*(?:,|,?\s*and)\s*")

Range = tuple[int, float]


def said_range(caption: str) -> Range | None:
    """The least and the most people that `caption` can mean; None if it says nothing of people.

    Numbers joined by "and" are added up. Apart they may be of the same people, so the largest is the least meant and
    their sum the most. Any word for people without a number makes it open upwards.
    """
    text = caption.lower()
    groups: list[int] = []
    end = -1
    for found in _MENTION.finditer(text):
        number = found["number"] or "one"
        count = _NUMBERS.get(number) or int(number)
        if groups and _JOINED.fullmatch(text, end, found.start()):
            groups[-1] += count
        else:
            groups.append(count)
        end = found.end()
    rest = _MENTION.sub(" ", text)
    if _NOBODY.search(rest):
        return None if groups else (0, 0)
    is_vague = _VAGUE.search(rest) is not None
    if not groups:
        return None
    return max(groups), math.inf if is_vague else sum(groups)


def contradicts(caption: str, num_counted: int, num_detected: int) -> bool:
    """Whether `caption` speaks of fewer people than count, or of more than were detected at all."""
    said = said_range(caption)
    if said is None:
        return False
    least, most = said
    return most < num_counted or least > max(num_counted, num_detected)
