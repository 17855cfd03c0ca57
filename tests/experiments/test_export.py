"""Rules in DiscoBench's form: the same targets and losses as here, and what is refused."""

import dataclasses
import importlib.util
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import export
from frodo.rules.files import make_rule
from meta.targets.proximal import PARTS
from tests.trajectories import random_trajectory

T, B, A = 5, 3, 3
CONFIG = {"GAMMA": 0.9, "GAE_LAMBDA": 0.8, "CLIP_EPS": 0.3, "ENT_COEF": 0.1, "VF_COEF": 0.4}
CONFIG |= {"NUM_STEPS": T, "NUM_UPDATES": 7}
SHARED = dict(discount=0.9, value_cost=0.4, entropy_cost=0.1, lambda_=0.8, clip=0.3)
OF_CORRECTED = dict(drift_units=5, lstm=4, life=7, parts=PARTS, largest_correction=0.7)


def discovered(name, **settings):
    """A rule with an η that is not its first one."""
    rule = make_rule(name, **SHARED | settings)
    key = jax.random.key(1)
    meta_params = jax.tree.map(
        lambda x: 0.5 * x, optax.tree.random_like(key, rule.update_rule.random_meta_params(key, A))
    )
    return dataclasses.replace(rule, meta_params=meta_params)


def module_of(folder):
    spec = importlib.util.spec_from_file_location("frodo_rule", folder / "frodo_rule.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Network:
    """The form of their network: params are logits and values of a batch of observations, which are numbers."""

    def apply(self, params, obs):
        logits, value = params
        log_pi = jax.nn.log_softmax(logits[obs])
        log_prob = lambda action: jnp.take_along_axis(log_pi, action[..., None], -1)[..., 0]
        entropy = lambda: -jnp.sum(jnp.exp(log_pi) * log_pi, -1)
        return types.SimpleNamespace(log_prob=log_prob, entropy=entropy), value[obs]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "rule",
    [
        make_rule("ppo", **SHARED),
        make_rule("dpo", **SHARED, drift_alpha=1.5),
        discovered("lpo", drift_units=5, is_temporal=True, life=7),
        discovered("corrected_ppo", **OF_CORRECTED),
        discovered("corrected_ppo", **OF_CORRECTED | {"parts": ("drift",)}),
    ],
    ids=["ppo", "dpo", "lpo", "corrected_ppo", "drift"],
)
def test_an_exported_rule_has_the_same_targets_and_losses(rule, tmp_path):
    export.export(rule, tmp_path)
    module = module_of(tmp_path)
    trajectory = random_trajectory(0, T, B, num_actions=A)
    nowhere = np.zeros((T, B), bool)  # all policies are uniform at first, so that −log μ is the entropy
    trajectory = trajectory._replace(valid=~nowhere, truncated=nowhere, behaviour_logits=np.zeros((T, B, A)))
    random = np.random.default_rng(3)
    known = {"policy": jnp.zeros((T + 1, B, A)), "value": jnp.asarray(random.normal(size=(T + 1, B)))}
    now = {"policy": jnp.asarray(random.normal(size=(T + 1, B, A))), "value": known["value"] + 0.4}
    own, eta = rule.update_rule, rule.meta_params or {}
    _, rule_state = own.apply(eta, own.init(), trajectory, known, known)  # the second trajectory of the life
    targets, _ = own.apply(eta, rule_state, trajectory, known, known)
    losses = own.loss(targets, now, trajectory)
    if own.meta_loss:
        losses += own.meta_loss(eta, targets, now, trajectory)

    timestep = np.tile(T + 1 + np.arange(T)[:, None], B)
    shown = types.SimpleNamespace(
        done=trajectory.discount == 0,
        value=known["value"][:-1],
        reward=jnp.asarray(trajectory.reward),
        action=jnp.asarray(trajectory.action),
        log_prob=jnp.full((T, B), -np.log(A)),
        info={"timestep": jnp.asarray(timestep)},
        obs=np.arange(T * B).reshape(T, B),
    )
    advantages, others = module.get_targets(shown, known["value"][-1], CONFIG)
    by_name = targets if rule.name != "corrected_ppo" and rule.name != "lpo" else targets.own
    np.testing.assert_allclose(advantages, by_name.advantage, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(others["value"], by_name.value, rtol=1e-6, atol=1e-7)
    flat = lambda x: jnp.reshape(x, (T * B, *np.shape(x)[2:]))
    one = types.SimpleNamespace(**{x: flat(getattr(shown, x)) for x in ("value", "action", "log_prob", "obs")})
    params = (flat(now["policy"][:-1]), flat(now["value"][:-1]))
    total, (_, _, entropy) = module.loss_actor_and_critic(
        params, one, flat(advantages), jax.tree.map(flat, others), Network(), CONFIG
    )
    np.testing.assert_allclose(total, np.mean(losses), rtol=1e-6)
    assert 0 < entropy < np.log(A)
    assert (tmp_path / "loss.py").read_text() == "from frodo_rule import loss_actor_and_critic  # noqa: F401\n"


@pytest.mark.parametrize(
    "rule, message",
    [
        (make_rule("impala"), "^the rule is of the kind 'impala', expected one of ppo, dpo, lpo, corrected_ppo$"),
        (make_rule("ppo", is_value_clipped=False), "^is_value_clipped of the rule is False, expected True, as in"),
        (make_rule("lpo"), "^the rule 'lpo' has no η, expected the file of a discovered one$"),
        (
            dataclasses.replace(make_rule("lpo"), meta_params={"linear": {"w": jnp.zeros((3, 2))}}),
            "^meta_params",
        ),
    ],
)
def test_what_cannot_be_exported_is_named(rule, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export.export(rule, tmp_path)
    assert not list(tmp_path.iterdir())
