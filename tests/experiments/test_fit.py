"""How much of a hand-made target is in a rule: all where the rule is that target, less where it is another one."""

import dataclasses

import jax
import numpy as np
import pytest

import frodo
from experiments.analyses import fits as fit
from frodo.settings import presets

ENV, STEPS = "toy/catch/5x5", 2_000


def rule_that_is(target: str) -> frodo.Rule:
    """A meta-network puts out what is added to that target, and that is 0 at first."""
    config = presets.fitted(ENV).agent_only()
    config = config.replace(
        batch_size=4, unroll=8, validation_unroll=8, network=frodo.NetworkConfig("mlp", (8,)),
        rule=config.rule.replace(base=target, lstm=4),
    )  # fmt: skip
    rule = frodo.Rule("frodo", config)
    return dataclasses.replace(rule, meta_params=rule.update_rule.random_meta_params(jax.random.key(0), 3))


@pytest.mark.parametrize(("target", "is_all"), [("vtrace", True), ("n_step_return", False)])
def test_what_is_explained_on_made_up_trajectories_and_on_an_agents_own(target, is_all, monkeypatch):
    monkeypatch.setattr(fit, "OF_SCALARS", {name: fit.OF_SCALARS[name] for name in ("8 steps",)})
    monkeypatch.setattr(fit, "STAGES", 1)
    rule = rule_that_is(target)
    rows = [*fit.on_made_up("vtrace", rule), *fit.on_own("vtrace", rule, ENV, STEPS)]
    assert [row["where"] for row in rows] == [f"made up, {name}" for name in fit.OF_SCALARS] + [
        f"{ENV}, {step} steps" for step in ("0", "2,000")
    ]
    explained = np.array([float(row["explained"]) for row in rows])
    assert np.all(explained > 1 - 1e-5) if is_all else np.all(explained < 0.999) and np.all(np.isfinite(explained))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--target=vtrac"], "--target: target is 'vtrac', expected one of vtrace, lambda_return"),
        (["--rule=catch_disco"], "--rule=catch_disco: vtrace is fitted to the rule 'frodo' alone"),
        (["--target=cmpo", "--rule=catch_and_grids"], "--rule=catch_and_grids: cmpo is fitted to the rule 'disco'"),
        (["--envs=envpool/CartPole-v1"], "--envs: envpool/CartPole-v1 is none in JAX"),
        (["--steps=0"], "--steps=0: give a positive whole number"),
    ],
)
def test_a_mistake_is_answered_in_one_line(start, args, message):
    done = start("experiments.fit", *args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"error: {message}")
