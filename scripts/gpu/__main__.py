#!/usr/bin/env python3
"""Rehearse on a real GPU what the tests can only play; needs one GPU and no network.

    python scripts/gpu --part 1         here: torch, NCCL, mpi4py and an MPI library are installed
    python scripts/gpu --part 2         the second half; each ends within ten minutes
    python scripts/gpu --pack DIR       make what must be carried to a machine that has torch alone
    python scripts/gpu --stand-ins      without a GPU: NCCL over MPI, a nvidia-smi that plays, gloo

Each of ``STEPS`` runs commands of dispatch as a user does; its docstring says what is expected, and
the table what was seen. The output of all commands, of nvidia-smi and of NCCL is kept in DIR of
``--keep``, and in one archive and a table beside it. Exit code: 0, all as expected; 1, a surprise;
2, it cannot be run here. A step that cannot be tried here is named, and is no surprise.

Two ranks on one GPU: NCCL compares the GPUs of ranks on equal hosts only, and takes NCCL_HOSTID for
the host's name where it is set (init.cc, misc/utils.cc of 2.18.3 to 2.30.7). From 2.30.3 on
NCCL_MULTI_RANK_GPU_ENABLE=1 allows it by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.dont_write_bytecode = True
from gpu.place import (  # noqa: E402
    OTHER_HOSTS,
    ROOT,
    Done,
    Impossible,
    Place,
    Surprise,
    Unseen,
    archive,
    pack,
    prepare,
)  # fmt: skip

RANKS = str(ROOT / "scripts" / "gpu" / "ranks.py")
EXAMPLES = ROOT / "examples"
CSV = "--format=csv,noheader,nounits"
#: how often one rank is run alone
TIMES = 5
#: how rank 1 ends, and the exit code of the job
ENDINGS = (("raise", 1), ("exit", 3), ("os._exit", 4), ("SIGKILL", 137), ("SIGSEGV", 139))
#: nvidia-smi as people use it; ``dispatch check --full`` asks in its own forms besides
FORMS = (
    ("-L",), ("-q",), ("-q", "-x"), ("topo", "-m"), ("nvlink", "-s"), ("nvlink", "-e"),
    ("--query-gpu=index,pci.bus_id,gpu_recovery_action", CSV),
    ("--query-compute-apps=pid,process_name,used_memory", CSV),
)  # fmt: skip
MUST_ANSWER = 3


def smi(place: Place) -> str:
    """1. nvidia-smi, and the judges: every form answers; check --full: fit, or what is not."""
    refused = []
    for number, form in enumerate(FORMS):
        done = place.run("nvidia-smi", "nvidia-smi", *form)
        done.must(done.code == 0 or number >= MUST_ANSWER, " ".join(form))
        refused += [f"{form[0]} ({done.code})"] if done.code else []
    done = place.dispatch("check", "check", "-H", "localhost", "--full", "--json", limit=120)
    (place.keep / "check.json").write_text(text := done.text[done.text.find("{") :])
    done.must(text.startswith("{"), "an answer of check")
    host = json.JSONDecoder().raw_decode(text)[0]["hosts"]["localhost"]
    odd = [
        f"{name}: {found['level']} {found['text']}"
        for name, found in host["checks"].items()
        if found["level"] != "OK"
    ]
    return "; ".join(filter(None, [", ".join(refused) and f"refused: {refused}", *odd])) or "fit"


def versions(place: Place) -> str:
    """2. the GPU and NCCL are found: uuid as nvidia-smi -L has it."""
    done = place.python("versions", RANKS, "versions", limit=180).well()  # torch may be cold
    found = json.loads(done.text.splitlines()[-1])
    listed = place.run("nvidia-smi-L", "nvidia-smi", "-L")
    done.must(found["uuid"] in listed.text, f"{found['uuid']} in nvidia-smi -L")
    return ", ".join(f"{name} {value}" for name, value in found.items())


def soname(place: Place) -> str:
    """3. comm.init(), then import torch: no ImportError, one libnccl."""
    done = place.ranks("soname", 1, RANKS, "soname").well()
    return _said(done, "torch has")


def alone(place: Place) -> str:
    """4. nccl_over_mpi.py, one rank: all values right, exit 0, no abort."""
    largest = "16M" if place.played else "1G"
    program = (str(EXAMPLES / "nccl_over_mpi.py"), "--largest", largest, "--repeat", "5")
    times = list[float]()
    for number in range(TIMES):
        done = place.ranks(f"alone-{number}", 1, *program).well()
        done.must("# Out of bounds values : 0 OK" in done.text, "all values right")
        times.append(done.seconds)
    return f"{TIMES} times right, each in {min(times):.1f} to {max(times):.1f} s"


def with_cupy(place: Place) -> str:
    """4b. the same of CuPy's memory: sum 1.0."""
    done = place.ranks("cupy", 1, RANKS, "with_cupy").well()
    if "unseen: " in done.text:
        raise Unseen("no cupy here")
    return _said(done, "sum 1.0")


def refusal(place: Place) -> str:
    """5. two ranks on one GPU: both refuse, exit 1, in 15 s."""
    done = place.ranks("refusal", 2, RANKS, "pair")
    said = done.text.count(": one rank a gpu is allowed")
    done.must((done.code, said >= 2) == (1, True), "refused by both")
    done.must(done.seconds < 15 or place.played, "in 15 s")
    return f"exit 1, {done.seconds:.1f} s, said {said} times"


def two_hosts(place: Place) -> str:
    """6. the same, with two NCCL_HOSTIDs: 3.0 twice, split(0) of 2, Socket."""
    done = _pair(place, "two-hosts", "pair", env={"NCCL_DEBUG": "INFO"})
    done.must("NCCL INFO Using network Socket" in done.text, "Socket in NCCL's log")
    return "3.0 3.0, split of 2, Socket"


def nonblocking(place: Place) -> str:
    """6b. the same without blocking: 3.0 twice, check, split(0) of 2."""
    _pair(place, "nonblocking", "nonblocking")
    return "3.0 3.0, split of 2"


def _pair(place: Place, name: str, program: str, **more: Any) -> Done:
    done = place.ranks(name, 2, RANKS, program, hosts=True, **more).well()
    done.must(done.text.count("3.0 3.0, split of 2") == 2, "3.0 twice on both, split(0) of 2")
    return done


def late(place: Place) -> str:
    """7. rank 1 is late: rank 1 and 10 s are named."""
    done = place.ranks("late", 2, RANKS, "late", hosts=True)
    done.must(done.code not in (0, None), "an end")
    said = _said(done, "did not come within 10 s")
    done.must("rank 1 on localhost did not come" in said, "rank 1 named")
    return f"{said}; exit {done.code}, {done.seconds:.1f} s"


def unstarted(place: Place) -> str:
    """7b. rank 1 answers the roll call and does not start NCCL: rank 1 and 10 s are named."""
    done = place.ranks("unstarted", 2, RANKS, "unstarted", hosts=True)
    done.must(done.code not in (0, None), "an end")
    said = _said(done, "10 s")
    done.must("rank 1 on localhost" in said, "rank 1 named")
    return f"{said}; exit {done.code}, {done.seconds:.1f} s"


def killed(place: Place) -> str:
    """8. kill -9 before an all-reduce: exit 137, nothing left on the GPU."""
    query = ("nvidia-smi", "--query-gpu=memory.used", CSV)
    before = place.run("killed-before", *query).text
    done = place.ranks("killed", 2, RANKS, "killed", hosts=True)
    done.must(done.code == 137 and "rank 1" in done.text, "rank 1 named, exit 137")
    after = place.run("killed-after", *query).text
    most = max(int(b) - int(a) for a, b in zip(before.split(), after.split(), strict=True))
    done.must(most <= 64, f"the GPU's memory free again ({most} MiB more)")
    apps = place.run("killed-apps", "nvidia-smi", *FORMS[-1]).text.strip()
    done.must("python" not in apps, f"nobody on the GPU ({apps})")
    return f"exit 137 after {done.seconds:.1f} s, {most} MiB more in use"


def endings(place: Place) -> str:
    """8b. rank 1 ends in several ways, 20 times: named each time, no process left."""
    rounds = ENDINGS * (1 if place.played else 4)
    for number, (how, code) in enumerate(rounds):
        done = place.ranks(f"ends-{number}", 2, RANKS, "ends", how, hosts=True)
        done.must(done.code == code and "rank 1" in done.text, f"{how}: rank 1, exit {code}")
        left = place.run("left", "pgrep", "-f", f"{RANKS} ends")
        left.must(left.code == 1, f"{how}: nobody left")
    return f"{len(rounds)} endings, rank 1 named each time, nobody left"


def torch_timeouts(place: Place) -> str:
    """9a. torch: timeouts of groups: the world's and a subgroup's equal."""
    done = place.ranks("timeouts", 2, RANKS, "timeouts", hosts=True).well()
    said = _said(done, "world ")
    world, group = re.findall(r"\d+:\d+:\d+", said)
    done.must(world == group, f"equal: {said}")
    return said


def training(place: Place) -> str:
    """9b. train_comm.py --steps 20: exit 0, process groups closed."""
    program = str(EXAMPLES / "train_comm.py")
    done = place.ranks("training", 2, *OTHER_HOSTS, program, "--steps", "20", limit=90).well()
    done.must("destroy_process_group() was not called" not in done.text, "closed in order")
    return f"{_said(done, 'step ')}; {done.seconds:.1f} s"


def begins(place: Place) -> str:
    """9c. id to first all-reduce, beside torch's own start: both end; comm no slower by 1 s."""
    done = place.ranks("begins", 2, RANKS, "begins", hosts=True).well()
    said = _said(done, "to the first sum")
    ours, theirs = (float(number) for number in re.findall(r"([\d.]+) s", said))
    done.must(ours < theirs + 1.0 or place.played, said)
    return said


def hang(place: Place) -> str:
    """10a. rank 1 never calls all_reduce: exit 124, stacks; a GPU that waits in the journal."""
    logs = place.keep / "hang"
    words = ("--hang-timeout", str(place.hang), "--log-dir", str(logs), "--grace", "2")
    limit = place.hang + 60.0
    done = place.ranks("hang", 2, RANKS, "hang", before=words, hosts=True, limit=limit)
    done.must(done.code == 124, "exit 124")
    done.must("prepare_data" in done.text, "rank 1 in prepare_data")
    done.must(bool(_figures(logs, "watts")), "watts in the journal")
    seen = [f"{name} {min(each):g} to {max(each):g}" for name in ("watts", "utilisation", "traffic")
            if (each := _figures(logs, name))]  # fmt: skip
    ras = sum(path.stat().st_size for path in logs.rglob("ras-*.txt"))
    return f"exit 124 after {done.seconds:.0f} s, stacks; {', '.join(seen)}; RAS: {ras} bytes"


def torch_hang(place: Place) -> str:
    """10b. the same, by torch: exit 124, the collective is named."""
    words = ("--hang-timeout", str(place.hang), "--log-dir", str(place.keep / "torch-hang"))
    limit = place.hang + 60.0
    done = place.ranks(
        "torch-hang", 2, RANKS, "torch_hang", before=(*words, "--grace", "2"), hosts=True,
        limit=limit,
    )  # fmt: skip
    done.must(done.code == 124, "exit 124")
    return (
        f"exit 124 after {done.seconds:.0f} s; {_said(done, 'rank 1 on localhost has not called')}"
    )


def beats(place: Place) -> str:
    """10c. the same, while each rank writes lines: exit 124 within three times as long."""
    words = ("--hang-timeout", str(place.hang), "--grace", "2")
    limit = 3 * place.hang + 60.0
    done = place.ranks("beats", 2, RANKS, "beats", before=words, hosts=True, limit=limit)
    done.must(done.code == 124, "exit 124")
    return f"exit 124 after {done.seconds:.0f} s; {_said(done, 'ranks write')}"


def nvml(place: Place) -> str:
    """11. NVML beside nvidia-smi: equal within noise."""
    done = place.python("nvml", RANKS, "nvml").well()
    said = done.text.splitlines()[-1]
    if said.startswith("unseen: "):
        raise Unseen(said.removeprefix("unseen: "))
    done.must(said.startswith("equal: "), "equal")
    return said


def binding(place: Place) -> str:
    """12. --bind-to gpu: CPUs of the GPU's NUMA node."""
    asked = place.run("bus", "nvidia-smi", "--query-gpu=pci.bus_id", CSV).text.split()[0]
    device = Path("/sys/bus/pci/devices") / asked.lower()[-12:]
    if not (device / "numa_node").exists():
        raise Unseen(f"{device} is not there")
    show = ("--no-python", "sh", "-c", "grep Cpus_allowed_list /proc/self/status")
    done = place.ranks("binding", 1, *show, before=("-v", "--bind-to", "gpu")).well()
    node = (device / "numa_node").read_text().strip()
    cpus = _said(done, "Cpus_allowed_list").split()[-1]
    near = (device / "local_cpulist").read_text().strip()
    if node == "-1":
        raise Unseen(f"the GPU has no NUMA node here; CPUs {cpus} of {near}")
    done.must(_numbers(cpus) <= _numbers(near), f"CPUs {cpus} among {near}")
    return f"CPUs {cpus}; near to it are {near}, NUMA node {node}"


def _numbers(cpus: str) -> set[int]:
    """0, 1, 2 and 8 of ``0-2,8``."""
    ends = [part.partition("-") for part in cpus.split(",")]
    return {n for first, _, last in ends for n in range(int(first), int(last or first) + 1)}


def _said(done: Done, words: str) -> str:
    """The last line with ``words``, without its label. Raises: Surprise, if none has them."""
    lines = [line for line in done.text.splitlines() if words in line]
    done.must(bool(lines), f"said: {words}")
    return re.sub(r"^\[\S+\] ?|^error: ", "", lines[-1]).strip()


def _figures(logs: Path, name: str) -> list[float]:
    """``name`` of the GPUs, in the journal's last ten samples: in those the GPUs wait."""
    text = "".join(path.read_text(errors="replace") for path in logs.rglob("dispatch.jsonl"))
    return [float(number) for number in re.findall(rf'"{name}": ?([\d.]+)', text)][-10:]


PARTS = (
    (smi, versions, soname, alone, with_cupy, refusal, two_hosts, nonblocking, late, unstarted,
     killed, torch_timeouts, training, begins),
    (endings, hang, torch_hang, beats, nvml, binding),
)  # fmt: skip
STEPS = {(step.__doc__ or "").partition(".")[0]: step for part in PARTS for step in part}


def rehearse(place: Place, wanted: Sequence[str]) -> int:
    """Take the steps, print the table; the exit code."""
    table: list[str] = []
    results: dict[str, list[str]] = {"ok": [], "SURPRISE": [], "unseen": []}

    def show(text: str) -> None:
        table.append(text)
        print(text, flush=True)

    began = time.monotonic()
    for number in wanted:
        step = STEPS[number]
        try:
            result, seen = "ok", step(place)
        except Surprise as error:
            result, seen = "SURPRISE", str(error)
        except Unseen as error:
            result, seen = "unseen", str(error)
        except Exception as error:  # its output could not be read
            result, seen = "SURPRISE", f"{type(error).__name__}: {error}"
        results[result].append(number)
        show(f"{result:9} {step.__doc__}\n{'':9} seen: {seen}")
    stand_ins = "; with stand-ins, no GPU" if place.played else ""
    counts = ", ".join(f"{len(n)} {r}" + (f" ({', '.join(n)})" if r != "ok" and n else "")
                       for r, n in results.items())  # fmt: skip
    show(f"{counts}; {time.monotonic() - began:.0f} s{stand_ins}")
    text = "\n".join([*table, ""])
    (place.keep / "table.txt").write_text(text)
    print(f"kept in {archive(place.keep, text)}")
    return 1 if results["SURPRISE"] else 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="rehearse on a real GPU what tests can only play")
    parser.add_argument("--keep", type=Path, default=Path("gpu-kept"), help="folder [gpu-kept]")
    parser.add_argument("--only", default="", metavar="STEPS", help="these steps: 1,2,8a")
    parser.add_argument("--part", type=int, choices=(1, 2), help="half of the steps [all]")
    parser.add_argument("--stand-ins", action="store_true", help="play the GPU")
    parser.add_argument("--hang", type=int, default=30, metavar="SECONDS", help="[30]")
    parser.add_argument("--pack", type=Path, metavar="DIR", help="what must be carried there")
    parser.add_argument("--python", default="3.12", metavar="VERSION", help="for --pack [3.12]")
    options = parser.parse_args(argv)
    wanted = set(filter(None, options.only.split(",")))
    if options.part:
        wanted = {n for n, step in STEPS.items() if step in PARTS[options.part - 1]}
    if unknown := wanted - {*STEPS}:
        parser.error(f"--only: no step {', '.join(sorted(unknown))}")
    try:
        if options.pack:
            print(pack(options.pack.resolve(), options.python))
            return 0
        place = prepare(options.keep.resolve(), played=options.stand_ins)
    except Impossible as error:
        print(error, file=sys.stderr)
        return 2
    place.hang = options.hang
    return rehearse(place, [number for number in STEPS if not wanted or number in wanted])


if __name__ == "__main__":
    sys.exit(main())
