"""Package definition; lower bounds are tested, and the exact versions of development stand in constraints.txt."""

from setuptools import find_packages, setup

LAYERS = ("toy_envs", "agents", "meta", "frodo", "experiments")

setup(
    name="frodo-rl",
    version="0.2.0",
    description="Agents that discover their own reinforcement-learning objective",
    long_description=open("README.md", encoding="utf-8").read(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=[pattern for name in LAYERS for pattern in (name, f"{name}.*")]),
    package_data={
        "agents.environments": ["atari57_scores.csv"],
        "frodo": ["data/*.npz", "data/*.md", "py.typed"],
        **{name: ["py.typed"] for name in ("toy_envs", "agents", "meta")},
    },
    entry_points={"console_scripts": ["frodo = experiments.command:main"]},
    install_requires=[
        "absl-py>=2.3.1",
        "bsuite>=0.3.6",
        "chex>=0.1.90",
        "dm-env>=1.6",
        "dm-haiku>=0.0.16",
        "docstring_parser>=0.15",
        "envpool>=1.2.5; sys_platform == 'linux'",
        "gymnasium>=1.1",
        "jax>=0.8",
        "matplotlib>=3.9",
        "numpy>=2.0",
        "optax>=0.2.6",
        "pandas>=2.2.2",
        "psutil>=5.9.5",
        "rlax>=0.1.8",
        "scipy>=1.14",
    ],
    extras_require={
        "cluster": ["distributed>=2024.8"],
        "compare": ["pandas>=2.2.2,<3", "rliable>=1.2"],
        "dev": [
            "frodo-rl[cluster,compare,gymnax,navix,tensorboard,wandb,xminigrid]",
            "ipykernel>=7",
            "mypy>=1.15",
            "nbclient>=0.10",
            "pytest>=8",
            "pytest-timeout>=2.3.1",
            "pytest-xdist>=3.6.1",
            "ruff>=0.9",
        ],
        "docs": ["mkdocs>=1.6.1,<2", "mkdocs-jupyter>=0.26.3", "mkdocs-material>=9.8.2,<10", "mkdocstrings[python]>=1.0.8"],
        "gymnax": ["gymnax>=1.0.1"],
        "navix": ["navix>=0.7.4"],
        "tensorboard": ["tensorboardX>=2.6"],
        "wandb": ["wandb>=0.19.10"],
        "xminigrid": ["xminigrid>=0.9.3"],
        "cuda": ["jax[cuda13]>=0.8"],
        "tpu": ["jax[tpu]>=0.8"],
    },
)
