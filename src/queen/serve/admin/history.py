"""All events of a ledger as operators see them, of which only the new ones are read again."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import replace

from queen.ledger import Event, Ledger
from queen.ledger.words import NOTICES


class History:
    """All events, oldest first, and how many notices nobody has acknowledged yet, as of the last `refresh`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self.events: list[Event] = []
        self.unacknowledged = self._notices = 0
        self._about: dict[tuple[bool, str], list[int]] = defaultdict(list)  # the places of events in the list

    def refresh(self) -> History:
        """Read what is new, and who has acknowledged what, and return this; may block, and run in several threads."""
        with self._lock:
            self._read_new()
            read = 0
            for number, actor in self._ledger.acknowledgements().items():
                if number > len(self.events):  # it came just now
                    continue
                event = self.events[number - 1]
                read += event.what in NOTICES
                if event.acknowledged != actor:
                    self.events[number - 1] = replace(event, acknowledged=actor)
            self.unacknowledged = self._notices - read
        return self

    def _read_new(self) -> None:
        """Read from the last event that is known, to see that it is still the same; else another ledger is there."""
        known = self.events[-1] if self.events else None
        events = self._ledger.events(after=known.id - 1 if known else 0)
        if known is not None:
            if events and replace(events[0], acknowledged=known.acknowledged) == known:
                del events[0]
            else:
                events = self._ledger.events()
                self._forget()
        for event in events:
            self._about[event.group, event.name].append(len(self.events))
            self.events.append(event)
            self._notices += event.what in NOTICES

    def about(self, name: str, *, group: bool) -> list[Event]:
        """The events about one client or group, oldest first."""
        return [self.events[place] for place in self._about.get((group, name), ())]
