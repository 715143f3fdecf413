"""`watchword.yaml` as a text with lines: read into settings, and edited so that comments and order stay.

Knows YAML; what settings mean is `models.py`'s. The file is read anew for every edit, so that what a person changed in
it meanwhile is kept.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from pipeline.plain_text import plain
from pipeline.settings.fault import SECRET, Fault, Place, SettingsError, faults_of
from pipeline.settings.models import CameraSettings, Settings, find_twin
from pipeline.settings.yaml_fault import describe

LARGEST = 1_000_000
SECRETS_MODE = 0o600


@dataclass(frozen=True, slots=True)
class Document:
    """One version of the file: its tree (ruamel's, with comments) and what it means."""

    path: Path
    tree: CommentedMap
    settings: Settings


def read(path: Path) -> Document:
    """Read and check the file. Raises `SettingsError` with every fault, each as `file:line: field: message`."""
    tree = _parse(path)
    try:
        plain_tree = _to_plain(tree)
    except RecursionError:
        raise _broken(path, 1, "a part of it contains itself") from None
    if (empty := _find_empty_secret(tree)) is not None:
        raise _at_lines(path, tree, [empty])
    try:
        settings = Settings.model_validate(plain_tree)
    except ValidationError as error:
        raise _at_lines(path, tree, faults_of(error, Settings)) from None
    if (twin := find_twin(settings.cameras)) is not None:
        name = settings.cameras[twin].name
        fault = Fault(("cameras", twin, "name"), f"two cameras are named {name}; give each a name of its own")
        raise _at_lines(path, tree, [fault])
    return Document(path, tree, settings)


def put_camera(path: Path, camera: CameraSettings, replaces: str | None) -> str:
    """Write `camera` into the file, in the place of the camera named `replaces` if there is one, else at the end.

    Returns the text that was there before. Raises `SettingsError`, or `OSError` if the file cannot be written.
    """
    document = read(path)
    cameras = document.tree.get("cameras")
    if not isinstance(cameras, CommentedSeq):
        cameras = document.tree["cameras"] = CommentedSeq()
    values = written(camera)
    index = _index(cameras, replaces)
    if index is None:
        cameras.append(_styled(values))
    else:
        _update(cameras[index], values)
    return _write(document, has_secret=camera.password is not None)


def drop_camera(path: Path, name: str) -> str:
    """Take the camera out of the file, if it is there. Returns and raises as `put_camera` does."""
    document = read(path)
    cameras = document.tree.get("cameras")
    index = _index(cameras, name) if isinstance(cameras, CommentedSeq) else None
    if index is not None and cameras is not None:
        del cameras[index]
    return _write(document, has_secret=False)


def restore(path: Path, text: str) -> None:
    """Put back what an edit found. Raises `OSError`."""
    _replace(path, text, mode=None)


def written(camera: CameraSettings) -> dict[str, Any]:
    """A camera as it is written: what differs from the defaults, in the order of the fields."""
    values = camera.model_dump(mode="json", exclude_defaults=True)
    return {"name": camera.name, "source": camera.source, **values}


def _yaml() -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096  # never fold what somebody wrote on one line
    return yaml


def _parse(path: Path) -> CommentedMap:
    text = ""
    try:
        data = path.read_bytes()
        if len(data) > LARGEST:
            raise _broken(path, None, f"is larger than {LARGEST} bytes")
        text = data.decode("utf-8-sig")
        tree = _yaml().load(text)
    except OSError as error:
        raise _broken(path, None, (error.strerror or str(error)).lower()) from None
    except UnicodeDecodeError:
        raise _broken(path, None, "is not UTF-8 text") from None
    except RecursionError:
        raise _broken(path, None, "is nested too deeply") from None
    except MarkedYAMLError as error:
        raise _broken(path, *describe(error, text)) from None
    except (YAMLError, ValueError):
        raise _broken(path, None, "is not YAML") from None
    if tree is None:
        return CommentedMap()
    if not isinstance(tree, CommentedMap):
        raise _broken(path, 1, "must be settings (name: value), the cameras below `cameras:`")
    return tree


def _find_empty_secret(tree: CommentedMap) -> Fault | None:
    """A password of which nothing is left, because it stands behind a # without quotes."""
    cameras = tree.get("cameras")
    listed = cameras if isinstance(cameras, CommentedSeq) else ()
    places: list[tuple[Place, Any]] = [((), tree), *((("cameras", n), camera) for n, camera in enumerate(listed))]
    for place, settings in places:
        for key in sorted(SECRET):
            if isinstance(settings, CommentedMap) and key in settings and settings[key] is None:
                return Fault((*place, key), "is empty; put it in quotes, for # begins a comment, or drop it")
    return None


def _broken(path: Path, line: int | None, message: str) -> SettingsError:
    return SettingsError([Fault((), message)], [f"{path}{'' if line is None else f':{line}'}: {message}"])


def _at_lines(path: Path, tree: CommentedMap, faults: list[Fault]) -> SettingsError:
    return SettingsError(faults, [f"{path}:{line_of(tree, fault.place)}: {_named(fault, tree)}" for fault in faults])


def _named(fault: Fault, tree: CommentedMap) -> str:
    """The fault, with the name of its camera if that has one."""
    match fault.place:
        case ("cameras", int(index), *_):
            camera = tree["cameras"][index]
            name = camera.get("name") if isinstance(camera, Mapping) else None
            if isinstance(name, str):
                return f"{fault.field} (camera {plain(name)}): {fault.message}"
    return str(fault)


def line_of(tree: CommentedMap, place: Place) -> int:
    """The line, from 1, on which a place stands, or the nearest thing around it that is there."""
    node: Any = tree
    line = 0
    for step in place:
        try:
            line = node.lc.key(step)[0] if isinstance(node, CommentedMap) else node.lc.item(step)[0]
            node = node[step]
        except (AttributeError, KeyError, IndexError, TypeError):
            break
    return line + 1


def _to_plain(node: Any) -> Any:
    """The tree without ruamel's kinds: what pydantic knows."""
    if isinstance(node, Mapping):
        return {str(key): _to_plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_to_plain(value) for value in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _index(cameras: CommentedSeq, name: str | None) -> int | None:
    return next((index for index, camera in enumerate(cameras) if camera.get("name") == name), None)


def _update(there: CommentedMap, values: dict[str, Any]) -> None:
    """Make a camera's mapping say `values`: what stays the same keeps its place, spelling and comments."""
    for key in [key for key in there if key not in values]:
        del there[key]
    for key, value in values.items():
        if key not in there or (
            _to_plain(there[key]) != value and str(there[key]) != value
        ):  # a webcam may be 0 or "0"
            there[key] = _styled(value)


def _styled(value: Any) -> Any:
    """New values as a person would write them: a polygon on one line."""
    if isinstance(value, dict):
        return CommentedMap({key: _styled(inner) for key, inner in value.items()})
    if isinstance(value, list):
        items = CommentedSeq(_styled(inner) for inner in value)
        if not any(isinstance(inner, dict) for inner in value):
            items.fa.set_flow_style()
        return items
    return value


def _write(document: Document, *, has_secret: bool) -> str:
    before = document.path.read_text(encoding="utf-8-sig")
    yaml = _yaml()
    if indents := re.search(r"^( *)- ", before, re.MULTILINE):
        offset = len(indents[1])
        yaml.indent(mapping=2, sequence=offset + 2, offset=offset)
    out = io.StringIO()
    yaml.dump(document.tree, out)
    mode = os.stat(document.path).st_mode & 0o777
    _replace(document.path, out.getvalue(), mode & SECRETS_MODE if has_secret else mode)
    return before


def _replace(path: Path, text: str, mode: int | None) -> None:
    """Write the file whole or not at all, through links to the file itself; `mode` None: as it is."""
    path = path.resolve()
    if mode is None:
        mode = os.stat(path).st_mode & 0o777
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
