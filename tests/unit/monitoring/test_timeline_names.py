"""Names in a trace: whatever a program calls its parameters, every reader of JSON takes the file."""

import json
from pathlib import Path

from prophet_mx.monitoring.timeline import Timeline
from prophet_mx.monitoring.trace import load_trace
from prophet_mx.monitoring.trace_file import LABEL_MAX


class Silent:
    """Source and recorder in one, to which nothing happens."""

    lost = 0

    def __init__(self):
        self.labels = []

    def now_us(self):
        return 1

    def record_timeline(self, recorder):
        pass

    def unit_facts(self, unit):
        return {"bytes": 1, "rank": unit, "unit": unit}

    def drain_timeline(self, recorder, labels, last=False):
        self.labels = labels
        return b""


def test_any_name_makes_a_strict_json_text(tmp_path):
    names = ["Größe", "lay\udcffer", "\ud800", 'quote"\n\\', "😀" * LABEL_MAX]
    source = Silent()
    timeline = Timeline(
        source,
        lambda links, process: source,
        str(tmp_path / "t.json"),
        1_000_000,
        rank=0,
        workers=2,
        links=["server \udcff"],
        gradients=list(range(len(names))),
        names=dict(enumerate(names)),
        about={"policy": "mine\udcff"},
    )
    timeline.note("policy \udcff")
    timeline.stop()
    text = Path(timeline.path).read_bytes().decode("utf-8")
    json.loads(text)
    assert "\\ud" not in text.lower()  # no escape of half a character, which strict readers refuse
    trace = load_trace(timeline.path)
    assert [unit.name for unit in trace.units.values()][:4] == ["Größe", "lay?er", "?", 'quote"\n\\'] and trace.head["policy"] == "mine?"
    assert all(len(label) <= LABEL_MAX for label in source.labels) and source.labels[4].endswith('😀..."'.encode())
