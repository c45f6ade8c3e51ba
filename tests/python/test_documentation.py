"""What the documentation says is what the programs, protos and rules say."""

import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import markdown
import service

ROOT = service.SOURCE
sys.path.insert(0, str(ROOT / "tools"))

PAGES = sorted({ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md"),
                *ROOT.glob("docker/**/*.md"), *ROOT.glob("client/python/*.md"), *ROOT.glob("models/*/README.md")})
FOLDERS = ("client", "cmake", "deploy", "docker", "docs", "models", "proto", "server", "tests", "tools")
# Their defaults are this machine's.
OF_THE_MACHINE = {"--state-dir", "--replica"}


def page(path: str) -> markdown.Page:
    return markdown.Page(ROOT / path)


def name(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def help_of(*command: str) -> str:
    """What a program says of itself."""
    run = subprocess.run([service.BIN / command[0], *command[1:], "--help"], capture_output=True, text=True, timeout=60,
                         env={**os.environ, "COLUMNS": "400"})
    assert run.returncode == 0, f"{' '.join(command)} --help: {run.stderr}"
    return run.stdout


@functools.cache
def flags_of(*command: str) -> frozenset[str]:
    """Its flags, short and long."""
    return frozenset(flag for line in re.findall(r"^  +(-\S+)", help_of(*command), re.MULTILINE)
                     for flag in re.findall(r"(?<![\w-])--?[a-z][\w-]*", line.split("=")[0]))


@functools.cache
def subcommands_of(*command: str) -> tuple[str, ...]:
    """The words that may follow it."""
    listed = re.search(r"^\s*Subcommands:\n((?:  +\S.*\n)+)", help_of(*command), re.MULTILINE)
    return tuple(re.findall(r"^  (\S+)", listed[1], re.MULTILINE)) if listed else ()


def all_commands(*command: str) -> list[tuple[str, ...]]:
    """A command and everything under it."""
    under = [found for word in subcommands_of(*command) for found in all_commands(*command, word)]
    return [command, *under]


# --- The protos ---


@pytest.fixture(scope="module")
def reference():
    """The generator of docs/api-reference.md."""
    pytest.importorskip("google.protobuf.descriptor_pb2", reason="no Python package protobuf")
    if not shutil.which("protoc"):
        pytest.skip("no protoc")
    import make_api_reference
    return make_api_reference


def test_api_reference_is_what_the_protos_say(reference):
    made = reference.make_page(reference.read_protos())
    assert reference.PAGE.read_text(encoding="utf-8") == made, "run tools/make_api_reference.py"


def test_every_call_names_its_errors_and_every_message_and_bound_is_told(reference):
    silent = []
    for stem, file in reference.read_protos().items():
        comments = reference.Reference(file)
        for i, called in enumerate(file.service):
            for j, method in enumerate(called.method):
                if "Errors" not in comments.comment(6, i) + comments.comment(6, i, 2, j):
                    silent.append(f"{stem}: {called.name}.{method.name} names no errors")
        for i, message in enumerate(file.message_type):
            if not comments.comment(4, i) and not message.name.endswith(("Request", "Response")):
                silent.append(f"{stem}: {message.name} has no comment")
            silent += [f"{stem}: {message.name}.{field.name}, optional, has no comment"
                       for j, field in enumerate(message.field)
                       if field.proto3_optional and not comments.comment(4, i, 2, j)]
    assert not silent


# --- The programs ---


def test_configuration_lists_every_flag_of_the_server_with_its_default():
    told = {}
    for line in re.findall(r"^  +(-.*)$", help_of("gatehouse-server"), re.MULTILINE):
        flag, _, value = re.split(r"\s{2,}", line)[0].partition(" ")
        told[flag] = "" if value.endswith("...") else value.rpartition("=")[2] if "=" in value else ""
    told = {flag: value for flag, value in told.items() if flag not in ("-h,--help", "--version")}
    written = {row[0].strip("`").split(" ")[0]: row[1].strip("`")
               for row in page("docs/configuration.md").table_rows() if row[0].startswith("`--")}
    assert set(written) == set(told)
    for flag, value in told.items():
        if flag not in OF_THE_MACHINE and value:
            assert written[flag] == value, flag


def test_client_page_mentions_every_command_and_flag():
    text = page("docs/client.md").text
    missing = []
    for command in all_commands("gatehouse"):
        if not re.search(rf"(?<![\w-]){re.escape(command[-1])}(?![\w-])", text):
            missing.append(" ".join(command))
        missing += [f"{' '.join(command)} {flag}" for flag in flags_of(*command)
                    if flag.startswith("--") and not re.search(rf"{flag}(?![\w-])", text)]
    assert not missing


def wrong_in(words: list[str]) -> str:
    """What is wrong with a command line, as far as --help knows; empty where nothing is."""
    program = pathlib.PurePath(words[0])
    if program.parts[0] == "tools":
        path = ROOT / program
        return "" if os.access(path, os.X_OK) or path.suffix in (".py", ".sh") and path.exists() else "no such tool"
    if program.name not in ("gatehouse", "gatehouse-server") or program.parent.name not in ("", "bin"):
        return ""
    command = [program.name]
    known = set(flags_of(*command))
    for word in words[1:]:
        if word.startswith("-") and len(word) > 1 and not word[1].isdigit():
            continue
        if word in subcommands_of(*command):
            command.append(word)
            known |= flags_of(*command)
        elif subcommands_of(*command) and "Positionals:" not in help_of(*command):
            if not previous_takes_value(words, word, known):
                return f"no sub-command {word}"
    unknown = [word for word in words[1:] if re.match(r"--?[a-z]", word) and word.split("=")[0] not in known]
    return f"no flag {', '.join(unknown)}" if unknown else ""


def previous_takes_value(words: list[str], word: str, known: set[str]) -> bool:
    before = words[words.index(word) - 1]
    return before in known and "=" not in before


@pytest.mark.parametrize("path", [path for path in PAGES if path.name != "CHANGELOG.md"], ids=name)
def test_commands_and_their_flags_exist(path):
    wrong = {" ".join(words): why for words in markdown.Page(path).commands() if (why := wrong_in(words))}
    assert not wrong


def test_what_the_readme_shows_of_the_smaller_model_works(server, tmp_path):
    (tmp_path / "book.txt").write_text((ROOT / "tests/data/corpus/treasure_island.txt").read_text()[:4000])
    commands = [words for words in page("README.md").commands() if words[0] == "gatehouse" and "novella-neox-4m" in words]
    assert len(commands) >= 5
    for words in commands:
        run = service.gatehouse(*words[1:], server=server.address, cwd=tmp_path)
        assert run.returncode == 0, f"{' '.join(words)}: {run.stderr}"
    assert (tmp_path / "gatehouse-report.html").stat().st_size > 10_000


def test_figures_of_the_readme_are_those_of_the_pages_they_come_from():
    section = re.search(r"^## What it costs and saves\n(.*?)^## ", page("README.md").text, re.MULTILINE | re.DOTALL)[1]
    figures = set(re.findall(r"[+-]?\d+\.\d+(?: %)?", section))
    sources = page("docs/performance.md").text + page("docs/frontier.md").text
    assert len(figures) > 10
    assert not {figure for figure in figures if figure not in sources}


# --- The pages among each other ---


@functools.cache
def anchors_of(path: pathlib.Path) -> set[str]:
    return markdown.Page(path).anchors()


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_and_anchors_resolve(path):
    broken = []
    for link in markdown.Page(path).links():
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        there = (path.parent / target).resolve() if target else path
        if not there.exists() or anchor and there.suffix == ".md" and anchor not in anchors_of(there):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("path", [path for path in PAGES if name(path).startswith(("docs/", "deploy/"))], ids=name)
def test_a_page_leads_back_to_the_readme(path):
    assert os.path.relpath(ROOT / "README.md", path.parent) in markdown.Page(path).links()


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_files_that_are_named_exist(path):
    words = {word for word in markdown.Page(path).code_words()
             if re.fullmatch(rf"({'|'.join(FOLDERS)})/[\w./-]*[\w/]", word)}
    # A page of a folder may name its files from there; a library's files go by their name without ending.
    missing = [word for word in sorted(words)
               if not any((base / word).exists() or list((base / word).parent.glob(pathlib.PurePath(word).name + ".*"))
                          for base in (ROOT, ROOT / "server", path.parent))]
    assert not missing


# --- The alerts ---


def test_every_alert_has_its_section_of_what_to_do():
    rules = sorted(ROOT.glob("deploy/prometheus/rules/*.y*ml"))
    if not rules:
        pytest.skip("no deploy/prometheus/rules")
    text = "".join(path.read_text(encoding="utf-8") for path in rules)
    alerts = {f"alert-{alert.lower()}" for alert in re.findall(r"^\s*-\s+alert:\s*(\w+)", text, re.MULTILINE)}
    sections = {anchor for anchor in page("docs/operations.md").anchors() if anchor.startswith("alert-")}
    assert alerts and sections == alerts
    named = set(re.findall(r"operations\.md#(alert-[\w-]+)", text))
    assert named <= alerts
