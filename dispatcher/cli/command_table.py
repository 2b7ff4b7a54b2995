"""Every command, and the module that has it."""

from __future__ import annotations

#: command -> the module of this package that has its ``main``; loaded when it is called
COMMANDS = {
    "run": "run.run",
    "exec": "exec.exec",
    "check": "checks.check",
    "connect": "exec.connect",
    "jobs": "jobs.jobs",
    "attach": "jobs.attach",
    "logs": "jobs.logs",
    "stop": "jobs.stop",
    "top": "jobs.top",
    "stacks": "jobs.stacks",
    "kill": "jobs.kill",
    "sweep": "jobs.sweep",
    "get": "exec.get",
    "report": "tools.report",
    "config": "tools.config",
    "completion": "tools.completion",
    "man": "tools.man",
    "hosts": "tools.hosts",
    "import": "tools.import_",
    "fold": "tools.fold",
    "put": "exec.put",
    "shell": "exec.shell",
}
