"""Options of a run, beside its configuration."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Seeds, length and folder of a run, and what becomes of an earlier run there."""

    seeds: tuple[int, ...]
    steps: int  # environment steps of each seed
    out: str = ""  # the results folder; "" is results/<experiment>/<name>
    resume: bool = False
    overwrite: bool = False
    learning_rates: tuple[float, ...] = ()  # each seed lives once with each, in one program; () for the settings' own
    num_devices: int = 0  # over which each life in a pure environment is split; 0 where whole lives are shared out
    log_to: tuple[str, ...] = ()  # beside metrics.csv: `callbacks.WATCHERS`
    resume_out: str = ""  # the folder to resume, where it is not the run's own but that of several
    # Of a call of the library the argument that says how long: what the folder holds goes on, and no flags are named.
    call: str = ""
