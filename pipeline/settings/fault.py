"""What is wrong with a setting, in one line that names the place: from pydantic's findings to a person's words."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from camera_sources.url import redact
from pipeline.plain_text import plain

Place = tuple[str | int, ...]

SECRET = frozenset({"password", "api_key"})
LONGEST_VALUE = 60
MEANT = {"source": "url address uri path rtsp", "username": "user", "password": "pass", "detector_fps": "fps"} | {
    "min_confidence": "confidence",
    "cooldown_s": "cooldown",
    "interval_s": "interval",
    "min_size": "size",
    "name": "id camera",
    "polygon": "points area",
    "cameras": "sources streams",
}
"""What people write for what."""

NEEDED = {
    "source": ": a URL, a video file, a folder of images or a webcam's number",
    "name": ": what the camera or zone is called",
    "polygon": ": its corners, such as [[0, 0.5], [1, 0.5], [1, 1]]",
}
"""What belongs where something is missing."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong at `place` (keys and list positions from the top; empty for all of it)."""

    place: Place
    message: str

    @property
    def field(self) -> str:
        """The place as it is written: `cameras[0].zones[1].polygon`."""
        text = ""
        for step in self.place:
            text += f"[{step}]" if isinstance(step, int) else f"{'.' if text else ''}{plain(step)}"
        return text

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.place else self.message


class SettingsError(Exception):
    """Settings that cannot be used: one or more faults, one a line. Free of secrets."""

    def __init__(self, faults: Sequence[Fault], lines: Sequence[str] | None = None) -> None:
        self.faults = tuple(faults)
        self.lines = tuple(lines or [str(fault) for fault in faults])
        super().__init__("\n".join(self.lines))


def faults_of(error: ValidationError, model: type[BaseModel]) -> list[Fault]:
    """Every finding as a fault, in the order of the document."""
    return [_fault(details, model) for details in error.errors(include_url=False)]


def _fault(details: ErrorDetails, model: type[BaseModel]) -> Fault:
    place = tuple(details["loc"])
    kind, context = details["type"], details.get("ctx", {})
    if kind == "extra_forbidden":
        return Fault(place, "unknown setting" + _suggestion(str(place[-1]), _model_at(model, place[:-1])))
    if kind == "missing":
        return Fault(place, "is missing" + NEEDED.get(str(place[-1]), ""))
    if kind == "value_error":
        return Fault(place, redact(str(context["error"])))
    wanted = _wanted(kind, context)
    if wanted is None:
        return Fault(place, redact(details["msg"]))
    begin = "; begin each with `- name: …`" if _is_list_of_groups(kind, place) else ""
    return Fault(place, f"must be {wanted}, not {_shown(details['input'], place)}{begin}")


_LIMITS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def _wanted(kind: str, context: Mapping[str, Any]) -> str | None:
    """What a value must be, as pydantic's kind of finding tells."""
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        return f"{words} {context[name]:g}"
    match kind:
        case "string_type":
            return "text (put it in quotes)"
        case "string_too_short":
            return "at least one character long"
        case "string_too_long":
            return f"at most {context['max_length']} characters long"
        case "bool_type" | "bool_parsing":
            return "true or false"
        case "int_type" | "int_parsing" | "int_from_float":
            return "a whole number"
        case "float_type" | "float_parsing" | "finite_number":
            return "a number"
        case "list_type" | "tuple_type":
            return "a list"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "a group of settings (name: value)"
        case "literal_error":
            return str(context["expected"]).replace("'", "")
        case "too_short" | "too_long":
            count = context.get("min_length", context.get("max_length"))
            return f"a list of {'at least' if kind == 'too_short' else 'at most'} {count}"
    return None


def _shown(value: object, place: Place) -> str:
    """A value as a message may repeat it: a password not at all, the rest short and redacted."""
    if SECRET & {step for step in place if isinstance(step, str)}:
        return "a number" if isinstance(value, int | float) else "what it is"
    match value:
        case None:
            return "empty"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"{value:g}" if isinstance(value, float) else str(value)[:LONGEST_VALUE]
        case str():
            text = plain(redact(value))
            return f'"{text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"}"'
        case Mapping():
            return "a group of settings"
        case list() | tuple():
            return f"a list of {len(value)}"
        case _:
            return f"a {type(value).__name__}"


def _is_list_of_groups(kind: str, place: Place) -> bool:
    return kind in ("list_type", "tuple_type") and place[-1] in ("cameras", "zones")


def _suggestion(key: str, model: type[BaseModel]) -> str:
    """`; did you mean x?` for the likeliest, else where it belongs, else what there is."""
    known = list(model.model_fields)
    meant = [name for name in known if key.lower() in MEANT.get(name, "").split()]
    if near := meant or difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.6):
        return f"; did you mean {near[0]}?"
    for name, field in model.model_fields.items():
        inner = _try_model_in(field.annotation)
        if inner is not None and key in inner.model_fields:
            return f"; it belongs below `{name}:`, indented as what is there"
    return f"; there are {', '.join(known)}"


def _model_at(model: type[BaseModel], place: Place) -> type[BaseModel]:
    """The settings at a place, following the models' own fields."""
    here: Any = model
    for step in place:
        if not isinstance(step, int):
            here = _model_in(here.model_fields[step].annotation)
    return here


def _model_in(annotation: Any) -> Any:
    """The model within `tuple[Model, ...]`, `Model | None` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(found for inner in annotation.__args__ if (found := _try_model_in(inner)) is not None)


def _try_model_in(annotation: Any) -> Any:
    try:
        return _model_in(annotation)
    except (AttributeError, StopIteration):
        return None
