"""Completion in bash, zsh and fish: ``dispatch completion SHELL`` prints what a shell loads.

The shell then calls ``dispatch`` with ``_DISPATCH_COMPLETE`` and the line up to the cursor, and
``answer`` says what may follow (``completion_words``). Quotes are taken off here, as each shell
would; names of files are left to the shell, which also puts quotes on.

Scripts that were printed by an older dispatch give COMP_WORDS and COMP_CWORD, as click's do; they
are answered as well.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import Literal

from dispatcher.cli.options.declaration import Options, argument
from dispatcher.cli.tools.completion_words import Item, following

#: the line of bash up to the cursor, and the part of its last word that bash will replace: of
#: ``--map-by=no`` what follows the equals sign
_BASH = r"""_dispatch_completion() {
    local kind value files=
    COMPREPLY=()
    while IFS=, read -r kind value; do
        if [ "$kind" = plain ]; then COMPREPLY+=("$value"); else files=$kind; fi
    done < <(_DISPATCH_COMPLETE=bash_complete _DISPATCH_LINE="${COMP_LINE:0:COMP_POINT}" \
        _DISPATCH_WORD="$2" "$1" 2>/dev/null)
    case $files in
        dir) compopt -o filenames; while IFS= read -r value; do COMPREPLY+=("$value")
            done < <(compgen -d -- "$2") ;;
        file) compopt -o filenames; while IFS= read -r value; do COMPREPLY+=("$value")
            done < <(compgen -f -- "$2") ;;
    esac
}
complete -o nosort -F _dispatch_completion dispatch dsx
"""

_ZSH = r"""#compdef dispatch dsx
_dispatch_completion() {
    local -a plain told response
    local kind value text
    response=("${(@f)$(_DISPATCH_COMPLETE=zsh_complete \
        _DISPATCH_LINE="${(j: :)words[1,CURRENT-1]} ${QIPREFIX}${PREFIX}" $words[1] 2>/dev/null)}")
    for kind value text in $response; do
        case $kind in
            plain) if [[ $text == _ ]]; then plain+=("$value"); else told+=("$value:$text"); fi ;;
            dir) _files -/ ;;
            file) _files ;;
        esac
    done
    (( $#told )) && _describe -V words told -U
    (( $#plain )) && compadd -U -V words -a plain
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _dispatch_completion "$@"
else
    compdef _dispatch_completion dispatch dsx
fi
"""

_FISH = r"""function _dispatch_completion
    set -l line (commandline -cp | string collect)
    for one in (_DISPATCH_COMPLETE=fish_complete _DISPATCH_LINE="$line" $argv[1] 2>/dev/null)
        set -l parts (string split -m 1 "," -- $one)
        switch $parts[1]
            case dir
                __fish_complete_directories $parts[2]
            case file
                __fish_complete_path $parts[2]
            case plain
                echo $parts[2]
        end
    end
end
for one in dispatch dsx
    complete --no-files --command $one --arguments "(_dispatch_completion $one)"
end
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
#: longest text that is shown beside a word
_LONGEST = 78
#: stands for what is yet to be typed
_CURSOR = "\0"


def answer(instruction: str) -> int:
    """Answer the shell, which speaks by environment variables; 0 if it was understood.

    instruction: ``bash_complete`` and the like; ``bash_source`` prints the script.
    """
    shell, _, what = instruction.partition("_")
    if shell not in SCRIPTS or what not in ("complete", "source"):
        return 1
    if what == "source":
        sys.stdout.write(SCRIPTS[shell])
        return 0
    words, typed, replaced = _line(shell)
    items = [
        one._replace(value=one.value[replaced:]) if one.kind == "plain" else one
        for one in following(words, typed)
    ]
    sys.stdout.writelines(f"{_shown(shell, one)}\n" for one in items)
    return 0


def _line(shell: str) -> tuple[list[str], str, int]:
    """The words before the one at the cursor, less ``dispatch``; that one, as far as it is typed;
    and how many characters of it the shell will leave as they are.
    """
    line = os.environ.get("_DISPATCH_LINE")
    if line is None:
        return (*_older(shell), 0)
    program, *words = split(line + _CURSOR)
    if os.path.basename(program) == "dsx":
        words.insert(0, "dsx")
    if not words:
        return [], "", 0
    *words, typed = words
    typed = typed.removesuffix(_CURSOR)
    part = "".join(split(os.environ.get("_DISPATCH_WORD", typed)))
    return words, typed, len(typed) - len(part) if typed.endswith(part) else 0


def _older(shell: str) -> tuple[list[str], str]:
    words = split(os.environ.get("COMP_WORDS", ""))
    cursor = os.environ.get("COMP_CWORD", "")
    if shell == "fish":  # which gives the word itself
        typed = "".join(split(cursor)[:1])
        return (words[1:-1] if typed and words[-1:] == [typed] else words[1:]), typed
    at = int(cursor) if cursor.isdigit() else len(words)
    return words[1:at], "".join(words[at : at + 1])


def split(text: str) -> list[str]:
    """The words of ``text`` as a shell sees them; a quote may still be open."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # an open quote: what is in it so far
        words.append(lexer.token)
    return words


def _shown(shell: str, item: Item) -> str:
    text = " ".join(item.told.split())
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    if shell == "bash":
        return f"{item.kind},{item.value}"
    if shell == "fish":
        return f"{item.kind},{item.value}" + (f"\t{text}" if text else "")
    value = item.value.replace(":", r"\:") if text else item.value
    return f"{item.kind}\n{value}\n{text or '_'}"


class CompletionOptions(Options):
    """Print what a shell has to load so that the Tab key completes dispatch's words.

    Commands, options and their values are completed, and names of hosts, groups, jobs and files.
    For zsh, ~/.zfunc has to be in fpath: fpath+=~/.zfunc before compinit in ~/.zshrc.
    """

    examples = (
        (
            "dispatch completion bash > ~/.local/share/bash-completion/completions/dispatch",
            "bash",
        ),
        ("dispatch completion zsh > ~/.zfunc/_dispatch", "zsh"),
        ("dispatch completion fish > ~/.config/fish/completions/dispatch.fish", "fish"),
    )

    shell: Literal["bash", "zsh", "fish"] = argument(required=True)


def completion(options: CompletionOptions) -> int:
    """Print the script; the exit code."""
    sys.stdout.write(SCRIPTS[options.shell])
    return 0
