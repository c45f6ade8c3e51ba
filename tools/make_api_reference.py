#!/usr/bin/env python3
"""Makes docs/api-reference.md from the comments in proto/gatehouse/v1.

    tools/make_api_reference.py            writes the page
    tools/make_api_reference.py --check    fails, naming the first line, where the page is not what the protos say

It needs protoc and the Python package protobuf, which .venv/bin/python has.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator

try:
    from google.protobuf import descriptor_pb2 as pb
except ImportError:
    sys.exit("This Python has no package protobuf: .venv/bin/python tools/make_api_reference.py")

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/api-reference.md"
PACKAGE = "gatehouse.v1"
# In the order in which a reader meets them.
FILES = ("generation", "scoring", "analysis", "models", "operations", "reports", "interventions", "common", "errors")
Field = pb.FieldDescriptorProto
# Numbers of fields in descriptor.proto, of which a comment's path is made.
MESSAGE, ENUM, SERVICE, SYNTAX = 4, 5, 6, 12
FIELD, NESTED_MESSAGE, NESTED_ENUM = 2, 3, 4
METHOD, VALUE = 2, 2

INTRODUCTION = """[← Gatehouse](../README.md)

# API reference

Made from [proto/gatehouse/v1](../proto/gatehouse/v1) by `tools/make_api_reference.py`: change the comments there. [The wire API](api.md) says
what holds for all calls: streams, limits, error reasons, health.

A field without a bound takes every value of its type; one that is left out is 0, false or empty, and *optional* marks those where that differs from
being absent. Every call can also fail with `UNAVAILABLE` (shutting down), `DEADLINE_EXCEEDED` and `CANCELLED`.
"""


def read_protos() -> dict[str, pb.FileDescriptorProto]:
    """The project's files by their name without folder and ending, with comments."""
    names = [f"{PACKAGE.replace('.', '/')}/{name}.proto" for name in FILES]
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "protos"
        subprocess.run(["protoc", f"--proto_path={ROOT / 'proto'}", "--include_source_info",
                        f"--descriptor_set_out={out}", *names], check=True)
        files = pb.FileDescriptorSet.FromString(out.read_bytes()).file
    return {pathlib.PurePath(file.name).stem: file for file in files}


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def local(name: str) -> str:
    return name.removeprefix(f".{PACKAGE}.")


class Reference:
    """One file's part of the page."""

    def __init__(self, file: pb.FileDescriptorProto) -> None:
        self.file = file
        self.comments = {tuple(place.path): place.leading_comments or place.trailing_comments
                         for place in file.source_code_info.location}

    def comment(self, *path: int) -> str:
        """The comment at a path, its paragraphs apart by an empty line."""
        lines = [line.strip() for line in self.comments.get(path, "").strip().splitlines()]
        paragraphs = re.split(r"\n\n+", "\n".join(lines))
        text = "\n\n".join(re.sub(r" {2,}", " ", paragraph.replace("\n", " ")) for paragraph in paragraphs)
        return text.replace("<", "&lt;").replace("|", "\\|")

    def cell(self, *path: int) -> str:
        return self.comment(*path).replace("\n\n", "<br>")

    def type_of(self, field: Field, message: pb.DescriptorProto) -> str:
        if field.type not in (Field.TYPE_MESSAGE, Field.TYPE_ENUM):
            return Field.Type.Name(field.type).removeprefix("TYPE_").lower()
        if not field.type_name.startswith(f".{PACKAGE}."):
            return field.type_name.lstrip(".")
        name = local(field.type_name)
        for nested in message.nested_type:
            if nested.options.map_entry and name.endswith(f".{nested.name}"):
                key, value = (self.type_of(part, nested) for part in nested.field)
                return f"map of {key} to {value}"
        return f"[{name}](#{slug(name)})"

    def field_rows(self, message: pb.DescriptorProto, path: tuple[int, ...]) -> Iterator[str]:
        for index, field in enumerate(message.field):
            kind = self.type_of(field, message)
            if field.proto3_optional:
                kind = f"optional {kind}"
            elif field.HasField("oneof_index"):
                kind = f"{kind}, one of *{message.oneof_decl[field.oneof_index].name}*"
            elif field.label == Field.LABEL_REPEATED and not kind.startswith("map"):
                kind = f"repeated {kind}"
            yield f"| {field.number} | `{field.name}` | {kind} | {self.cell(*path, FIELD, index)} |"

    def message(self, message: pb.DescriptorProto, name: str, path: tuple[int, ...]) -> Iterator[str]:
        yield f"### {name}\n"
        if about := self.comment(*path):
            yield f"{about}\n"
        if message.field:
            yield "| | field | type | |\n|---:|---|---|---|"
            yield from self.field_rows(message, path)
            yield ""
        elif not about:
            yield "No fields.\n"
        for index, nested in enumerate(message.nested_type):
            if not nested.options.map_entry:
                yield from self.message(nested, f"{name}.{nested.name}", (*path, NESTED_MESSAGE, index))
        for index, nested in enumerate(message.enum_type):
            yield from self.enum(nested, f"{name}.{nested.name}", (*path, NESTED_ENUM, index))

    def enum(self, enum: pb.EnumDescriptorProto, name: str, path: tuple[int, ...]) -> Iterator[str]:
        yield f"### {name}\n"
        if about := self.comment(*path):
            yield f"{about}\n"
        yield "| | value | |\n|---:|---|---|"
        for index, value in enumerate(enum.value):
            yield f"| {value.number} | `{value.name}` | {self.cell(*path, VALUE, index)} |"
        yield ""

    def service(self, service: pb.ServiceDescriptorProto, path: tuple[int, ...]) -> Iterator[str]:
        yield f"### {service.name}\n\n{self.comment(*path)}\n"
        for index, method in enumerate(service.method):
            request, response = (local(name) for name in (method.input_type, method.output_type))
            taken = f"{'stream of ' if method.client_streaming else ''}[{request}](#{slug(request)})"
            given = f"{'stream of ' if method.server_streaming else ''}[{response}](#{slug(response)})"
            yield f"#### {service.name}.{method.name}\n\n{taken} → {given}\n"
            if about := self.comment(*path, METHOD, index):
                yield f"{about}\n"

    def lines(self, name: str) -> Iterator[str]:
        yield f"## {name}.proto\n"
        if about := self.comment(SYNTAX):
            yield f"{about}\n"
        for index, service in enumerate(self.file.service):
            yield from self.service(service, (SERVICE, index))
        for index, message in enumerate(self.file.message_type):
            yield from self.message(message, message.name, (MESSAGE, index))
        for index, enum in enumerate(self.file.enum_type):
            yield from self.enum(enum, enum.name, (ENUM, index))


def make_page(files: dict[str, pb.FileDescriptorProto]) -> str:
    """The whole page."""
    contents = []
    for name in FILES:
        calls = [f"[{method.name}](#{slug(service.name + '.' + method.name)})"
                 for service in files[name].service for method in service.method]
        contents.append(f"- [{name}.proto](#{slug(name + '.proto')}){': ' if calls else ''}{', '.join(calls)}")
    parts = [line for name in FILES for line in Reference(files[name]).lines(name)]
    return "\n".join([INTRODUCTION, *contents, "", *parts]).rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    arguments = parser.parse_args()
    page = make_page(read_protos())
    if not arguments.check:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    there = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if there == page:
        return 0
    made, kept = page.splitlines(), there.splitlines()
    line = next((n for n, (a, b) in enumerate(zip(made, kept)) if a != b), min(len(made), len(kept)))
    print(f"{PAGE.relative_to(ROOT)}:{line + 1} is not what the protos say: run tools/make_api_reference.py",
          file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
