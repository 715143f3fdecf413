"""The one way in to ultralytics: imported on first use, held to this process's habits. Knows nothing of models.

The library reads its environment when it is imported, and replaces functions of other libraries while at it.
"""

from __future__ import annotations

import os
from types import ModuleType

from camera_sources import cv


def import_ultralytics(*, online: bool = False) -> ModuleType:
    """Import ultralytics (slow the first time): no installs, no analytics, and no probes of the net unless `online`.

    It puts a `PIL.Image.open` of its own in place, which answers an unreadable picture by trying to install a package;
    Pillow's is put back. Raises `SourceError` where OpenCV, which it imports too, does not work.
    """
    cv.check()
    os.environ["YOLO_AUTOINSTALL"] = "false"
    os.environ["YOLO_OFFLINE"] = "false" if online else "true"
    os.environ["YOLO_VERBOSE"] = "false"
    from PIL import Image

    pillows_open = Image.open
    import ultralytics
    from ultralytics.utils.events import events

    Image.open = pillows_open
    events.enabled = False  # analytics
    return ultralytics
