"""Environments on the host, each adapter in its own file, and how environments get their names.

- `host.py`: `HostEnvironment`, which every adapter is: a batch of environments on the host.
- `envpool.py`, `dm_env.py`, `gymnasium.py`: the adapters, each for the library of that name.
- `bsuite.py`: bsuite's environments, which speak `dm_env`.
- `adapt.py`: `as_environment`, from a name or what a user of these libraries has to the adapter for it.
- `names.py`: `make_environment`, from a name to an environment.
- `atari57.py`, `atari57_scores.csv`: the games of Atari-57, their names and scores.

Importing these modules imports neither envpool nor bsuite nor gymnasium: each is imported where it is first used.
"""
