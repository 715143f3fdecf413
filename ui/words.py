"""What the product calls things, in the terminal as on the page."""

from __future__ import annotations

from pipeline.events import EventStatus, Reason

REASONS = {
    Reason.NEW_TRACK: "someone new",
    Reason.CHANGE: "something changed",
    Reason.INTERVAL: "still in view",
}

UNDESCRIBED = {
    EventStatus.FAILED: "not described",
    EventStatus.CANCELLED: "left before it was described",
    EventStatus.SUPERSEDED: "replaced by a newer picture",
}
