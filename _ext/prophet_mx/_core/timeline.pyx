"""The timeline: what happens to every unit (recorder), and its text (events)."""
include "timeline/events.pyx"
include "timeline/recorder.pyx"
