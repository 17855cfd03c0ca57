"""How well η can be fitted to a hand-made target: python -m experiments.fit --target=vtrace --envs=toy/catch

    python -m experiments.fit --target=cmpo --rule=results/discover/disco/rule.npz

Prints what part of the change that the target asks for the fitted one explains
(`meta.targets.fitting.variance_explained`; of CMPO's policy, `meta.targets.policy_fitting.agreement`): on made-up
trajectories, on and off policy, at other lengths, discounts and numbers of actions than those that it was fitted with;
and on an agent's own trajectories, which learns by the fitted targets, at the start and after each third of --steps. Of
policies, also how far π̂ is from the policy in units of CMPO's distance, the cosine between the two changes, and CMPO's
distance in nats. With --rule it is a discovered rule that is measured, not the fitted one: what of the hand-made target
is in it.
"""

from absl import flags

import frodo
from agents.environments.names import is_pure
from agents.validation import check_choice
from experiments.analyses import fits
from experiments.runs import settings
from experiments.runs.command_line import no_arguments, parse_steps, start
from frodo.logs import table
from frodo.rules.fitted import check_target
from frodo.runs.errors import UsageError, caused_by
from frodo.settings.registry import starts


def main(argv: list[str]) -> None:
    FLAGS = flags.FLAGS
    no_arguments(argv)
    envs = settings.parse_envs(FLAGS.envs)
    if others := [env for env in envs if not is_pure(env)]:
        raise UsageError(f"--envs: {others[0]} is none in JAX: give those of toy/, gymnax/ or navix/")
    num_steps, target = parse_steps(FLAGS.steps), FLAGS.target
    with caused_by("--target"):
        check_choice("target", target, starts(is_fitted=True))
    with caused_by(f"--rule={FLAGS.rule}" if FLAGS.rule else "--target"):
        rule = frodo.load_rule(FLAGS.rule) if FLAGS.rule else frodo.fit_rule(target)
        check_target(target, rule.config.rule)
    rows = [*fits.on_made_up(target, rule), *(row for env in envs for row in fits.on_own(target, rule, env, num_steps))]
    print(table([{name: x if name == "where" else f"{float(x):.3g}" for name, x in row.items()} for row in rows]))


if __name__ == "__main__":
    flags.DEFINE_string("target", "vtrace", f"One of {', '.join(starts(is_fitted=True))}.")
    flags.DEFINE_string("rule", "", "Measure this rule in place of the fitted one: a discovered one's name or file.")
    flags.DEFINE_string("envs", "toy/catch,toy/grid_world/48,gymnax/CartPole-v1", "Environments in JAX.")
    flags.DEFINE_string("steps", "2e5", "Environment steps in each.")
    start(main)
