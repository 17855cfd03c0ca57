"""The loop of every run: it advances a regime, and does once what all runs need.

Rows and progress, checkpoints, going on, a stop by a signal or by a callback, several processes: all of that is here,
for the library's calls and for the programs. What gets better, and how, is a `Regime`.
"""

import abc
import contextlib
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from frodo import devices
from frodo.logs import Progress, note
from frodo.runs.callbacks import as_callbacks
from frodo.runs.run import Clock, Run
from frodo.runs.signals import Signals

HANGS = (KeyboardInterrupt, KeyboardInterrupt(), None)  # what ended a regime whose environment's step may hang


class Advanced(NamedTuple):
    """Where a regime is after it was advanced.

    Attributes:
      state: all that it goes on from, apart from what `Regime.told` returns.
      step: how far it is, in the regime's unit; checkpoints bear its name.
      rows: of metrics, by column, a row for each lifetime; empty where none is due.
      text: what the line of progress says in addition to steps.
    """

    state: Any
    step: int
    rows: Sequence[Mapping[str, Any]] = ()
    text: str = ""


class Regime(abc.ABC):
    """What gets better over time, a little with each `advance`; subclasses say how.

    Attributes:
      total: how much there is to do, in `unit`.
    """

    total: int
    unit = "steps"
    is_whole_when_it_hangs = False  # whether the state before `advance` can be saved after its KeyboardInterrupt

    @abc.abstractmethod
    def init(self) -> Any:
        """Return the initial state."""

    def begin(self, state: Any, step: int, run: "Driven") -> Any:
        """Begin, or go on from a state and step; returns the state. What it starts is ended by `close`."""
        return state

    @abc.abstractmethod
    def advance(self, state: Any, step: int) -> Advanced:
        """Go on to where the run can be stopped, and a row may be due. KeyboardInterrupt: it hangs, and is to stop."""

    def is_over(self, state: Any, step: int) -> bool:
        """Say whether a state is that at the end."""
        return step >= self.total

    def done(self, step: int) -> float:
        """Return how much of the total is done, for the line of progress."""
        return step

    def close(self, *exception: Any) -> None:  # noqa: B027 - a regime may have nothing to end
        """End the threads that `begin` started; after an exception, as `__exit__` has it, those that hang are left."""

    def told(self) -> Any:
        """Return what a checkpoint has in addition to the state, as JSON can hold it."""
        return None

    def gather(self, state: Any) -> Any:
        """Return a state as a checkpoint holds it, with the parts of all processes."""
        return devices.gather(state)

    def scatter(self, whole: Any, step: int, begun: Any) -> tuple[Any, int]:
        """Return a state and step as process 0 has them, lying where one lies that has begun."""
        return devices.scatter(whole, step, begun)


class Driven:
    """A run under way, as regimes and callbacks see it.

    Attributes:
      run: its folder, None where nothing is kept.
      told: what the checkpoint holds from which it goes on, in addition to the state.
      clock: how long it has taken.
      latest: where it is.
      is_advancing: whether that is being used up: after an error it is no more.
    """

    is_advancing = False

    def __init__(
        self, run: Run | None, signals: Signals, latest: Advanced, result_of: Callable[[Any, int], Any] | None
    ):
        self.run, self.told = run, run.told if run else None
        self.latest, self._signals, self._result_of = latest, signals, result_of
        self.clock = run.clock if run else Clock()

    def result(self) -> Any:
        """Return the result of the run so far, as the call that began it does."""
        if self._result_of is None:
            raise ValueError("this run has no result before its end")
        return self._result_of(self.latest.state, self.latest.step)

    @property
    def record(self) -> Mapping[str, Any]:
        """What config.json says."""
        return self.run.record if self.run else {"experiment": "online", "name": "", "seeds": [0], "learning_rates": []}

    def is_stopping(self) -> bool:
        return bool(self._signals.number)


class Stopped(NamedTuple):
    """Where a run ended, and by which signal, 0 for none."""

    state: Any
    step: int
    signal: int


def drive(
    regime: Regime,
    run: Run | None = None,
    callbacks: Sequence[Any] = (),
    result_of: Callable[[Any, int], Any] | None = None,
) -> Stopped:
    """Advance a regime to its end, or until a signal or a callback stops it.

    With a folder, rows and checkpoints are kept there, and the run goes on from the last one. An error of a callback is
    raised once a checkpoint is there.

    Args:
      regime: what is run.
      run: the run's folder, open; None to keep nothing.
      callbacks: see each row and may end the run (`frodo.runs.callbacks`).
      result_of: state, step -> the result so far, for callbacks.
    """
    watchers = as_callbacks(callbacks)
    with contextlib.ExitStack() as on_exit:
        signals = on_exit.enter_context(Signals())
        is_stuck = False
        on_exit.push(lambda *exception: regime.close(*(HANGS if is_stuck or signals.number else exception)))
        state, step = regime.init(), 0
        if run is not None:
            state, step = regime.scatter(*run.restore(regime.gather(state)), state)
        driven = Driven(run, signals, Advanced(state, step), result_of)
        driven.latest = latest = Advanced(regime.begin(state, step, driven), step)
        with run.nothing_half_written() if run else contextlib.nullcontext():
            for one in watchers:
                one.begin(driven)
                on_exit.callback(one.end)
        progress, is_ended, error = Progress(regime.total, regime.done(step), regime.unit), False, None
        while not regime.is_over(latest.state, latest.step):
            try:
                driven.is_advancing = True
                driven.latest = latest = regime.advance(latest.state, latest.step)
                driven.is_advancing = False
            except KeyboardInterrupt:
                # Of several processes the others would wait for this one.
                if not signals.number or not regime.is_whole_when_it_hangs or jax.process_count() > 1:
                    raise
                is_stuck, latest = True, latest._replace(rows=())
            rows = [driven.clock.columns() | dict(row) for row in latest.rows]
            try:
                is_ended = any([one.see(row) for row in rows for one in watchers])
            except Exception as raised:  # the caller's own, which is raised when all is saved
                error = raised
            if run is not None and rows:
                run.log(rows)
            progress.update(regime.done(latest.step), latest.text)
            is_due, is_stopped, number = devices.agree(
                run is not None and run.is_due(), is_ended or error is not None, signals.number
            )
            is_over = is_stopped or number or regime.is_over(latest.state, latest.step)
            if run is not None and (is_due or is_over):
                run.save(regime.gather(latest.state), latest.step, regime.told())
            if error is not None:
                raise error
            if is_over:
                return Stopped(latest.state, latest.step, number)
        return Stopped(latest.state, latest.step, 0)


def go_on_or_end(stopped: Stopped, run: Run | None) -> None:
    """After a signal, say how a call of the library goes on, and raise what the signal means to Python.

    Where a person types in Python, in a notebook or a shell, Ctrl-C raises nothing: the result so far is given back.
    """
    if not stopped.signal:
        return
    how = f"the same call goes on, with folder={str(run.folder)!r}" if run else "with a folder it could go on"
    note(f"stopped at step {stopped.step}: {how}")
    if stopped.signal != signal.SIGINT:
        raise SystemExit(128 + stopped.signal)
    if not (hasattr(sys, "ps1") or "ipykernel" in sys.modules):
        raise KeyboardInterrupt


def end_program(stopped: Stopped, run: Run) -> None:
    """After a signal, say how a program goes on, and end it: 128 and the signal's number is the exit code."""
    if stopped.signal:
        folder = run.options.resume_out or run.folder
        note(f"stopped at step {stopped.step}: go on with the same settings and --resume --out={folder}")
        sys.exit(128 + stopped.signal)
