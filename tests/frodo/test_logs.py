"""What a person sees of a run: progress, numbers and a table."""

import jax
import pytest

from frodo.logs import Progress, quantity, table


def test_table_is_aligned():
    text = table([{"name": "a", "value": 1.0}, {"name": "longer", "value": -0.123456}])
    assert text.splitlines() == ["name      value", "a             1", "longer  -0.1235"]
    assert table([]) == ""


def test_progress_prints_at_most_every_30_seconds_and_at_the_end(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = Progress(total=2_000_000)
    for step in range(0, 2_000_001, 20_000):
        progress.update(step, f"return {step / 1e6:.2f}")
        now[0] += 1.0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == " 30 %  600k of 2M steps  20k steps/s  0:01:10 left  return 0.60"
    assert [line[:5] for line in lines] == [" 30 %", " 60 %", " 90 %", "100 %"]
    assert lines[-1] == "100 %  2M of 2M steps  20k steps/s  return 2.00"


def test_compilation_during_a_run_does_not_count_in_the_time_left(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = Progress(total=100)
    for step in range(8):
        progress.update(step + 0.5)
        now[0] += 10.0
        if step == 1:
            jax.monitoring.record_event_duration_secs("/jax/core/compile/backend_compile_duration", 40.0)
            now[0] += 40.0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "  2 %  2.5 of 100 steps  0.1 steps/s  0:16:15 left  "


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999.6, "1k"), (1234567, "1.23M"), (2e9, "2G"), (12.34, "12.3")]
)
def test_quantity(number, text):
    assert quantity(number) == text
