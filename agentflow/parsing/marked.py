"""Calls among text, in any of the formats. Pure: text in, events out.

The parser takes text in pieces of any cut and says what it has understood so far. It looks at each character a constant
number of times.

    text         passed on up to where a call begins, or might begin
    call         a reader of the format's takes what belongs to it
    after call   the closer is dropped, if the model wrote one
    failed call  collected up to the closer, the next opener (where the format recovers) or the end

**Arguments** are passed on byte for byte as the model wrote them where the format is JSON. A call is closed only once its
arguments are one whole JSON value; one that is cut anywhere is never closed.

**Nothing is lost.** Text that looks like the beginning of a marker is held back until it is one or is not. What turns
out to be no call, or ends before its time, comes back whole in a Malformed, or as Text if no marker announced it. White
space is dropped around calls, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection

from agentflow.parsing.events import CallReader, Malformed, ParserEvent, Text
from agentflow.parsing.formats import Format
from agentflow.parsing.held import HeldText, overlap
from agentflow.parsing.value import SPACE


class MarkedParser(HeldText):
    """Calls among text. `names` are the functions that exist: what nothing announced is a call only of one of these."""

    def __init__(self, form: Format, names: Collection[str]) -> None:
        super().__init__()
        self._format = form
        self._names = names
        self._fresh = True  # nothing but white space and separators since the beginning, or since a call
        self._calls = 0
        self._call: CallReader | None = None
        self._closer: str | None = None  # that should follow this call, or the one after it if the model means several
        self._raw: list[str] = []  # of what is being read, since its last whole call

    def finish(self) -> list[ParserEvent]:
        """As ToolParser.finish."""
        held, self._held = self._held, ""
        if self._call is not None:
            raw = "".join(self._raw) + held
            # A list may lack its end: all that was begun in it is whole.
            whole = self._call.calls > 0 and not self._call.failed and not raw.strip(SPACE + ",")
            return [] if whole else [self._no_call(self._call, raw)]
        if self._state == self._after_call and self._closer is not None and self._closer.startswith(held):
            held = ""
        if not held and (self._calls or not self._layout):
            return []
        return [Text(self._taken_layout() + held)]

    def _in_text(self, events: list[ParserEvent]) -> bool:
        """Pass text on up to where a call begins, or might begin."""
        form, opener = self._format, self._format.opener
        if self._fresh:
            self._set_layout_aside(SPACE + (form.separator if self._calls else ""))
            held = self._held
            if not held:
                return False
            if held[0] in form.bare:
                return self._begin_call("", held, closer=self._closer)
            if form.fence is not None and held.startswith(form.fence):
                return self._begin_call(form.fence, held[len(form.fence) :], closer=form.fence)
            if form.fence is not None and form.fence.startswith(held):
                return False
        held = self._held
        at = -1 if opener is None else held.find(opener)
        sure = at if at >= 0 else len(held) - overlap(held, opener or "")
        if sure:
            events.append(Text(self._taken_layout() + held[:sure]))
            self._held = held[sure:]
            self._fresh, self._closer = False, None
        if at < 0 or opener is None:
            return False
        self._layout.clear()
        return self._begin_call(opener, held[at + len(opener) :], closer=form.closer)

    def _begin_call(self, raw: str, rest: str, *, closer: str | None) -> bool:
        announced = raw != "" and raw == self._format.opener
        self._call = self._format.reader(self._calls, None if announced else self._names)
        self._raw = [self._taken_layout(), raw]
        self._held = rest
        self._closer = closer
        self._state = self._in_call
        return True

    def _in_call(self, events: list[ParserEvent]) -> bool:
        call = self._call
        assert call is not None
        whole = call.calls
        taken = call.feed(self._held)
        self._raw.append(self._held[:taken])
        self._held = self._held[taken:]
        events += call.take_events()
        if call.calls > whole:
            self._raw = []
        if call.done:
            self._call = None
            self._calls += call.calls
            self._fresh = True
            self._state = self._in_text if self._closer is None else self._after_call
        elif call.failed and not call.certain:
            events.append(self._no_call(call, "".join(self._raw)))
            self._fresh, self._closer = False, None
            self._state = self._in_text
        elif call.failed:
            self._state = self._in_failed_call
            if self._format.recovers:
                # The call may have failed within the opener of the next.
                raw = "".join(self._raw)
                size = len(raw) - overlap(raw, self._format.opener or "")
                self._raw, self._held = [raw[:size]], raw[size:] + self._held
        return True

    def _after_call(self, _: list[ParserEvent]) -> bool:
        """Drop the closer, if the model wrote one."""
        closer = self._closer or ""
        self._set_layout_aside()
        if self._held.startswith(closer):
            self._layout.clear()
            self._held = self._held[len(closer) :]
            self._closer = None
        elif closer.startswith(self._held):
            return False
        self._state = self._in_text
        return True

    def _in_failed_call(self, events: list[ParserEvent]) -> bool:
        """Collect what cannot be understood, up to its end."""
        call, end = self._call, self._closer
        assert call is not None
        if self._format.recovers:
            end = self._format.opener
        at = -1 if end is None else self._held.find(end)
        if at < 0 or end is None:
            size = len(self._held) - overlap(self._held, end or "")
        else:
            size = at if self._format.recovers else at + len(end)
        self._raw.append(self._held[:size])
        self._held = self._held[size:]
        if at < 0:
            return False
        events.append(self._no_call(call, "".join(self._raw)))
        self._fresh, self._closer = True, None
        self._state = self._in_text
        return True

    def _no_call(self, call: CallReader, raw: str) -> ParserEvent:
        """What was read is no call, or no more of them. A call that had been opened keeps its number."""
        self._call = None
        self._calls += call.calls
        if not call.certain:
            return Text(raw)
        index = self._calls if call.opened else None
        self._calls += call.opened
        return Malformed(raw, index)
