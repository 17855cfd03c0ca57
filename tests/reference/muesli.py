"""Muesli again, in plain NumPy loops over single steps, environments and steps ahead.

Written from section 2.4 and Eq. 1 of Bauer et al. 2023 (AdA) and the equations of Hessel et al. 2021.
"""

import numpy as np

from tests.reference import agents as reference


def h(x):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x


def inverse_h(y):
    """The number x with h(x) = y, by bisection."""
    low, high = -1e6, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if h(middle) < y else (low, middle)
    return low


def scalar(logits):
    """The number that a distribution over the bins -n … n stands for."""
    limit = len(logits) // 2
    return inverse_h(reference.probabilities(logits) @ np.arange(-limit, limit + 1))


def scalars(logits):
    return np.apply_along_axis(scalar, -1, logits)


def two_hot_loss(x, logits):
    limit = len(logits) // 2
    y = min(max(h(x), -limit), limit)
    below = min(int(np.floor(y)), limit - 1)
    log_p = np.log(reference.probabilities(logits))
    return -(below + 1 - y) * log_p[below + limit] - (y - below) * log_p[below + 1 + limit]


def kl(p, q):
    return sum(x * np.log(x / y) for x, y in zip(p, q, strict=True) if x > 0)


def cmpo(prior, advantage, clip):
    """π_CMPO of one state: probabilities of the prior, normalised advantages."""
    weights = [p * np.exp(min(max(a, -clip), clip)) for p, a in zip(prior, advantage, strict=True)]
    return np.array(weights) / sum(weights)


class Known:
    """What targets and losses are made from: values and policies of the prior, returns, the mean square error."""

    def __init__(self, trajectory, prior, gamma, lambda_, average):
        """`average` is the moving mean square of G − v before this update, biased to 0, and the bias, a product."""
        self.trajectory = trajectory
        self.pi = reference.probabilities(prior["policy"])
        self.v = scalars(prior["value_bins"])
        self.q = scalars(prior["model_reward"]) + gamma * scalars(prior["model_value"])
        rho = reference.importance_ratios(prior["policy"], trajectory)
        self.returns = reference.retrace(trajectory, self.q, np.sum(self.pi * self.q, -1), rho, gamma, lambda_)
        errors = [(self.returns[t, b] - self.v[t, b]) ** 2 for t, b in np.argwhere(trajectory.valid)]
        mean, product = average
        self.average = 0.99 * mean + 0.01 * np.mean(errors), 0.99 * product
        self.scale = np.sqrt(self.average[0] / (1 - self.average[1]) + 1e-12)

    def policy_target(self, t, b, clip):
        return cmpo(self.pi[t, b], (self.q[t, b] - self.v[t, b]) / self.scale, clip)


def loss(trajectory, known, predictions, ahead, config):
    """The loss of each valid step, 0 elsewhere: [T, B].

    `ahead` has the model's predictions after 1 to K taken actions, [T + 1, B, K, ...], and `config` the costs.
    """
    num_steps, batch_size = trajectory.action.shape
    found = np.zeros((num_steps, batch_size))
    for t, b in np.argwhere(trajectory.valid):
        action = trajectory.action[t, b]
        pi = reference.probabilities(predictions["policy"][t, b])
        mu = reference.probabilities(trajectory.behaviour_logits[t, b])
        advantage = (known.returns[t, b] - known.v[t, b]) / known.scale
        found[t, b] = -min(1, pi[action] / mu[action]) * advantage * np.log(pi[action])
        found[t, b] += config.cmpo_cost * kl(known.policy_target(t, b, config.clip), pi)
        found[t, b] += config.value_cost * two_hot_loss(known.returns[t, b], predictions["value_bins"][t, b])
        for i in range(config.model_steps):  # the model has taken the actions of the steps t … t + i
            s = t + i
            reward = two_hot_loss(trajectory.reward[s, b], ahead["model_reward"][t, b, i])
            found[t, b] += config.reward_cost * reward
            value_bins = ahead["model_value"][t, b, i]
            if trajectory.discount[s, b] == 0:  # nothing more is to come
                found[t, b] += config.value_cost * two_hot_loss(0.0, value_bins)
                break
            if trajectory.truncated[s, b] or s + 1 == num_steps or not trajectory.valid[s + 1, b]:
                break
            found[t, b] += config.value_cost * two_hot_loss(known.returns[s + 1, b], value_bins)
            policy = reference.probabilities(ahead["model_policy"][t, b, i])
            found[t, b] += config.model_policy_cost * kl(known.policy_target(s + 1, b, config.clip), policy)
    return found
