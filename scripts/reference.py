"""Pages that are made of the code: commands, exit codes, variables, the Python API; manual pages.

A hook of mkdocs (see mkdocs.yml): the pages of the site are never written to disk, so none can be
stale. Manual pages are written by scripts/build:

    scripts/reference.py --man FOLDER
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import click  # noqa: E402
import schemas  # noqa: E402

import dispatcher  # noqa: E402
from dispatcher.cli import COMMANDS  # noqa: E402
from dispatcher.cli.entry import load_command, shown_name  # noqa: E402
from dispatcher.cli.help import PURPOSES, sections  # noqa: E402
from dispatcher.model import errors  # noqa: E402
from dispatcher.model.failure import Kind  # noqa: E402
from dispatcher.model.frozen import Value  # noqa: E402
from dispatcher.model.messages import HOSTS, REFUSALS, RUN  # noqa: E402
from dispatcher.plan import variables  # noqa: E402

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

FOLDER = "reference"
#: the documents that most programs read stand first
_FIRST = ("report-1", "plan-1", schemas.JOURNAL, "job-1", "exec-1", "copy-1", "dry-run-1")
#: code of a text that is plain, and what Markdown would take for markup elsewhere in it
_MARKUP = re.compile(r"`[^`]*`|[\\*_\[\]<>|#~^]")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the generated pages into the navigation, where ``GENERATED`` stands in it."""
    made: list[Any] = [uri for uri in pages() if "/commands/" not in uri]
    by_purpose = [
        {purpose: [f"{FOLDER}/commands/{name}.md" for name in names]}
        for purpose, names in PURPOSES.items()
    ]
    made.insert(0, {"Commands": [f"{FOLDER}/commands/index.md", *by_purpose]})
    for entry in config.nav or []:
        for title, children in entry.items() if isinstance(entry, dict) else ():
            if isinstance(children, list) and "GENERATED" in children:
                at = children.index("GENERATED")
                entry[title] = [*children[:at], *made, *children[at + 1 :]]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    from mkdocs.structure.files import File

    for uri, text in pages().items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    r"""Write ``\|`` in code of tables, which GitHub needs, as Python-Markdown has it: ``|``."""
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace(r"\|", "|"), markdown)


def pages() -> dict[str, str]:
    """Place below docs/ -> Markdown of every generated page."""
    found = {f"{FOLDER}/commands/{name}.md": _joined(command(name)) for name in COMMANDS}
    found[f"{FOLDER}/commands/index.md"] = _joined(commands())
    found[f"{FOLDER}/json.md"] = _joined(documents())
    found[f"{FOLDER}/messages.md"] = _joined(messages())
    found[f"{FOLDER}/exit-codes.md"] = _joined(exit_codes())
    found[f"{FOLDER}/environment.md"] = _joined(environment())
    found[f"{FOLDER}/python.md"] = _joined(python())
    return found


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """``text`` as Markdown shows it to the letter."""
    return _MARKUP.sub(lambda mark: mark[0] if mark[0][1:] else f"&#{ord(mark[0])};", text)


# -- commands ---------------------------------------------------------------------------


def commands() -> Iterator[str]:
    """All commands by purpose, a line each: what ``dispatch help`` says."""
    yield "# Commands"
    for purpose, names in PURPOSES.items():
        yield ""
        yield f"## {purpose}"
        yield ""
        for name, said in names.items():
            yield f"* [{shown_name(name)}]({name}.md): {plain(said)}"


def command(name: str) -> Iterator[str]:
    """The page of the command ``name``: what ``--help`` says of it."""
    one = load_command(name)
    context = click.Context(one, **one.context_settings)
    yield f"# {shown_name(name)}"
    yield ""
    yield f"    {shown_name(name)} {' '.join(one.collect_usage_pieces(context))}"
    yield ""
    yield from prose(one.help or "")
    yield "## Examples"
    yield ""
    yield "```sh"
    for line, said in one.kind.examples:
        yield f"# {said}"
        yield line
    yield "```"
    yield ""
    for title, records in sections(one, context).items():
        yield f"## {plain(title)}"
        yield ""
        for names, text in records:
            anchor = re.findall(r"--([\w-]+)|(-\w)\b", names)
            long = next((a or b.strip("-") for a, b in anchor[::-1]), "option")
            yield f"`{names}` {{ #{long} }}"
            yield f":   {plain(text)}"
            yield ""
    if one.epilog:
        yield "## Exit code"
        yield ""
        yield from prose(one.epilog)


def _paragraphs(text: str) -> list[str]:
    return re.split(r"\n\s*\n|\n(?=\x08\n)", inspect.cleandoc(text))


def prose(text: str) -> Iterator[str]:
    """Paragraphs of a help text; what click keeps as it stands becomes a block of code."""
    for paragraph in _paragraphs(text):
        kept = paragraph.removeprefix("\b\n")
        if kept == paragraph:
            yield plain(" ".join(paragraph.split()))
        else:
            yield "```"
            yield textwrap.dedent(kept)
            yield "```"
        yield ""


# -- tables -----------------------------------------------------------------------------


def messages() -> Iterator[str]:
    """Every message that ends a run or refuses a command."""
    yield "# Messages"
    yield ""
    yield (
        "The code is in brackets after a message, and in `message_code` of JSON. It does not "
        "change; the text may. `dispatch explain CODE` prints the text of this page."
    )
    yield ""
    for title, group in (
        ("What ends a run", RUN),
        ("Why a host cannot be used", HOSTS),
        ("What refuses a command", REFUSALS),
    ):
        yield f"## {title}"
        yield ""
        for one in group:
            yield f"### {one.code}"
            yield ""
            yield f"**{plain(one.what)}** {plain(one.why)}"
            yield ""
            for part in re.split(r"\n\s*\n", one.do):
                if part.startswith("    "):
                    yield "```sh"
                    yield textwrap.dedent(part)
                    yield "```"
                else:
                    yield plain(" ".join(part.split()))
                yield ""
            yield f"Exit code: {plain(one.exit_code)}"
            yield ""


def exit_codes() -> Iterator[str]:
    """What dispatch exits with, and what is said of hosts that cannot be used."""
    yield "# Exit codes"
    yield ""
    yield "| code | meaning |"
    yield "|---|---|"
    for code, meaning in _rows(errors.__doc__ or ""):
        yield f"| {plain(code)} | {plain(meaning)} |"
    yield ""
    yield ("A rank may itself exit with 124 to 127. The verdict and `report.json` name the source.")
    yield ""
    yield "## Why a host could not be used"
    yield ""
    yield "The table of failed hosts has these words beside the host, and JSON has them in `kind`."
    yield ""
    yield "| words | message |"
    yield "|---|---|"
    for kind in Kind:
        yield f"| {kind.value} | [{kind.code}](messages.md#{kind.code}) |"


def _rows(text: str) -> list[tuple[str, str]]:
    """The rows of the first table of reStructuredText in ``text``, of two columns."""
    rule = re.search(r"^(=+) +=+$", text, re.M)
    assert rule, "a table"
    wide = len(rule[1])
    found: list[tuple[str, str]] = []
    for line in text.split(rule[0])[2].strip("\n").splitlines():
        if line[:wide].strip():
            found.append((line[:wide].strip(), line[wide:].strip()))
        else:  # goes on with the row before
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return found


def environment() -> Iterator[str]:
    """Which variables cross, which never, which are set for each rank, which are removed."""
    yield "# Environment variables"
    yield ""
    tables = (
        (
            "Set for every rank",
            "dispatch sets these itself. Your own value for one of them is an error.",
            variables.RESERVED_NAMES,
            variables.RESERVED_PREFIXES,
        ),
        (
            "Sent without an option",
            "dispatch sends these to the hosts if your environment has them. `-x NAME` sends more.",
            variables.CROSSING_NAMES,
            variables.CROSSING_PREFIXES,
        ),
        (
            "Sent only with `-x`",
            "These begin like variables above, but dispatch sends them only with `-x NAME`.",
            variables.STAYING_NAMES,
            (),
        ),
        (
            "Removed from a host's own environment",
            "A batch step or another launcher may have set these. MPI would then expect that "
            "launcher.",
            variables.SCRUB_NAMES,
            variables.SCRUB_PREFIXES,
        ),
        (
            "Allowed in a file of the current folder",
            "A `.deepspeed_env`, `dispatch.toml` or hostfile in the current folder may set only "
            "these.",
            variables.FOLDERS_NAMES,
            (),
        ),
    )
    for title, about, names, prefixes in tables:
        yield f"## {title}"
        yield ""
        yield about
        yield ""
        yield " ".join(f"`{name}`" for name in sorted(names))
        yield ""
        if prefixes:
            starts = " ".join(f"`{prefix}*`" for prefix in sorted(prefixes))
            yield f"And all variables that begin with {starts}"
            yield ""


# -- JSON -------------------------------------------------------------------------------


def documents() -> Iterator[str]:
    """Every field of every document for programs, and the events of the journal."""
    yield "# JSON: every field"
    yield ""
    yield (
        "The fields of all files and of `--json`, by the `schema` that each names. [What "
        "stays](formats.md) has the rules for changes. A field with \\* may be missing."
    )
    yield ""
    found = schemas.schemas()
    for name in dict.fromkeys((*_FIRST, *found)):
        schema = found[name]
        yield f"## {schema['title']}"
        yield ""
        yield f"{_about(schema)} JSON Schema: [{name}.json](schemas/{name}.json)"
        yield ""
        yield from _fields(schema)
        if name == schemas.JOURNAL:
            yield from _events(schema)
            continue
        for part, of in schema.get("$defs", {}).items():
            yield f"`{part}`: {_about(of)}"
            yield ""
            yield from _fields(of)


def _about(schema: schemas.Schema) -> str:
    return plain(schema.get("description", ""))


def _fields(schema: schemas.Schema) -> Iterator[str]:
    if schema["properties"]:
        yield "| field | type | meaning |"
        yield "|---|---|---|"
    for name, of in schema["properties"].items():
        mark = "" if name in schema["required"] else "\\*"
        yield f"| `{name}`{mark} | {_kind(of)} | {_about(of)} |"
    yield ""


def _kind(schema: schemas.Schema) -> str:
    """The type of a field in a few words."""
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if "items" in schema and "prefixItems" not in schema:
        return f"array of {_kind(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_kind(schema['additionalProperties'])}".removesuffix(" of any")
    kinds = schema.get("type", "any")
    return kinds if isinstance(kinds, str) else " or ".join(kinds)


def _events(schema: schemas.Schema) -> Iterator[str]:
    yield "| name | what happened | context |"
    yield "|---|---|---|"
    for rule in schema["allOf"]:
        name = rule["if"]["properties"]["name"]["const"]
        of = schema["$defs"][_kind(rule["then"]["properties"]["context"]).strip("`")]
        facts = " ".join(f"`{one}`" for one in of["properties"])
        yield f"| `{name}` | {_about(of)} | {facts} |"
    yield ""


# -- Python -----------------------------------------------------------------------------


def python() -> Iterator[str]:
    """Every name that ``import dispatcher`` offers, with its docstring and its fields."""
    yield "# Python API: every name"
    yield ""
    yield "The guide, with examples: [From a program](../guides/python.md)."
    yield ""
    for name in dispatcher._HOMES:
        found = getattr(dispatcher, name)
        yield f"## {name}"
        yield ""
        yield "```python"
        yield f"{name}{_signature(found)}"
        yield "```"
        yield ""
        yield from _docstring(found)


def _signature(found: Any) -> str:
    if found is dispatcher.Running:
        return ""  # made by ``start``
    if isinstance(found, type) and issubclass(found, Value):
        fields = dataclasses.fields(found)
        return "(" + ", ".join(f"{one.name}: {one.type}{_default(one)}" for one in fields) + ")"
    if isinstance(found, type) and issubclass(found, Exception):
        bases = ", ".join(base.__name__ for base in found.__bases__)
        return f"({bases})"
    text = str(inspect.signature(found)).replace("'", "")
    return re.sub(r"<function (\w+) at 0x\w+>", r"\1", text)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f" = {field.default!r}"
    return " = ..." if field.default_factory is not dataclasses.MISSING else ""


def _docstring(found: Any) -> Iterator[str]:
    text = inspect.getdoc(found) or ""
    if dataclasses.is_dataclass(found) and text.startswith(f"{getattr(found, '__name__', '')}("):
        text = ""
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.startswith("    ") or "\n    " in paragraph:
            yield "```text"
            yield textwrap.dedent(paragraph)
            yield "```"
        else:
            yield re.sub(r"``(.+?)``", r"`\1`", " ".join(paragraph.split()).replace("<", "\\<"))
        yield ""


# -- manual pages -----------------------------------------------------------------------

#: characters of a line of the source; manuals are read by people, too
WIDTH = 72
_FILES = (
    ("~/.config/dispatch/dispatch.toml, ./dispatch.toml", "Defaults; see dispatch config."),
    ("~/.ssh/config, ~/.ssh/known_hosts", "As ssh has them."),
    ("~/.deepspeed_env, ./.deepspeed_env", "Variables for the ranks, NAME=VALUE."),
    ("~/.local/state/dispatch", "Records of jobs, and the files of those in the background."),
)


def manuals() -> dict[str, str]:
    """Name of the file -> roff of every manual page."""
    found = {"dispatch.1": _joined(manual())}
    for name in COMMANDS:
        found[f"{shown_name(name).replace(' ', '-')}.1"] = _joined(manual_of(name))
    return found


def manual() -> Iterator[str]:
    """dispatch(1): the options of ``run`` where readers look for options, and all commands."""
    run = load_command("run")
    yield from _head("dispatch", "start one process per GPU on every host over SSH")
    yield _synopsis("run", "")
    yield ".br"
    yield r"\fBdispatch\fR \fICOMMAND\fR [\fIOPTIONS\fR]..."
    yield ".SH DESCRIPTION"
    yield from roff(run.help)
    yield ".PP"
    yield "Options may be written with dashes or underscores."
    yield from _examples("run", ".SH EXAMPLES")
    yield ".SH COMMANDS"
    for purpose, names in PURPOSES.items():
        yield from (".PP", rf"\fI{escaped(purpose)}\fR")
        for name, said in names.items():
            yield from (".TP", rf"\fB{escaped(shown_name(name))}\fR", *_filled(said))
    yield ".SH OPTIONS"
    yield from _options("run")
    yield ".SH EXIT STATUS"
    yield from roff(run.epilog)
    yield ".SH OPTIONS OF COMMANDS"
    for name in (name for names in PURPOSES.values() for name in names if name != "run"):
        yield from (f".SS {escaped(shown_name(name))}", _synopsis(name, name), ".PP")
        yield from roff(load_command(name).help)
        yield from _examples(name, ".PP")
        yield from _options(name)
    yield from _tail("ssh(1), ssh_config(5), torchrun(1), mpirun(1), pdsh(1), srun(1)")


def manual_of(name: str) -> Iterator[str]:
    """The manual page of the command ``name`` alone."""
    (said,) = (names[name] for names in PURPOSES.values() if name in names)
    yield from _head(shown_name(name).replace(" ", "-"), said[:1].lower() + said[1:].rstrip("."))
    yield from (_synopsis(name, name), ".SH DESCRIPTION")
    yield from roff(load_command(name).help)
    yield from _examples(name, ".SH EXAMPLES")
    yield ".SH OPTIONS"
    yield from _options(name)
    yield from _tail("dispatch(1)")


def _head(name: str, said: str) -> Iterator[str]:
    when = time.gmtime(float(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
    day = time.strftime("%Y-%m-%d", when)
    yield f'.TH {escaped(name.upper())} 1 {day} "dispatch {dispatcher.__version__}"'
    # no hyphen that is not in an option may be copied from one
    yield from (".nh", ".ad l", ".SH NAME", rf"{escaped(name)} \- {escaped(said)}", ".SH SYNOPSIS")


def _tail(see_also: str) -> Iterator[str]:
    yield ".SH FILES"
    for path, text in _FILES:
        yield from (".TP", rf"\fI{escaped(path)}\fR", *_filled(text))
    yield from (".SH SEE ALSO", *_filled(see_also))


def _examples(name: str, heading: str) -> Iterator[str]:
    yield from (heading, ".nf")
    for line, said in load_command(name).kind.examples:
        yield from (escaped(f"# {said}"), rf"\fB{escaped(line)}\fR")
    yield ".fi"


def _synopsis(name: str, shown: str) -> str:
    one = load_command(name)
    words = " ".join(one.collect_usage_pieces(click.Context(one, **one.context_settings)))
    return rf"\fB{escaped(shown_name(shown))}\fR \fI{escaped(words)}\fR"


def _options(name: str) -> Iterator[str]:
    """Every option by section, and what the command exits with."""
    one = load_command(name)
    for title, records in sections(one, click.Context(one, **one.context_settings)).items():
        yield from (".PP", rf"\fI{escaped(title)}\fR")
        for names, text in records:
            yield from (".TP", bold_names(names), *_filled(text))
    if one.epilog and name != "run":
        yield from (".PP", *roff(one.epilog))


def bold_names(record: str) -> str:
    r"""``-H, --hosts FILE`` with names in bold and the rest in italics."""
    words = re.sub(r"(--[\w-]+)\[=", r"\1 [=", record).split(" ")
    names = [word for word in words if word.startswith("-")]
    value = " ".join(words[len(names) :])
    blank = "" if value.startswith("[=") else " "
    bold = " ".join(rf"\fB{escaped(name)}\fR" for name in names)
    return bold + (rf"{blank}\fI{escaped(value)}\fR" if value else "")


def roff(text: str | None) -> Iterator[str]:
    """Paragraphs of a help text; those that begin with click's mark keep their lines."""
    for number, paragraph in enumerate(_paragraphs(text or "")):
        if number:
            yield ".PP"
        kept = paragraph.removeprefix("\b\n")
        if kept == paragraph:
            yield from _filled(paragraph)
        else:
            yield from (".nf", *map(escaped, kept.split("\n")), ".fi")


def _filled(text: str) -> list[str]:
    plain = " ".join(text.split())
    return [escaped(line) for line in textwrap.wrap(plain, WIDTH, break_on_hyphens=False)]


def escaped(text: str) -> str:
    """``text`` as roff shows it to the letter: hyphens to be copied, no line that is an order."""
    plain = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq")
    plain = plain.replace("`", r"\(ga").replace("^", r"\(ha").replace("~", r"\(ti")
    plain = "".join(c if c.isascii() else rf"\[u{ord(c):04X}]" for c in plain)
    return rf"\&{plain}" if plain.startswith(".") else plain


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--man":
        sys.exit((__doc__ or "").rstrip())
    Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
    for file, text in manuals().items():
        (Path(sys.argv[2]) / file).write_text(text)
