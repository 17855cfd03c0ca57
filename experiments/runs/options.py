"""What a person says about one run, beside the configuration."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Which seeds, for how long, where the results lie, and what is to become of an earlier run there."""

    seeds: tuple[int, ...]
    steps: int  # environment steps of each seed
    out: str = ""  # the results folder; "" is results/<experiment>/<name>
    resume: bool = False
    overwrite: bool = False
    resume_out: str = ""  # the folder to resume, where it is not the run's own but that of several
