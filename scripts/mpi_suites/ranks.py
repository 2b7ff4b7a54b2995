"""What each rank of ``mpi_suites`` runs: mpi4py's tests, and how each of them went.

    ranks.py FOLDER MAIN [ARGUMENTS]

MAIN is ``test/main.py`` of mpi4py's source. In FOLDER each rank writes a file of its own, a line
when a test begins and one when it has ended, so what is known survives a rank that is killed.
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, TextIO

FOLDER, MAIN = sys.argv[1:3]


class Told(unittest.TextTestResult):
    """A result that writes down each word of it at once."""

    file: TextIO | None = None

    def tell(self, what: str, test: unittest.TestCase) -> None:
        if self.file is None:
            from mpi4py import MPI

            path = Path(FOLDER, f"rank-{MPI.COMM_WORLD.rank}")
            self.file = path.open("w", encoding="utf-8", buffering=1)
        self.file.write(f"{what} {test.id()}\n")

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.tell("begun", test)

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.tell("ok", test)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self.tell("skipped", test)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self.tell("failed", test)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self.tell("failed", test)

    def addSubTest(self, test: unittest.TestCase, subtest: Any, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.tell("failed", test)


if __name__ == "__main__":
    tempfile.tempdir = os.path.dirname(
        FOLDER
    )  # hosts have a /tmp each; files are opened by all ranks
    unittest.TextTestRunner.resultclass = Told  # type: ignore[assignment]
    sys.argv = [MAIN, *sys.argv[3:]]
    sys.path[0] = os.path.dirname(MAIN)
    runpy.run_path(MAIN, run_name="__main__")
