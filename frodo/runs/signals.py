"""Ctrl-C, SIGTERM and a closed terminal: the first one asks a run to stop soon, the second ends the process at once."""

import contextlib
import os
import signal
import stat
import threading
from typing import Any, Self

from frodo.logs import note

HANG_UP = getattr(signal, "SIGHUP", 0)  # which Windows does not have


def _leave_terminal() -> None:
    """Let what is printed go nowhere where the terminal is gone: the error of a print would end the run."""
    for number in (1, 2):
        if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)


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
            if number := os.read(read, 1):
                if number[0] == HANG_UP:
                    _leave_terminal()
                note("stopping soon; once more stops at once, without a checkpoint")
                while number := os.read(read, 1):
                    if number[0] != HANG_UP:  # which may come from the shell and from the kernel
                        os._exit(128 + number[0])
            os.close(read)

        self._on_exit.callback(os.close, write_end)
        self._on_exit.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(write_end, warn_on_full_buffer=False))
        numbers: list[int] = [signal.SIGINT, signal.SIGTERM]
        if HANG_UP and signal.getsignal(HANG_UP) != signal.SIG_IGN:  # as it is under nohup
            numbers.append(HANG_UP)
        for number in numbers:
            self._on_exit.callback(signal.signal, number, signal.signal(number, ask))
        threading.Thread(target=listen, daemon=True).start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._on_exit.close()
