"""The file of a small rule, with an η at random."""

from pathlib import Path

import jax
import numpy as np

from frodo.rules.files import Origin, Rule
from frodo.settings import presets


def save_small_rule(path: Path) -> Rule:
    """Write the rule's file, and return the rule."""
    config = presets.for_rule("", "frodo").agent_only()
    config = config.replace(rule=config.rule.replace(lstm=2))
    rule = Rule("frodo", config)
    eta = jax.tree.map(np.asarray, rule.update_rule.random_meta_params(jax.random.key(0), 2))
    rule = Rule("frodo", config, eta, Origin(("toy/catch",), 100, 1.5, "small"))
    rule.save(path)
    return rule
