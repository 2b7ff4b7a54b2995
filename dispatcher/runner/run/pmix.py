"""What ranks are told of PMIx, and what an agent is sent to serve it. Nothing here is loaded
on a host before a rank has asked.

The variables are those that libpmix itself sets for its clients (``PMIx_server_setup_fork``),
with one port for all protocol versions, since what listens there only carries bytes.
"""

from __future__ import annotations

import re

from dispatcher.bootstrap import payload
from dispatcher.plan.job.job_plan import JobPlan
from dispatcher.remote.host.folder import shared
from dispatcher.remote.protocol.frames import control
from dispatcher.runner.run.once import once_a_plan

#: modules of the agent that serve PMIx
PARTS = ("pmi.pmix_bridge", "pmi.pmix_server", "pmi.libpmix", "pmi.mpi_library", "pmi.pmi_port")

#: where to come, under the names by which versions 2 to 5 look
URIS = tuple(f"PMIX_SERVER_URI{version}".encode() for version in ("2", "21", "3", "4", "41"))

#: where Open MPI's ranks keep shared memory; killed ones would leave it in /dev/shm
SEGMENTS = tuple(
    f"OMPI_MCA_{part}_backing_directory" for part in ("btl_vader", "btl_sm", "osc_sm", "osc_rdma")
)


def is_offered(plan: JobPlan) -> bool:
    """Whether ranks find PMIx beside PMI-1; one rank alone needs neither."""
    return plan.mpi == "auto" and plan.world_size != 1


def variables(plan: JobPlan, rank: int, kvs_name: str, folder: str | None) -> dict[str, str]:
    """What ``rank`` needs besides the place to come to, which its agent knows.

    folder: the agent's own on its host, if it could make one.
    """
    env = dict.fromkeys(SEGMENTS, shared(folder)) if folder else {}
    return env | {
        "PMIX_NAMESPACE": kvs_name,
        "PMIX_RANK": str(rank),
        "PMIX_HOSTNAME": hostnames(plan)[plan.ranks[rank].node],
        "PMIX_SECURITY_MODE": "native",
        "PMIX_BFROP_BUFFER_TYPE": "PMIX_BFROP_BUFFER_NON_DESC",
        "PMIX_GDS_MODULE": "hash",
        # the first connection waits until the library is there
        "PMIX_MCA_ptl_base_handshake_wait_time": "60",
        # MPICH 5 does not choose by itself between the two that it finds
        "MPIR_CVAR_PMI_VERSION": "1",
        # Open MPI 4 looks for PMIx only where it knows the launcher; this one sets nothing else
        "JSM_JSRUN_PORT": "1",
    }


@once_a_plan
def hostnames(plan: JobPlan) -> list[str]:
    """A name for each node that PMIx can hold in a list; they are for people, and differ."""
    names: list[str] = []
    taken = set()
    for node in plan.nodes:
        name = re.sub(r"[^A-Za-z0-9._-]", "-", node.host.name)[:60]
        names.append(f"{name}-{node.index}" if name in taken else name)
        taken.add(names[-1])
    return names


def pmix_order(plan: JobPlan, node: int) -> bytes:
    """The order to serve the ranks of ``node``, as a frame."""
    hosts = [
        [name.encode(), list(place.ranks)]
        for name, place in zip(hostnames(plan), plan.nodes, strict=True)
    ]
    return control("pmix", parts=payload.parts(PARTS), node=node, hosts=hosts)
