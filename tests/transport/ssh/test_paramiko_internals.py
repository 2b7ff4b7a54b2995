"""Every name inside paramiko that we rely on: all in one file, and all there in this release."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from cases import cases

from dispatcher.transport.ssh import paramiko_transport

paramiko_transport.preload()
import paramiko  # noqa: E402 - paramiko is imported by preload alone
import paramiko.auth_handler  # noqa: E402
import paramiko.kex_gex  # noqa: E402
import paramiko.kex_group14  # noqa: E402
import paramiko.packet  # noqa: E402

ROOT = Path(__file__).parents[3]
ROOM = ROOT / "dispatcher" / "transport"
INTERNALS = ROOM / "ssh" / "paramiko_internals.py"

CLASSES = {
    "Transport": paramiko.Transport,
    "Channel": paramiko.Channel,
    "Packetizer": paramiko.packet.Packetizer,
    "AuthHandler": paramiko.auth_handler.AuthHandler,
    "ChannelMap": paramiko.transport.ChannelMap,
    "KexGroup14SHA256": paramiko.kex_group14.KexGroup14SHA256,
    "KexGexSHA256": paramiko.kex_gex.KexGexSHA256,
}

#: our classes that are derived from them, or from one another: what is theirs is paramiko's as well
OURS = {"Connection", "SshChannel", "BoundedPacketizer", "Login"}

#: private names that ``paramiko_internals`` overrides or calls, by the class that has them
PRIVATE = {
    "Transport": """
        _active_check_timeout _channel_handler_table _channels _check_banner _cipher_info
        _filter_algorithm _kex_info _key_info _log _mac_info _next_channel
        _parse_channel_open_failure _parse_debug _parse_disconnect _parse_ext_info
        _parse_newkeys _parse_request_failure _parse_request_success _really_parse_kex_init
        _send_message
        _send_user_message _unlink_channel _verify_key
    """,
    "Channel": """
        _check_add_window _close_internal _event_pending _handle_close _log _send
        _send_eof
        _set_closed _set_transport _set_window _wait_for_send_window
    """,
    "Packetizer": "_Packetizer__write_lock _check_keepalive _log",
    "AuthHandler": """
        _finalize_pubkey_algorithm _get_key_type_and_bits _get_session_blob _parse_service_accept
        _parse_userauth_failure _parse_userauth_info_request _request_auth
    """,
    "KexGroup14SHA256": "_generate_x",
    "KexGexSHA256": "_generate_x _parse_kexdh_gex_group",
}

#: names without an underscore that paramiko documents nowhere, or not as what we take them for
UNDOCUMENTED = {
    "Transport": """
        active auth_handler channel_events channels_seen clear_to_send clear_to_send_lock
        clear_to_send_timeout initial_kex_done lock packetizer preferred_keys remote_version run
        saved_exception server_extensions stop_thread
    """,
    "Channel": """
        active chanid closed event event_ready in_buffer in_stderr_buffer in_window_threshold lock
        out_window_size remote_chanid status_event timeout transport
    """,
    "Packetizer": "close read_all read_message start_handshake",
    "AuthHandler": """
        auth_event auth_interactive auth_method auth_none auth_password auth_publickey authenticated
        password private_key transport username
    """,
    "ChannelMap": "delete get put",
    "KexGroup14SHA256": "name x",
    "KexGexSHA256": "max_bits min_bits name x",
}


def named(table: dict[str, str]) -> list[tuple[str, str]]:
    return [(owner, name) for owner, names in table.items() for name in names.split()]


@functools.cache
def instance_names(owner: type) -> set[str]:
    """What the methods of a class set on ``self``."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    names = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
            continue
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            hidden = node.attr.startswith("__") and not node.attr.endswith("__")
            names.add(f"_{owner.__name__}{node.attr}" if hidden else node.attr)
    return names


@cases(("owner", "name"), [*named(PRIVATE), *named(UNDOCUMENTED)])
def test_this_paramiko_has_the_name(owner: str, name: str) -> None:
    found = hasattr(CLASSES[owner], name) or name in instance_names(CLASSES[owner])
    assert found, (
        f"paramiko {paramiko.__version__} has no {owner}.{name} any more. "
        f"See what took its place, change {INTERNALS.name}, and raise the bound in pyproject.toml."
    )


def private_names(tree: ast.AST) -> Iterator[str]:
    """Names that the source looks up, or defines in classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            for line in node.body:
                if isinstance(line, ast.Assign):
                    yield from (one.id for one in line.targets if isinstance(one, ast.Name))


def without_classes_of_our_own(tree: ast.AST) -> ast.AST:
    """The source, less what a class that is not derived from paramiko's does with itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            if bases & OURS:
                continue
            for inner in ast.walk(node):
                if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):
                    if inner.value.id in ("self", "cls"):
                        inner.attr = "ours"
                elif isinstance(inner, ast.FunctionDef):
                    inner.name = "ours"
    return tree


@functools.cache
def paramikos() -> set[str]:
    """Every private name of the classes that we derive from or call."""
    names = {name for one in CLASSES.values() for name in {*dir(one), *instance_names(one)}}
    return {name for name in names if name.startswith("_") and not name.endswith("__")}


def in_internals() -> set[str]:
    tree = ast.parse(INTERNALS.read_text(encoding="utf-8"))
    return set(private_names(tree))


def test_the_list_has_every_private_name() -> None:
    assert in_internals() & paramikos() == {name for _, name in named(PRIVATE)}


@cases(
    "path",
    [path for path in sorted(ROOM.rglob("*.py")) if path != INTERNALS],
    ids=lambda path: str(path.relative_to(ROOM)),
)
def test_no_other_file_uses_one(path: Path) -> None:
    tree = without_classes_of_our_own(ast.parse(path.read_text(encoding="utf-8")))
    assert not set(private_names(tree)) & paramikos()


def test_a_file_that_uses_one_is_seen() -> None:
    for source in (
        "class Session(Connection):\n    def _log(self): ...",
        "class Session(Connection):\n    def end(self): self._channels.clear()",
        "class Link:\n    def end(self): self._session._unlink_channel(1)",
        "def end(channel): channel._set_closed()",
    ):
        tree = without_classes_of_our_own(ast.parse(source))
        assert set(private_names(tree)) & paramikos(), source


def test_no_name_of_ours_hides_one_of_paramikos() -> None:
    from dispatcher.transport.ssh import paramiko_internals, session

    allowed = {name for _, name in named(PRIVATE)}
    for module in (paramiko_internals, session):
        for ours in derived_classes(module):
            hidden = {*vars(ours), *instance_names(ours)} & paramikos() - allowed
            assert not hidden, f"{ours.__name__}: {hidden}"


def derived_classes(module: ModuleType) -> Iterator[type]:
    for one in vars(module).values():
        known = isinstance(one, type) and issubclass(one, tuple(CLASSES.values()))
        if known and one.__module__ == module.__name__:
            yield one


# -- the bound -------------------------------------------------------------------------------


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def test_the_dependency_ends_after_the_release_that_is_tested() -> None:
    """A minor release may move a private name: none is installed before it was tried."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    bounds = re.search(r'"paramiko>=([\d.]+),<([\d.]+)"', project)
    pinned = re.search(
        r"^paramiko==([\d.]+)$", (ROOT / "scripts/packages/constraints.txt").read_text(), re.M
    )
    assert bounds is not None, "pyproject.toml: paramiko needs a lower and an upper bound"
    assert pinned is not None, "scripts/packages/constraints.txt: paramiko is not pinned"
    major, minor = version(pinned[1])[:2]
    assert version(bounds[2]) == (major, minor + 1), "raise the pin and the bound together"
    installed = importlib.metadata.version("paramiko")
    assert version(bounds[1]) <= version(installed) < version(bounds[2])
