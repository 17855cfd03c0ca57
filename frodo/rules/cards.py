"""A rule's card: what it is, where it was found, and how agents learn by it, as numbers and as a page.

The numbers (card.json) are those of one protocol, that of `frodo card`; the page (README.md) is made of them. Cards of
others are read without trust.
"""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from frodo import files
from frodo.logs import quantity
from frodo.settings.registry import Origin

FORMAT = 1
ALL = "all"  # environments
BASELINES = {"ppo": "PPO", "impala": "IMPALA"}  # what a rule is compared with, and its label
MAX_TEXT, MARKUP = 1000, set("<>|`[]")  # characters of a text in a card, and those that none has


class Estimate(NamedTuple):
    """A number with its 95 % interval, in an environment or in `ALL`."""

    environment: str
    method: str  # "" for the rule itself
    value: float
    low: float
    high: float


class Sensitivity(NamedTuple):
    """The best score with a setting at this value, as a mean over environments, by the seeds of tuning."""

    setting: str
    value: float
    score: float


@dataclasses.dataclass(frozen=True)
class Card:
    """What is known of a rule.

    Attributes:
      name: the rule's.
      kind: its name in `RULES`.
      regime: how its η comes about, as `frodo compare` says it: "population, frozen", or "no η", say.
      num_meta_params: numbers of its η; 0 where none was given.
      sha256: digest of the rule's file, in hexadecimal; "" where there is none.
      origin: where it was discovered; None for a rule that was not.
      licence: of the file, such as "Apache-2.0"; "" where nobody said.
      version: of this package, which made the card.
      machine: on which it was made.
      command: that made it.
      budgets: environment steps of an agent in each of the suite's environments.
      num_seeds: seeds in each environment.
      cpu_seconds: of the rule's runs that are shown, without those of tuning.
      seen: environments of the card that it was discovered in.
      scores: interquartile means of normalised ones, 0 for random play and 1 for the reference, of the rule and of
        `BASELINES`.
      differences: the mean of the rule's score minus that of each of `BASELINES`, paired by seed.
      sensitivity: how the score depends on the settings of the agent.
    """

    name: str
    kind: str
    regime: str
    num_meta_params: int
    sha256: str
    origin: Origin | None
    licence: str
    version: str
    machine: str
    command: str
    budgets: tuple[int, ...]
    num_seeds: int
    cpu_seconds: float
    seen: tuple[str, ...]
    scores: tuple[Estimate, ...]
    differences: tuple[Estimate, ...]
    sensitivity: tuple[Sensitivity, ...]

    @property
    def environments(self) -> list[str]:
        """The environments of the card, without `ALL`."""
        return list(dict.fromkeys(x.environment for x in self.scores if x.environment != ALL))

    def score(self, environment: str, method: str = "") -> Estimate | None:
        """Return the score of a method in an environment; None where there is none."""
        return _found(self.scores, environment, method)

    def difference(self, environment: str, method: str) -> Estimate | None:
        """Return the score in an environment minus that of a method; None where there is none."""
        return _found(self.differences, environment, method)

    def to_json(self) -> bytes:
        """Return what `from_json` reads."""
        record = {"format": FORMAT} | {name: _by_name(x) for name, x in vars(self).items()}
        return (json.dumps(files.plain(record), indent=1) + "\n").encode()


def from_json(data: bytes, where: str) -> Card:
    """Read a card; a ValueError of one short line that names where it is, and what is wrong with it."""
    with files.refusing(f"{where} is no card of a rule"):
        record = files.parse_json(data)
        if not isinstance(record, dict) or record.pop("format", None) != FORMAT:
            raise ValueError(f"it has no format {FORMAT}")
        card = files.from_plain(Card, record)
        if not all(math.isfinite(x) for one in card.scores + card.differences for x in one[2:]):
            raise ValueError("its scores are not finite")
        for text in _texts(record):
            if len(text) > MAX_TEXT or not text.isprintable() or MARKUP & set(text):
                expected = f"one line of at most {MAX_TEXT} characters without any of {' '.join(sorted(MARKUP))}"
                raise ValueError(f"it has the text {text[:20]!r}, expected {expected}")
    return card


def leaderboard(found: Sequence[Card]) -> str:
    """Return tables of cards, environments by rules, the best over all first: one for each suite, budget and seeds."""
    tables = []
    protocol = lambda card: (tuple(card.environments), card.budgets, card.num_seeds)
    for suite, budgets, seeds in sorted({protocol(card) for card in found}, key=lambda x: (-len(x[0]), x)):
        own = [card for card in found if protocol(card) == (suite, budgets, seeds)]
        rows = [
            (card.name + " *" * bool(card.seen), {x.environment: x for x in card.scores if not x.method})
            for card in own
        ]
        for method, label in BASELINES.items():  # of the first card that has them
            of = [x for x in ([x for x in card.scores if x.method == method] for card in own) if x]
            rows += [(label, {x.environment: x for x in of[0]})] if of else []
        rows.sort(key=lambda row: -row[1][ALL].value if ALL in row[1] else math.inf)
        names = [ALL, *suite]
        lines = [f"| rule | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
        lines += [f"| {name} | {' | '.join(_interval(of.get(env)) for env in names)} |" for name, of in rows]
        steps = ", ".join(map(quantity, budgets))
        lines += ["", f"{seeds} seeds; environment steps: {steps}."]
        lines += ["A rule with a star was discovered in one of the environments."] * any(card.seen for card in own)
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def _texts(value: Any) -> list[str]:
    """Return all texts in what JSON says."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in _texts(part)]


def _by_name(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return value._asdict()
    return [_by_name(x) for x in value] if isinstance(value, tuple) else value


def to_markdown(card: Card) -> str:
    """Return the page: what a hub shows of the rule."""
    lines = ["---", f"license: {card.licence.lower() or 'unknown'}", "library_name: frodo-rl", "tags:"]
    lines += ["- frodo-rl", "- reinforcement-learning", "---", f"# {card.name}", ""]
    size = f", {card.num_meta_params:,} meta-parameters" if card.num_meta_params else ""
    lines += [f"A rule of the kind `{card.kind}` for reinforcement-learning agents{size}. Its runs: {card.regime}."]
    lines += ["", *_facts(card), "", "## Where it works", "", *_verdict(card), "", *_scores(card)]
    if card.sensitivity:
        lines += ["", "## What it is sensitive to", "", *_sensitivity(card)]
    lines += ["", "## The command", "", "```sh", card.command, "```", ""]
    return "\n".join(lines)


def _facts(card: Card) -> list[str]:
    lines = []
    if origin := card.origin:
        lines.append(f"- **Discovered in**: {', '.join(dict.fromkeys(origin.envs)) or 'environments without names'}")
        cost = [f"{quantity(origin.env_steps)} environment steps"] if origin.env_steps is not None else []
        cost += [f"{origin.cpu_seconds:,.0f} CPU seconds"] if origin.cpu_seconds is not None else []
        cost += [origin.note] if origin.note else []
        lines.append(f"- **Cost**: {', '.join(cost) or 'unknown'}")
    lines.append(f"- **Licence**: {card.licence or 'not given'}")
    if card.sha256:
        lines.append(f"- **SHA-256** of rule.npz: `{card.sha256}`")
    how = (
        f"{card.num_seeds} seeds, {card.cpu_seconds:,.0f} CPU seconds of the rule's runs without tuning, {card.machine}"
    )
    return [*lines, f"- **Measured** with frodo-rl {card.version}: {how}"]


def _verdict(card: Card) -> list[str]:
    """Say in how many environments the rule is above and below each baseline, by intervals that exclude 0."""
    lines = []
    for method, label in BASELINES.items():
        own = [x for env in card.environments if (x := card.difference(env, method))]
        above, below = sum(x.low > 0 for x in own), sum(x.high < 0 for x in own)
        if own:
            lines.append(f"- Against {label}: above in {above} of {len(own)} environments, below in {below}.")
    return lines


def _scores(card: Card) -> list[str]:
    methods = [method for method in BASELINES if any(x.method == method for x in card.scores)]
    names = [card.name, *(BASELINES[x] for x in methods), *(f"minus {BASELINES[x]}" for x in methods)]
    lines = [f"| environment | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    for env in [*card.environments, ALL]:
        cells = [_interval(card.score(env, x)) for x in ("", *methods)]
        cells += [_interval(card.difference(env, x), "+") for x in methods]
        lines.append(f"| {env}{' *' * (env in card.seen)} | {' | '.join(cells)} |")
    lines += [
        "",
        "Scores of the last fifth of a run, where 0 is random play and 1 the reference: interquartile means with",
    ]
    lines += ["95 % bootstrap intervals over seeds. Differences are means of pairs by seed, with Student-t intervals."]
    return [*lines, *(["The rule was discovered in environments with a star."] if card.seen else [])]


def _sensitivity(card: Card) -> list[str]:
    lines = ["| setting of the agent | mean score by value |", "|---|---|"]
    for setting in dict.fromkeys(x.setting for x in card.sensitivity):
        cells = [f"{x.value:g}: {x.score:.2f}" for x in card.sensitivity if x.setting == setting]
        lines.append(f"| {setting} | {', '.join(cells)} |")
    return [*lines, "", "The other settings are then the best ones. Seeds are those of tuning."]


def _interval(x: Estimate | None, sign: str = "") -> str:
    return f"{x.value:{sign}.2f} [{x.low:{sign}.2f}, {x.high:{sign}.2f}]" if x else ""


def _found(estimates: Sequence[Estimate], environment: str, method: str) -> Estimate | None:
    return next((x for x in estimates if (x.environment, x.method) == (environment, method)), None)
