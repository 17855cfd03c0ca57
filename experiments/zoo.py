"""Rules that others have found: list, show or pull them, check one before it is handed in, or print a leaderboard.

    frodo zoo list
    frodo zoo show catch_and_grids
    frodo zoo pull owner/name
    frodo zoo check FOLDER
    frodo zoo board FOLDER

A rule is a folder with rule.npz, card.json and README.md, as `frodo card` writes it. The zoo is Hugging Face's hub,
where such a folder is a model with the tag frodo-rl, or the folder that the environment variable FRODO_ZOO names, which
has rules as owner/name/. Once a rule is pulled, every program takes it as --rule=hub:owner/name, and
frodo.load_rule("hub:owner/name") loads it. `board` prints the leaderboard of the cards in a folder, as Markdown.
"""

from pathlib import Path

import jax

from experiments.runs import command_line
from frodo.logs import table
from frodo.rules import cards, zoo
from frodo.rules.files import load_rule, shipped_rules
from frodo.runs.errors import UsageError, caused_by

ACTIONS = {
    "list": None,
    "show": "the name of a rule",
    "pull": "the name of a rule, owner/name",
    "check": "a folder",
    "board": "a folder",
}


def check(folder: Path) -> cards.Card:
    """Return the card of a rule that is ready to be handed in; a UsageError says what is missing."""
    with caused_by("check"):
        card, _ = zoo.read(folder.name, zoo.Folder(folder.parent))
        rule = load_rule(folder / zoo.RULE)
        if (kind := rule.config.rule.name) != card.kind:
            raise UsageError(f"the kind of {zoo.RULE} is {kind!r}, expected {card.kind!r}, as in {zoo.CARD}")
        size = sum(x.size for x in jax.tree.leaves(rule.meta_params))
        if (size, rule.origin) != (card.num_meta_params, card.origin):
            found = f"{size} meta-parameters and the origin {rule.origin}"
            raise UsageError(f"{zoo.RULE} has {found}, which is not what {zoo.CARD} says: frodo card writes both")
        if not card.licence:
            raise UsageError(f"{zoo.CARD} names no licence: frodo card --licence=Apache-2.0, say, writes one")
        if (folder / zoo.PAGE).read_text(encoding="utf-8") != cards.to_markdown(card):
            raise UsageError(f"{zoo.PAGE} is not what {zoo.CARD} says: frodo card writes both")
    return card


def main(argv: list[str]) -> None:
    action, *names = argv[1:] or [""]
    if action not in ACTIONS:
        raise UsageError(f"{action!r} is no action: give one of {', '.join(ACTIONS)}")
    expected = ACTIONS[action]
    if len(names) != bool(expected):
        raise UsageError(f"frodo zoo {action} takes {expected or 'nothing'}, not {' '.join(names) or 'nothing'}")
    if action == "list":
        print(table([{"in the package": name} for name in shipped_rules()]), flush=True)
        names = zoo.hub().names()
        print(f"\n{table([{'in the zoo': f'{zoo.PREFIX}{name}'} for name in names]) or 'none in the zoo'}")
    elif action == "show":
        print(load_rule(names[0]).describe() if names[0] in shipped_rules() else zoo.page(names[0]))
    elif action == "pull":
        print(f"{zoo.pull(names[0])}: use it as --rule={zoo.PREFIX}{names[0].removeprefix(zoo.PREFIX)}")
    elif action == "board":
        paths = sorted(x for depth in ("*", "*/*") for x in Path(names[0]).glob(f"{depth}/{zoo.CARD}"))
        if not paths:
            raise UsageError(f"{names[0]} has no cards, expected */{zoo.CARD} or */*/{zoo.CARD} in it")
        print(cards.leaderboard([zoo.card_of(path.parent) for path in paths]))
    else:
        card = check(Path(names[0]))
        print(f"{names[0]}: {card.name} is ready, a rule of the kind {card.kind!r} with {len(card.scores)} scores")


if __name__ == "__main__":
    command_line.start(main)
