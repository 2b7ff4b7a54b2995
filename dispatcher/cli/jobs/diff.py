"""``dispatch diff``: the differences between two jobs on record."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from zlib import crc32

from dispatcher.cli import aligned, print_json, print_lines, say
from dispatcher.cli.entry import load_command
from dispatcher.cli.jobs.option_words import grouped, values_of
from dispatcher.cli.options.declaration import Options, argument, json_option
from dispatcher.jobs import registry
from dispatcher.model.frozen import Document, Value, value
from dispatcher.model.hostset import fold
from dispatcher.output.text.sanitize import cell

#: characters of a value in the table
WIDEST = 60
#: speeds that differ by less, as a share and in seconds, count as equal
SHARE, SECONDS = 0.1, 1.0


@value
class Difference(Value):
    """A thing that differs. a, b: its value in each job as text, null if it has none.

    ``what`` is program, argument, option, variable, folder, commit, changes, version, hosts,
    ranks, exit code, verdict, seconds, or rate (of --progress-line, a second). ``name`` is the
    name of the argument, option, variable or software, else "".
    """

    what: str
    name: str
    a: str | None
    b: str | None


@value
class JobDiff(Document):
    """``dispatch diff --json``. a, b: ids of the jobs. Equal things are not in ``differences``.

    ``patch_a`` and ``patch_b`` are the uncommitted changes on record, if they differ.
    """

    schema = "job-diff/1"
    a: str
    b: str
    differences: tuple[Difference, ...]
    patch_a: str | None
    patch_b: str | None


class DiffOptions(Options):
    """Show the differences between two jobs on record.

    A and B are jobs as for dispatch logs: a name (--name), or the beginning of an id that dispatch
    jobs -a lists, or latest. Equal things are left out, and so are names. Times and rates
    count as equal if they differ by less than a tenth or a second.
    """

    examples = (
        ("dispatch diff lr-1e-3 lr-3e-4", "arguments, options, code, speed, verdict"),
        ("dispatch diff k3f9x2 latest --json", "for programs"),
    )
    epilog = "Exit code: 0 if nothing differs, 1 if something does, 2 if a job is not on record."

    job: str = argument(metavar="A", required=True)
    other: str = argument(metavar="B", required=True)
    as_json: bool = json_option("the differences")


def diff(options: DiffOptions) -> int:
    """Print the differences; the exit code. Raises: UsageError."""
    jobs = [registry.find(name) for name in (options.job, options.other)]
    found = compared(*(dict(facts(job)) for job in jobs))
    patches: list[str | None] = [None, None]
    if any(one.what == "changes" for one in found):
        texts = map(registry.patch_of, jobs)
        patches = [None if text is None else text.decode("utf-8", "replace") for text in texts]
    if options.as_json:
        print_json(JobDiff(jobs[0].run_id, jobs[1].run_id, tuple(found), *patches))
        return int(bool(found))
    if not found:
        say("note: no difference")
        return 0
    rows = [["", *(job.title for job in jobs)]]
    for one in found:
        cells = (f"{one.what} {one.name}".rstrip(), one.a or "-", one.b or "-")
        rows.append([cell(text, WIDEST) for text in cells])
    print_lines(aligned(rows))
    for job, patch in zip(jobs, patches, strict=True):
        if patch is not None:
            cut = ", cut" if job.is_cut else ""
            print_lines(["", f"uncommitted changes of {job.title}{cut}:", patch.rstrip("\n")])
    return 1


def compared(a: dict[tuple[str, str], str], b: dict[tuple[str, str], str]) -> list[Difference]:
    """The differences of two jobs' ``facts``, in their order. Pure."""
    found = []
    for what, name in {**a, **b}:
        one, other = a.get((what, name)), b.get((what, name))
        if one == other:
            continue
        if one and other and what in ("seconds", "rate"):
            apart, most = abs(float(one) - float(other)), max(float(one), float(other))
            if apart <= SHARE * most or (what == "seconds" and apart <= SECONDS):
                continue
        if what == "version" and not all(any(w == what for w, _ in job) for job in (a, b)):
            continue  # unknown for one of them
        if one and other and what == "verdict" and _steady(one) == _steady(other):
            continue
        found.append(Difference(what, name, one, other))
    return found


def _steady(verdict: str) -> str:
    """``verdict`` without pids, run ids and seconds, which differ in each run."""
    return re.sub(r"pid \d+|\d{8}-\d{6}-\w+|[\d.]+ ?s\b", "", verdict)


def facts(job: registry.Job) -> Iterator[tuple[tuple[str, str], str]]:
    """((what, name), text) of all that is on record of ``job``."""
    words = job.program if job.typed is None else job.typed.words
    yield ("program", ""), " ".join(words if ":" in words else words[:1])
    yield from _by_name("argument", () if ":" in words else words[1:], {})
    if job.typed is not None:
        params = load_command("run").params
        names = {name: param.opts[-1] for param in params for name in param.opts}
        last = {param.opts[-1] for param in params if not getattr(param, "multiple", False)}
        own = _by_name("option", [one for one in job.typed.options if one != "--"], names, last)
        yield from (one for one in own if one[0][1] != "--name")
        yield ("folder", ""), job.typed.folder
    yield from ((("variable", name), "given") for name in job.variables)
    if job.commit is not None:
        yield ("commit", ""), job.commit
    if patch := registry.patch_of(job):
        yield ("changes", ""), f"{len(patch.splitlines())} lines, CRC {crc32(patch):08x}"
    for name, of in registry.versions_of(job).items():
        text = "; ".join(f"{version} ({hosts})" for version, hosts in of.items())
        yield ("version", name), text if len(of) > 1 else next(iter(of), "")
    yield ("hosts", ""), fold(name for name, _, _ in job.hosts)
    yield ("ranks", ""), str(job.ranks or "")
    end = job.end or {}
    if job.end is not None:
        yield ("exit code", ""), str(job.exit_code)
        yield ("verdict", ""), str(next(iter(end["verdict"]), "success"))
        yield ("seconds", ""), f"{float(end['ended']) - job.began:.1f}"
    if isinstance(rate := end.get("rate"), float):
        yield ("rate", ""), f"{rate:.4g}"


def _by_name(
    what: str, words: Sequence[str], names: dict[str, str], last: Set[str] = frozenset()
) -> Iterator[tuple[tuple[str, str], str]]:
    """The ``words`` by option; others by place. ``names`` are other names of options.

    All values of an option count, but only the last if the option is in ``last``.
    """
    found: dict[str, list[str]] = {}
    for key, group in grouped(words):
        short = key[:2] if key[:2] in names and not key.startswith("--") else key
        values = values_of(group) if key == short else (key[2:], *group[1:])
        name = names.get(short, key) or f"#{sum(one[0] == '#' for one in found) + 1}"
        if name in last:
            found.pop(name, None)
        found.setdefault(name, []).extend(values if key else group)
    for name, texts in found.items():
        yield (what, name), " ".join(dict.fromkeys(texts) if last else texts) or "given"
