"""torch.distributed from the same bootstrap, with gloo on the CPU."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dispatcher.comm import Unreachable
from dispatcher.comm.torch_bridge import interface_of, interfaces, reach

from .conftest import MpiExec

HOST = socket.gethostname()
pytestmark = pytest.mark.torch


def test_interfaces_are_those_of_the_system() -> None:
    assert interfaces()["lo"] == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.77") is None


def test_the_first_address_that_answers_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert reach(["127.0.0.2", "127.0.0.1"], port, 2) == ("127.0.0.1", "127.0.0.1")
    with pytest.raises(Unreachable, match=r"127.0.0.1 port \d+: Connection refused"):
        reach(["127.0.0.1"], port, 2)


@pytest.mark.usefixtures("torch_ranks")
class TestRanks:
    def test_a_group_is_ready_private_and_whole(self, mpiexec: MpiExec, tmp_path: Path) -> None:
        """No rank is ready before all are (whoever was first could close, and gloo failed in those
        it still connected to), the store is not open to the network, groups reduce, and the mesh
        is theirs.
        """
        ended = mpiexec(
            4,
            f"""
            import os, time
            import dispatcher.comm as comm
            import torch
            import torch.distributed as dist
            def listening():
                found = set()
                for table in ("tcp", "tcp6"):
                    with open(f"/proc/net/{{table}}") as lines:
                        rows = [line.split() for line in lines][1:]
                    found |= {{(row[1], row[9]) for row in rows if row[3] == "0A"}}
                mine = set()
                for name in os.listdir("/proc/self/fd"):
                    try:
                        mine.add(os.readlink(f"/proc/self/fd/{{name}}"))
                    except OSError:
                        pass
                return {{place for place, inode in found if f"socket:[{{inode}}]" in mine}}
            job = comm.init(device="cpu")
            before = listening()
            late, real = {str(tmp_path / "late")!r}, dist.init_process_group
            def slow(*args, **named):
                real(*args, **named)
                if job.rank == 1:
                    time.sleep(0.5)
                    open(late, "w").close()
            dist.init_process_group = slow
            job.init_torch(timeout=60)
            assert os.path.exists(late)
            opened = sorted({{place.split(":")[0] for place in listening() - before}})
            assert dist.get_backend() == "gloo"
            assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
            groups = job.parallel(tp=2)
            for group in (groups.tp, groups.dp, groups.pp, groups["dp-cp"], groups.ep):
                x = torch.tensor([2.0 ** job.rank])
                dist.all_reduce(x, group=group.process_group)
                assert x.item() == sum(2.0 ** rank for rank in group.ranks), (group, x)
                assert dist.get_rank(group.process_group) == group.rank
                backend = group.process_group._get_backend(torch.device("cpu"))
                assert backend.options._timeout.total_seconds() == 60
            mesh = groups.mesh()
            assert mesh is groups.mesh()
            assert mesh.mesh_dim_names == ("pp", "dp", "cp", "tp")
            assert mesh["tp"].mesh.tolist() == list(groups.tp.ranks)
            assert mesh["dp"].mesh.tolist() == list(groups.dp.ranks)
            assert mesh.get_group("tp") is groups.tp.process_group
            print(groups.tp.ranks, groups.dp.ranks, *opened, flush=True)
            job.close()
            assert not dist.is_initialized()
            """,
        )
        assert ended.code == 0, ended.err
        assert ended.lines == [  # 127.0.0.1, as the kernel writes it
            f"{tp} {dp} 0100007F"
            for tp, dp in [("(0, 1)", "(0, 2)"), ("(0, 1)", "(1, 3)"), ("(2, 3)", "(0, 2)"),
                           ("(2, 3)", "(1, 3)")]
        ]  # fmt: skip

    def test_a_rank_that_still_joins_ends_with_the_others(self, mpiexec: MpiExec) -> None:
        """torch comes back while Python ends, which would end the process by SIGABRT."""
        ended = mpiexec(
            2,
            """
            import datetime, time
            import dispatcher.comm as comm
            import torch.distributed as dist
            class Slow:  # is removed slowly, so Python is still ending when torch comes back
                def __del__(self, sleep=time.sleep):
                    sleep(4)
            job = comm.init(device="cpu")
            def broken(*args, store, **named):
                if job.rank == 1:
                    raise RuntimeError("Gloo connectFullMesh failed")
                store.wait(["never"], datetime.timedelta(seconds=2))
            dist.init_process_group = broken
            slow = Slow()
            job.init_torch(timeout=60)
            """,
        )
        assert ended.code == 1, ended.err
        assert "terminate called" not in ended.err

    def test_a_rank_that_cannot_reach_rank_0_ends_all(self, mpiexec: MpiExec) -> None:
        ended = mpiexec(
            3,
            """
            import sys, types
            import dispatcher.comm as comm
            from dispatcher.comm import torch_bridge
            comm.mpi._TOGETHER = 20
            job = comm.init(device="cpu")
            if job.rank == 2:  # and needs no torch before it has reached rank 0
                sys.modules["torch"] = sys.modules["torch.distributed"] = types.ModuleType("torch")
                real = torch_bridge.reach
                torch_bridge.reach = lambda addresses, port, seconds: real(addresses, 1, seconds)
            job.init_torch()
            """,
        )
        assert ended.code == 1
        why = f"rank 2 on {HOST}: cannot reach rank 0: 127.0.0.1 port 1: Connection refused"
        assert ended.err.count(why) == 3, ended.err
