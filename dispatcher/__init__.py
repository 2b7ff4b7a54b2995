"""dispatch: start one process per GPU on every host over SSH, with one verdict.

::

    cli, api          what you asked for, as typed options
       |
     plan             what will run where: complete before any host is touched
       |
    runner  ------>  transport  ====>  agent  ---->  ranks        (on every host)
       |   actions      (a link)         |             |
     core  <--------- events ------------+-- output ---+
       |
    output            screen, log files, journal, report

``core`` decides and does nothing else, ``runner`` and ``transport`` do what it says,
``output`` tells about it. ``remote`` is all that travels to hosts, the agent first of all;
``bootstrap`` gets it there. ``model`` has the values that all rooms speak. ``checks``
judges hosts before a run, ``transfer`` is for files, ``jobs`` for what goes on in the
background, and ``comm`` is for use inside ranks.

docs/design/README.md has the tree, three walks through the files, and the reasons.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it; ranks that import ``comm`` need no ``typing``

if TYPE_CHECKING:
    from dispatcher.api.report import FailedAttempt as FailedAttempt
    from dispatcher.api.report import FirstFailure as FirstFailure
    from dispatcher.api.report import HostFailure as HostFailure
    from dispatcher.api.report import RankEnding as RankEnding
    from dispatcher.api.report import Report as Report
    from dispatcher.api.report import SpawnedWorld as SpawnedWorld
    from dispatcher.api.request import plan_job as plan_job
    from dispatcher.api.request import request as request
    from dispatcher.api.run import Answer as Answer
    from dispatcher.api.run import Answers as Answers
    from dispatcher.api.run import Line as Line
    from dispatcher.api.run import Running as Running
    from dispatcher.api.run import exec as exec
    from dispatcher.api.run import run as run
    from dispatcher.api.run import run_async as run_async
    from dispatcher.api.run import start as start
    from dispatcher.api.transports import Ways as Ways
    from dispatcher.model.errors import DispatchError as DispatchError
    from dispatcher.model.errors import HostfileError as HostfileError
    from dispatcher.model.errors import InternalError as InternalError
    from dispatcher.model.errors import PlanError as PlanError
    from dispatcher.model.errors import UsageError as UsageError
    from dispatcher.model.errors import WrongArgument as WrongArgument
    from dispatcher.output.exec.host_results import HostResult as HostResult
    from dispatcher.plan.exec_plan import ExecLimits as ExecLimits
    from dispatcher.plan.job.job_plan import JobPlan as JobPlan
    from dispatcher.plan.job.parts import Part as Part
    from dispatcher.plan.job.request import Limits as Limits
    from dispatcher.plan.job.request import Request as Request
    from dispatcher.plan.job.request import Restarts as Restarts

__version__ = "0.2.0"

#: what a program may use -> the module that has it, loaded when it is asked for
_HOMES = {
    "run": "api.run",
    "run_async": "api.run",
    "start": "api.run",
    "Running": "api.run",
    "Line": "api.run",
    "request": "api.request",
    "plan_job": "api.request",
    "exec": "api.run",
    "Answers": "api.run",
    "Answer": "api.run",
    "HostResult": "output.exec.host_results",
    "ExecLimits": "plan.exec_plan",
    "Ways": "api.transports",
    "Report": "api.report",
    "FirstFailure": "api.report",
    "RankEnding": "api.report",
    "HostFailure": "api.report",
    "SpawnedWorld": "api.report",
    "FailedAttempt": "api.report",
    "Request": "plan.job.request",
    "Part": "plan.job.parts",
    "Limits": "plan.job.request",
    "Restarts": "plan.job.request",
    "JobPlan": "plan.job.job_plan",
    "DispatchError": "model.errors",
    "UsageError": "model.errors",
    "HostfileError": "model.errors",
    "PlanError": "model.errors",
    "InternalError": "model.errors",
    "WrongArgument": "model.errors",
}


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
