"""`detent completion`: a script that completes commands, options and names in a shell.

The script is written out from the commands as they are: completing a word starts no Python.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import typer

__all__ = ["completion"]


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(
    context: typer.Context, shell: Annotated[Shell, typer.Argument(help="The shell that will read the script.")]
) -> None:
    """Print a script that completes commands, options, and the names of backends, recipes and CPUs in a shell.

    For bash write it to ~/.local/share/bash-completion/completions/detent, for fish to
    ~/.config/fish/completions/detent.fish, for zsh to a file that ~/.zshrc sources. Write it again when another version
    of Detent, or the package of a target, is installed.

    Example: detent completion bash > ~/.local/share/bash-completion/completions/detent
    """
    root = context.find_root().command
    print(_SCRIPTS[shell](root, _known_values()))


class _Option(NamedTuple):
    names: Sequence[str]
    takes_value: bool
    help: str


def _options(command: Any) -> list[_Option]:
    found = [
        _Option([*parameter.opts, *parameter.secondary_opts], not parameter.is_flag, parameter.help or "")
        for parameter in command.params
        if parameter.param_type_name == "option"
    ]
    return [*found, _Option(["--help", "-h"], False, "Show this message and exit.")]


def _known_values() -> dict[str, list[str]]:
    """What the value of an option may be, where it is one of a list; any other is a file, or is not completed."""
    from detent.cpus import CPUS
    from detent.recipes.builtin import BUILTIN
    from detent.targets import BACKENDS, TARGETS
    from detent.targets.engines import ENGINES

    TARGETS.load_installed()
    return {
        "--backend": sorted(BACKENDS),
        "--cpu": list(CPUS),
        "--engine": sorted(ENGINES),
        "--layout": ["nchw", "nhwc"],
        "--recipe": list(BUILTIN),
    }


def _bash(root: Any, values: Mapping[str, Sequence[str]]) -> str:
    def words(parts: Sequence[str]) -> str:
        return f"choices={shlex.quote(' '.join(parts))} ;;"

    flags = {name: [word for option in _options(each) for word in option.names] for name, each in root.commands.items()}
    lines = [
        "_detent() {",
        '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" choices=""',
        '    case "$before" in',
        *(f"        {option}) {words(known)}" for option, known in values.items()),
        f"        completion) {words(list(Shell))}",
        "    esac",
        '    if [ "$COMP_CWORD" -eq 1 ]; then',
        f"        choices={shlex.quote(' '.join([*root.commands, *(w for o in _options(root) for w in o.names)]))}",
        "    fi",
        '    case "${COMP_WORDS[1]} $word" in',
        *(f"        '{name} -'*) {words(options)}" for name, options in flags.items()),
        "    esac",
        '    COMPREPLY=($(compgen -W "$choices" -- "$word"))',
        "}",
        "complete -o default -F _detent detent",  # default: where nothing fits, files
    ]
    return "\n".join(lines)


def _zsh(root: Any, values: Mapping[str, Sequence[str]]) -> str:
    start = (
        "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\nautoload -Uz bashcompinit && bashcompinit"
    )
    return f"{start}\n{_bash(root, values)}"


def _fish(root: Any, values: Mapping[str, Sequence[str]]) -> str:
    def line(*parts: str) -> str:
        return shlex.join(["complete", "-c", "detent", *parts])

    lines = []
    for name, command in root.commands.items():
        lines.append(line("-f", "-n", "__fish_use_subcommand", "-a", name, "-d", command.get_short_help_str(200)))
        inside = ["-n", f"__fish_seen_subcommand_from {name}"]
        for option in _options(command):
            spelled = [part for word in option.names for part in _fish_name(word)]
            known = next((values[word] for word in option.names if word in values), None)
            # -r takes a value, which may be a file; -x takes one of the list.
            kind = [] if not option.takes_value else ["-r"] if known is None or "--recipe" in option.names else ["-x"]
            listed = [] if known is None else ["-a", " ".join(known)]
            lines.append(line(*inside, *spelled, *kind, *listed, "-d", option.help))
    lines.append(line("-f", "-n", "__fish_seen_subcommand_from completion", "-a", " ".join(Shell)))
    return "\n".join(lines)


def _fish_name(word: str) -> tuple[str, str]:
    """
    >>> _fish_name("--out"), _fish_name("-o")
    (('-l', 'out'), ('-s', 'o'))
    """
    return ("-l", word[2:]) if word.startswith("--") else ("-s", word[1:])


_SCRIPTS: dict[Shell, Callable[[Any, Mapping[str, Sequence[str]]], str]] = {
    Shell.bash: _bash,
    Shell.zsh: _zsh,
    Shell.fish: _fish,
}
