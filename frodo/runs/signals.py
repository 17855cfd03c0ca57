"""Ctrl-C, SIGTERM and a closed terminal: the first one asks a run to stop soon, the second ends the process at once."""

import contextlib
import os
import signal
import threading
from typing import Any, Self

from frodo.logs import note


class Signals:
    """Notices signals inside its `with` block, if that is in the main thread; the handlers before are given back.

    Attributes:
      number: of the signal that asks the run to stop, 0 for none.
    """

    def __init__(self) -> None:
        self.number = 0
        self._on_exit = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Let a thread listen, which ends the process by the second signal even while XLA holds the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return self
        read, write_end = os.pipe()
        if hasattr(os, "set_blocking"):  # which Windows neither has nor needs
            os.set_blocking(write_end, False)

        def ask(number: int, _: Any) -> None:
            self.number = number

        def listen() -> None:
            if os.read(read, 1):
                note("stopping soon; once more stops at once, without a checkpoint")
                if number := os.read(read, 1):
                    os._exit(128 + number[0])
            os.close(read)

        self._on_exit.callback(os.close, write_end)
        self._on_exit.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(write_end, warn_on_full_buffer=False))
        numbers = [signal.SIGINT, signal.SIGTERM]
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
            numbers.append(signal.SIGHUP)
        for number in numbers:
            self._on_exit.callback(signal.signal, number, signal.signal(number, ask))
        threading.Thread(target=listen, daemon=True).start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._on_exit.close()
