"""The container that a command's options name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dispatcher.cli.options.host_options import ContainerOptions
from dispatcher.model.errors import ConflictingOptions

if TYPE_CHECKING:
    from dispatcher.transport.container.engines import Container


def container_of(
    options: ContainerOptions, run_id: str | None = None, folders: Iterable[str] = ()
) -> Container | None:
    """The container of the options; None without an image. Raises: UsageError.

    Without ``run_id`` it gets a new one, without ``folders`` the folder of the options.
    """
    if options.container_image is None:
        for name, given in (
            ("--mount", options.mounts),
            ("--container-arg", options.container_args),
            ("--container-engine", options.container_engine != "auto"),
        ):
            if given:
                why = f"{name} needs --container-image"
                raise ConflictingOptions(why, hint="--container-image IMAGE")
        return None
    from dispatcher.api.request import cwd_of
    from dispatcher.model.paths import new_run_id
    from dispatcher.transport.container import engines

    here = cwd_of(getattr(options, "chdir", None))
    image = options.container_image
    if image.startswith(("./", "../")):
        image = os.path.normpath(os.path.join(cwd_of(None), image))
    return engines.Container(
        image, run_id or new_run_id(), options.container_engine, tuple(folders) or (here,),
        tuple(map(engines.parse_mount, options.mounts)), options.container_args,
    )  # fmt: skip
