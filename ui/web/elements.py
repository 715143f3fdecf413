"""The two elements the page is made of beside NiceGUI's own: any tag with classes, and any tag with text."""

from __future__ import annotations

from typing import Any

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement


class Text(TextElement):
    """A tag whose content is text, escaped by the browser."""

    def __init__(self, tag: str, text: str = "", classes: str = "", **attributes: Any) -> None:
        super().__init__(tag=tag, text=text)
        self.classes(classes)
        set_attributes(self, attributes)


def box(tag: str, classes: str = "", **attributes: Any) -> ui.element:
    """A container. Attribute names may use `_` for `-`; values go out as they are (None: absent)."""
    element = ui.element(tag).classes(classes)
    set_attributes(element, attributes)
    return element


def set_attributes(element: ui.element, attributes: dict[str, Any]) -> None:
    """Set HTML attributes without NiceGUI's parsing of a props string, so that any text is safe as a value."""
    for name, value in attributes.items():
        name = name.rstrip("_").replace("_", "-")
        if value is None:
            element.props.pop(name, None)
        else:
            element.props[name] = value
    element.update()


def trusted(markup: str, classes: str = "") -> ui.html:
    """Markup of our own; whatever comes from outside must have been escaped by the caller."""
    return ui.html(markup, sanitize=False).classes(classes)
