"""What a prompt may say of its picture: {count}, {zone}, {camera} and {time}, filled in per selection.

The facts stand where the prompt's author puts them, and the prompt stands after the picture.
"""

from __future__ import annotations

import time
from string import Formatter

from pipeline.events import Selection

NAMES = ("count", "zone", "camera", "time")


def find_fault(template: str, *, has_zones: bool) -> str | None:
    """What is wrong with a prompt, as the end of a sentence that begins with it; None if nothing is."""
    if not template.strip():
        return "is empty"
    try:
        fields = [field for field in Formatter().parse(template) if field[1] is not None]
    except ValueError:
        return "has a brace without its pair; write {{ or }} for a brace that is meant as one"
    for _, name, spec, conversion in fields:
        if name not in NAMES or spec or conversion:
            shown = f"{name}{'!' + conversion if conversion else ''}{':' + spec if spec else ''}"
            return f"asks for {{{shown}}}; it may ask for {', '.join(f'{{{known}}}' for known in NAMES)}"
        if name == "zone" and not has_zones:
            return "asks for {zone}, and the camera has no zones to stand in"
    return None


def fill(template: str, selection: Selection) -> str:
    """The prompt of one selection. `template` was checked by `find_fault`."""
    if "{" not in template and "}" not in template:
        return template
    return template.format(
        count=len(selection.tracks),
        zone=selection.zone or "",
        camera=selection.frame.camera_id,
        time=time.strftime("%Y-%m-%d %H:%M", time.localtime(selection.frame.t_wall)),
    )
