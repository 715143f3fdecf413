"""The event store's table as the program reads and writes it. How a database came to have it is in `migrations`."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, Integer, MetaData, String, Table

EVENTS = Table(
    "events",
    MetaData(),
    Column("id", Integer, primary_key=True),  # grows in the order in which events were kept
    Column("event_id", String, unique=True, nullable=False),
    Column("camera", String, nullable=False),
    Column("frame_seq", Integer, nullable=False),
    Column("pts_s", Float, nullable=False),
    Column("track_ids", String, nullable=False),  # JSON
    Column("boxes", String, nullable=False),  # JSON
    Column("reason", String, nullable=False),
    Column("status", String, nullable=False),
    Column("caption", String),
    Column("model", String),
    Column("t_captured", Float, nullable=False),
    Column("t_selected", Float, nullable=False),
    Column("t_sent", Float),
    Column("t_first_token", Float),
    Column("t_last_token", Float),
    Column("t_wall", Float, nullable=False),
    Column("error", String),
    Column("jpeg_path", String),
    Column("jpeg_bytes", Integer),  # what retention counts; null in rows older than the column
    Column("zone", String),
    Column("count_mismatch", Boolean, nullable=False),
    Column("details", String),  # JSON
)
