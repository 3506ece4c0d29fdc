"""Conversations under the day of their last change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta

from rvchat.store import Summary


def grouped(summaries: Sequence[Summary], today: date) -> Iterator[tuple[str, list[Summary]]]:
    """Headings with what stands under them: pinned first, then the latest day first. `summaries` in that order."""
    heading, group = "", list[Summary]()
    for summary in summaries:
        name = "Pinned" if summary.pinned else day(datetime.fromtimestamp(summary.changed).date(), today)
        if name != heading and group:
            yield heading, group
            group = []
        heading = name
        group.append(summary)
    if group:
        yield heading, group


def day(when: date, today: date) -> str:
    """ "Today", "Yesterday", the last days by name of the stretch, then by month."""
    if when >= today:
        return "Today"
    if when == today - timedelta(days=1):
        return "Yesterday"
    if when > today - timedelta(days=7):
        return "This week"
    if (when.year, when.month) == (today.year, today.month):
        return "This month"
    return f"{when:%B %Y}"
