"""The timeline's recorder, for the driver."""
include "timeline/events.pxd"
include "timeline/recorder.pxd"
