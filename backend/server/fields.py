"""How request bodies are read: strict fields, refusals that name one, and what becomes of fields nobody declared.

A field we accept, we honour. A known field that we do not support is refused by name, unless it has a value that
changes nothing. Anything else is accepted, and logged once by name. Knows no endpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from backend.errors import Rejected

log = logging.getLogger("watchword.server")

B = TypeVar("B", bound="Body")

_MAX_UNKNOWN_NAMES = 100
"""So many names are logged; a client that makes up new ones fills neither memory nor log."""

_MAX_FAULT_LEN = 200
"""A fault may quote a wrong tag; it is not to carry a payload back."""

_unknown_seen: set[str] = set()


class Body(BaseModel):
    """A request body or a part of one: strict kinds, undeclared fields kept aside for `check_extra`."""

    model_config = ConfigDict(strict=True, extra="allow", hide_input_in_errors=True)


def parse_body(kind: type[B], body: bytes) -> B:
    """Read a JSON body; raises Rejected, naming the field but never its contents."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error) from None


def check_extra(
    body: Body, unsupported: Mapping[str, tuple[Any, ...]], prefix: str, *, labels: Collection[str] = ()
) -> None:
    """Refuse, by name, undeclared fields that are known but unsupported; log unknown ones once.

    `unsupported` maps a name to the values that change nothing; `labels` are known fields that ask nothing of us.
    """
    for name, value in (body.model_extra or {}).items():
        if name in unsupported:
            if value not in unsupported[name]:
                raise Rejected(f"{prefix}{name} is not supported", param=prefix + name, code="unsupported_parameter")
        elif name not in labels and name not in _unknown_seen and len(_unknown_seen) < _MAX_UNKNOWN_NAMES:
            _unknown_seen.add(name)
            log.warning("requests carry an unknown field, which is ignored: %.64r", name)


def _refusal(error: ValidationError) -> Rejected:
    """The deepest fault in words (a union reports one per member), with the field's path as the API writes it.

    Of several that lie as deep, a wrong `type` explains the others.
    """
    faults = error.errors(include_input=False, include_url=False)
    fault = max(faults, key=lambda fault: (len(fault["loc"]), fault["loc"][-1:] == ("type",)))
    if fault["type"] == "json_invalid":
        return Rejected(f"the request body is not valid JSON: {fault.get('ctx', {}).get('error')}", code="invalid_json")
    param = _field_path(fault["loc"])
    return Rejected(
        f"{param or 'the request body'}: {fault['msg'][:_MAX_FAULT_LEN]}", param=param or None, code="invalid_value"
    )


def _field_path(location: tuple[int | str, ...]) -> str:
    """`messages[0].content[1].text` for pydantic's location, which also names union members (`list[…]`, `str`, a class)
    and, behind an index into such a list, the tag of the part."""
    path, in_union, after_index = "", False, False
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step == "str" or "[" in step:
            in_union = True
        elif step[:1].isupper():
            pass
        elif not (in_union and after_index):
            path += f".{step}" if path else step
        after_index = isinstance(step, int)
    return path
