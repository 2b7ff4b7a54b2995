"""dispatch: launch one process per GPU on every host over SSH, with one verdict.

A run flows through the folders in this order::

    cli -> plan -> runner -> transport -> agent (on the host) -> ranks
                     |                       |
                    core  <---- events ------+
                     |
                    sinks (screen, files, journal, report)

``plan`` decides where every rank goes before any host is touched, ``core``
decides what to do about each event, ``runner`` and ``transport`` do it,
``sinks`` tell about it. ``agent`` is the part that travels to the hosts.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it; ranks that import ``comm`` need no ``typing``

if TYPE_CHECKING:
    from dispatcher.api.asking import plan_job as plan_job
    from dispatcher.api.asking import request as request
    from dispatcher.api.exec_ import Answer as Answer
    from dispatcher.api.exec_ import Answers as Answers
    from dispatcher.api.exec_ import exec as exec
    from dispatcher.api.reach import Ways as Ways
    from dispatcher.api.report import FailedAttempt as FailedAttempt
    from dispatcher.api.report import FirstFailure as FirstFailure
    from dispatcher.api.report import HostFailure as HostFailure
    from dispatcher.api.report import RankEnding as RankEnding
    from dispatcher.api.report import Report as Report
    from dispatcher.api.report import SpawnedWorld as SpawnedWorld
    from dispatcher.api.running import Line as Line
    from dispatcher.api.running import Running as Running
    from dispatcher.api.running import run as run
    from dispatcher.api.running import start as start
    from dispatcher.errors import DispatchError as DispatchError
    from dispatcher.errors import HostfileError as HostfileError
    from dispatcher.errors import InternalError as InternalError
    from dispatcher.errors import PlanError as PlanError
    from dispatcher.errors import UsageError as UsageError
    from dispatcher.plan.errand import ErrandLimits as ErrandLimits
    from dispatcher.plan.job import JobPlan as JobPlan
    from dispatcher.plan.request import Limits as Limits
    from dispatcher.plan.request import Request as Request
    from dispatcher.plan.restarts import Restarts as Restarts

__version__ = "0.1.0"

#: what a program may use -> the module that has it, loaded when it is asked for
_HOMES = {
    "run": "api.running",
    "start": "api.running",
    "Running": "api.running",
    "Line": "api.running",
    "request": "api.asking",
    "plan_job": "api.asking",
    "exec": "api.exec_",
    "Answers": "api.exec_",
    "Answer": "api.exec_",
    "ErrandLimits": "plan.errand",
    "Ways": "api.reach",
    "Report": "api.report",
    "FirstFailure": "api.report",
    "RankEnding": "api.report",
    "HostFailure": "api.report",
    "SpawnedWorld": "api.report",
    "FailedAttempt": "api.report",
    "Request": "plan.request",
    "Limits": "plan.request",
    "Restarts": "plan.restarts",
    "JobPlan": "plan.job",
    "DispatchError": "errors",
    "UsageError": "errors",
    "HostfileError": "errors",
    "PlanError": "errors",
    "InternalError": "errors",
}


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
