"""Reads what tests check of the documentation: links, anchors, code blocks and tables of Markdown pages."""

import pathlib
import re
import shlex
from collections.abc import Iterator

LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")


class Page:
    """One Markdown file."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        fenced = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
        self.blocks = [(match[1], match[2]) for match in fenced.finditer(self.text)]
        self.prose = fenced.sub("", self.text)

    def links(self) -> Iterator[str]:
        """Targets of links and pictures, outside of code."""
        yield from LINK.findall(re.sub(r"`[^`\n]*`", "`code`", self.prose))

    def anchors(self) -> set[str]:
        """What a link can point to: headings, as GitHub names them, and ids."""
        found = set(re.findall(r'<a id="([^"]+)"', self.prose))
        for heading in re.findall(r"^#+ +(.+?) *$", self.prose, re.MULTILINE):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"<[^>]*>", "", heading)).lower()
            slug = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
            number = next(n for n in range(len(found) + 1) if (f"{slug}-{n}" if n else slug) not in found)
            found.add(f"{slug}-{number}" if number else slug)
        return found

    def code_words(self) -> Iterator[str]:
        """What stands in backticks in the prose."""
        yield from re.findall(r"`([^`\n]+)`", self.prose)

    def table_rows(self) -> Iterator[list[str]]:
        """Cells of each row of each table."""
        for line in self.prose.splitlines():
            if line.startswith("|") and not set(line) <= set("|-: "):
                yield [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]

    def commands(self) -> Iterator[list[str]]:
        """The words of each shell command in a code block that names no other language, or in backticks."""
        for words in self.code_words():
            if re.match(r"(gatehouse(-server)?|tools/\S+)( |$)", words):
                yield from split_commands(words.replace("\"", "").split())
        for language, block in self.blocks:
            if language not in ("", "sh", "bash", "console", "shell"):
                continue
            for line in block.replace("\\\n", " ").splitlines():
                try:
                    words = shlex.split(line.removeprefix("$ "), comments=True)
                except ValueError:
                    continue
                yield from split_commands(words)


def split_commands(words: list[str]) -> Iterator[list[str]]:
    """The commands of one line, without settings of variables before them and redirections behind."""
    command: list[str] = []
    for word in [*words, ";"]:
        if word in ("|", "&&", "||", ";", "&"):
            while command and re.fullmatch(r"\w+=.*", command[0]):
                command.pop(0)
            if command:
                yield command
            command = []
        elif word.endswith(";"):
            command.append(word[:-1])
            yield command
            command = []
        elif not re.match(r"\d?[<>]", word):
            command.append(word)
