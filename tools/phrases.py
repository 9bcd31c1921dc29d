"""Find phrases that need reading twice: `tools/phrases.py [PATH...]`; without paths, in all files but the tests.

Prose is documents, Markdown cells, docstrings, comments and strings. Each phrase has the plain words to write instead.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = (".md", ".ipynb", ".py", ".ts", ".tsx")
NOT_READ = ("tests/", "js/tests/", "tools/phrases.py")
PLAIN = {
    r"(?<!each\x20)(?<!some\x20)(?<!most\x20)of which|of whom|whose \w+ of each": "two sentences, or name the noun",
    r"the way on\b": "what to do next",
    r"(?:lay|laid|lays) together": "merge",
    r"at hand": "available",
    r"(?:set|sets|setting) aside": "exclude",
    r"comes? to(?! (?:rest|an end|mind))": "give, equal or result in",
    r"one after the other": "in turn, or concatenated",
    r"of (?:one's|one’s) own|one's own": "custom, your own",
    r"by (?:itself|themselves)": "alone, or automatically",
    r"(?:is|are|was|were) (?:told|said)(?! to)": "report, name",
    r"as far as (?:it|they) (?:is|are)": "if",
    r"own positions|grown keys|process part": "padding removed, KV-cache growth, shard",
    r"empty rows?": "fully masked row",
    r"(?<!there\s)(?:is|are) (?:no|(?-i:none))(?! (?:\w+er|more|one|such)\b)(?= [a-z]|[.,])": "is not a",
    r", for (?:it|they|he|she|there|these|those|no) \w+": "because",
    r"what (?:it|they) (?:is|are) of": "name the noun",
    r"goes? another way": "name the difference",
    r"by and by|is written over|below it stands": "say it plainly",
    r"colour|grey|behaviour|centre|recognise": "American spelling",
}
GAP = r"\s+(?:[*] )?"  # between words, also where a comment goes on in the next line
PHRASES = re.compile("|".join(rf"(\b(?:{one.replace(' ', GAP)})\b)" for one in PLAIN), re.IGNORECASE)
TYPESCRIPT = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`", re.S)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the pieces of prose in a file with the number of their first line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING) or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
                yield token.start[0], token.string
    elif path.suffix in (".ts", ".tsx"):
        for found in TYPESCRIPT.finditer(text):
            yield text.count("\n", 0, found.start()) + 1, found.group()
    elif path.suffix == ".ipynb":
        for number, cell in enumerate(json.loads(text)["cells"], 1):
            yield number, "".join(cell["source"])
    else:
        yield 1, text


def found_in(path: Path) -> Iterator[str]:
    """Yield a line for each phrase in a file: where it is, and the plain words."""
    for first, text in prose(path):
        for match in PHRASES.finditer(text):
            line = first + text.count("\n", 0, match.start())
            plain = list(PLAIN.values())[(match.lastindex or 1) - 1]
            yield f"{path.relative_to(ROOT)}:{line}: {match.group()!r}: write {plain}"


def main(names: list[str]) -> int:
    """Print the phrases found; return the exit status."""
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split()
    listed = names or [name for name in tracked if not name.startswith(NOT_READ)]
    paths = [ROOT / name for name in listed if name.endswith(KINDS)]
    lines = [line for path in paths if path.is_file() for line in found_in(path)]
    print(*lines, sep="\n", end="\n" if lines else "")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
