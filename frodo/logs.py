"""Messages of a run: one line of progress, notes, and a table at the end."""

import functools
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

PRINT_SECONDS = 30.0  # between lines of progress where stderr is no terminal
DRAW_SECONDS = 0.1  # between drawings on a terminal


def note(text: str) -> None:
    """Print a line on stderr; it replaces the line of progress, if there is one."""
    print(f"\r\x1b[K{text}" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


class Progress:
    """How far a run is: one line on stderr, rewritten on a terminal, else printed every 30 seconds.

    The rate is that since the first update, without the time in which JAX compiled what came later.

    Args:
      total: steps at the end of the run.
      start: steps already done, of a run that goes on.
      unit: what a step is called.
    """

    def __init__(self, total: int, start: float = 0, unit: str = "steps"):
        self._total, self._first_step, self._first_time, self._unit = total, start, 0.0, unit
        self._next_print = time.monotonic() + (0 if sys.stderr.isatty() else PRINT_SECONDS)
        self._compiling = _compiling()

    def update(self, step: float, text: str = "") -> None:
        """Show that `step` steps are done, and a text such as "return 0.83"; ends the line at the last step."""
        now, is_last = time.monotonic(), step >= self._total
        if not self._first_time:
            self._first_step, self._first_time = step, now - self._compiling[0]
        if now < self._next_print and not is_last:
            return
        rate = (step - self._first_step) / max(now - self._compiling[0] - self._first_time, 1e-9)
        parts = [f"{100 * step / self._total:3.0f} %", f"{quantity(step)} of {quantity(self._total)} {self._unit}"]
        if rate > 0:
            left = round((self._total - step) / rate)
            parts.append(f"{quantity(rate)} {self._unit}/s")
            parts += [] if is_last else [f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"]
        line = "  ".join([*parts, text])
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}", end="\n" if is_last else "", file=sys.stderr, flush=True)
            self._next_print = now + DRAW_SECONDS
        else:
            note(line)
            self._next_print = now + PRINT_SECONDS


@functools.cache
def _compiling() -> list[float]:
    """Return a list whose one number grows by the seconds in which JAX compiles."""
    import jax

    seconds = [0.0]

    def see(event: str, duration_secs: float, **_: str | int) -> None:
        seconds[0] += duration_secs * event.endswith("/backend_compile_duration")

    jax.monitoring.register_event_duration_secs_listener(see)
    return seconds


def quantity(number: float) -> str:
    """Return a number with three digits and a unit of thousands: 1.25M."""
    for unit, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= 0.9995 * size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as aligned text under the keys of the first one, numbers to the right; "" without rows."""
    if not rows:
        return ""
    columns = list(rows[0])
    cells = [columns] + [[_text(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    is_text = [isinstance(rows[0][column], str) for column in columns]
    lines = [
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, is_text, strict=True)
        )
        for line in cells
    ]
    return "\n".join(line.rstrip() for line in lines)


def _text(value: Any) -> str:
    return str(value) if isinstance(value, (str, int)) else f"{float(value):.4g}"
