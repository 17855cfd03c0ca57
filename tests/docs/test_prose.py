"""The prose of README, site and packages: words that docs/style.md refuses, the length of sentences and of pages.

Vale does the same, but its packages download a program when they are first called. So this is a test, which needs
nothing; its words are in words.txt.
"""

import io
import json
import math
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_structure import LAYERS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDERS = ("start", "tutorials", "how_to", "concepts", "papers", "reference", "results")
LONGEST = 30  # words of a sentence, as the 95th percentile of a page
MANUAL = ("start", "how_to", "concepts")


def pages() -> list[Path]:
    """Return README and the pages of the site."""
    found = [DOCS / "index.md", DOCS / "style.md"]
    for folder in FOLDERS:
        found += sorted([*(DOCS / folder).rglob("*.md"), *(DOCS / folder).rglob("*.ipynb")])
    return [ROOT / "README.md", *(path for path in found if path.exists())]


def refused() -> Iterator[tuple[re.Pattern[str], str]]:
    """Return the words of words.txt, each with what to write in its place."""
    for line in (Path(__file__).parent / "words.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            pattern, instead = line.split("\t")
            yield re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE), instead


def source(path: Path) -> str:
    """Return the Markdown of a page; of a notebook that of its cells of text."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = [cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
    return "\n\n".join("".join(cell) for cell in cells)


def prose(text: str) -> str:
    """Return a page without code, formulas, comments and the targets of links; a piece of code counts as one word."""
    text = re.sub(r"^---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"^([ >]*)(```+|~~~+).*?^\1?[ >]*\2[ \t]*$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    text = re.sub(r"(?<![\w$])\$[^$\n]+\$", "formula", text)
    text = re.sub(r"(`+)[^`].*?\1", "code", text, flags=re.DOTALL)
    text = re.sub(r"!\[([^\]]*)\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"</?[A-Za-z][^>\n]*>", "", text)
    return re.sub(r"https?://\S+", "link", text)


def said(code: str) -> str:
    """Return the comments and texts of a module where they stand, and spaces in place of all else.

    Flags, arguments, what is between backticks or braces, and texts of one word are names, not prose.
    """
    lines, found = code.splitlines(), [" " * len(line) for line in code.splitlines()]
    middle = getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)  # of an f-string, since Python 3.12
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT or (token.type in (tokenize.STRING, middle) and " " in token.string):
            (first, start), (last, end) = token.start, token.end
            for row in range(first - 1, last):
                left, right = start * (row == first - 1), end if row == last - 1 else len(lines[row])
                found[row] = found[row][:left] + lines[row][left:right] + found[row][right:]
    named = re.sub(
        r"(?m)^ +\w+: |--\w+|`[^`]*`|\{[^{}\n]*\}", lambda match: re.sub(r"\S", "_", match[0]), "\n".join(found)
    )
    return re.sub(r"[#\"]", " ", named)


def sentences(text: str) -> list[str]:
    """Return the sentences of a page's prose; headings, tables and admonitions' titles are none."""
    paragraphs: list[list[str]] = [[]]
    for line in prose(text).splitlines():
        line = re.sub(r"^[\s>]*", "", line)
        begins = re.match(r"([-*+]|\d+[.)]|[^:\s]+:(?= {3}))\s+", line)
        if not line or begins or line.startswith(("#", "|", "!!!", "???", "===", "---", ":::")):
            paragraphs.append([])
        if not line.startswith(("#", "|", "!!!", "???", "===", "---", ":::")):
            paragraphs[-1].append(line[begins.end() :] if begins else line)
    found = []
    for paragraph in (" ".join(lines).strip() for lines in paragraphs):
        paragraph = re.sub(r"\b(al|vs|cf|Fig|Figs|Eq|Eqs|No|e\.g|i\.e|s\.d|approx|resp)\.", r"\1", paragraph)
        found += [one for one in re.split(r"(?<=[.!?])[\"'”’*_)]*\s+", paragraph) if re.search(r"\w", one)]
    return found


def num_words(text: str) -> int:
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def percentile(lengths: list[int], share: float) -> int:
    """Return the smallest length that at least this share of the lengths does not exceed."""
    return sorted(lengths)[math.ceil(share * len(lengths)) - 1]


name = lambda path: path.relative_to(ROOT).as_posix()


def test_what_is_counted_is_prose():
    page = "# Title lives\n\nOne `two three` [four](five.md). Six (Xu et al. 2020) seven!\n\n"
    page += "```sh\nbeside\n```\n\n- Item one\n- Item\n  two\n\n| a | table |\n"
    found = sentences(page)
    assert found == ["One code four.", "Six (Xu et al 2020) seven!", "Item one", "Item two"]
    assert [num_words(one) for one in found] == [3, 6, 2, 2]
    assert percentile([*range(1, 21)], 0.95) == 19 and percentile([7], 0.95) == 7


@pytest.mark.parametrize(
    "text", ["It lives here.", "A, beside B.", "η at its start", "a rule of one's own", "they cannot be told apart"]
)
def test_words_of_the_list_are_found(text):
    assert any(pattern.search(text) for pattern, _ in refused())


@pytest.mark.parametrize("path", pages(), ids=name)
def test_a_page_uses_the_words_of_the_field(path):
    text = prose(source(path))
    wrong = [f"{found[0]!r}: {instead}" for pattern, instead in refused() for found in pattern.finditer(text)]
    assert not wrong, f"{name(path)}: " + "; ".join(wrong)


def test_what_a_module_says_is_where_it_stands():
    code = 'lives = f(  # it is a rule of one\'s\n  # own\n  "beside", f"a {lives} `lives` --beside",\n  "It is "\n'
    code += '  "had x.")\n"""One.\n\n  Args:\n    lives: many.\n"""\n'
    text = said(code)
    found = [(text.count("\n", 0, x.start()) + 1, x[0]) for one, _ in refused() for x in one.finditer(text)]
    assert [(line, re.sub(r"\s+", " ", words)) for line, words in found] == [(1, "of one's own"), (4, "is had")]


@pytest.mark.parametrize("package", [*LAYERS, "examples"])
def test_a_package_uses_the_words_of_the_field(package):
    wrong = []
    for path in sorted((ROOT / package).rglob("*.py")):
        text = said(path.read_text(encoding="utf-8"))
        for pattern, instead in refused():
            lines = [(text.count("\n", 0, found.start()) + 1, found[0]) for found in pattern.finditer(text)]
            wrong += [f"{name(path)}:{line}: {words!r}: {instead}" for line, words in lines]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", pages(), ids=name)
def test_sentences_of_a_page_are_short(path):
    found = sorted(sentences(source(path)), key=num_words, reverse=True)
    if found:
        length = percentile([num_words(one) for one in found], 0.95)
        long = "\n".join(f"{num_words(one)}: {one}" for one in found if num_words(one) > LONGEST)
        assert length <= LONGEST, f"{name(path)}: 95 % of the sentences have up to {length} words\n{long}"


def words_of(folder: str) -> dict[str, int]:
    """Return the words of each page in a folder, all that is in the file."""
    return {path.name: len(source(path).split()) for path in sorted((DOCS / folder).glob("*.md"))}


def test_the_readme_is_short():
    assert len(source(ROOT / "README.md").split()) <= 700


def test_pages_to_start_with_are_short():
    assert {page: words for page, words in words_of("start").items() if words > 600} == {}


def test_the_manual_is_short():
    assert sum(sum(words_of(folder).values()) for folder in MANUAL) <= 9000
