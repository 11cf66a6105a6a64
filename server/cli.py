"""The command line: ``callgate serve | pull | models | chat | doctor | formats``.

Parsing imports nothing heavy; each verb imports what it needs. A user's mistake is one line on stderr and exit
status 2, a failure one line and 1.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from server.flags import FLAGS, add_flags

VERBS = ("serve", "pull", "models", "chat", "doctor", "formats")
PEERS_VERBS = MappingProxyType(
    {
        "bench": "python -m benchmarks.serving --base-url URL, in the repository, measures any running server",
        "download": "it is callgate pull",
        "list": "it is callgate models",
        "run": "it is callgate chat",
    }
)
"""What users of vLLM, SGLang and Ollama type, and what it is here."""


class OneLineParser(argparse.ArgumentParser):
    """Errors are one line, with the nearest flag where one was mistyped."""

    def error(self, message: str) -> NoReturn:
        prefix, _, rest = message.partition("unrecognized arguments: ")
        if not prefix and rest:
            message += did_you_mean(rest.split()[0].partition("=")[0], [name for flag in FLAGS for name in flag.names])
        self.exit(2, f"{self.prog}: error: {message}\n")


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """`` (did you mean X?)``, "" where nothing known is like ``word``."""
    import difflib

    near = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


class PrintVersion(argparse.Action):
    """``--version``; the metadata is read only then."""

    def __call__(self, parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> NoReturn:
        print(f"callgate {version()}")
        parser.exit()


def version() -> str:
    from importlib import metadata

    try:
        return metadata.version("callgate")
    except metadata.PackageNotFoundError:
        return "unknown (not installed)"


def make_parser() -> OneLineParser:
    parser = OneLineParser(
        prog="callgate", description="Serve language models with function calling.", allow_abbrev=False
    )
    parser.add_argument("--version", action=PrintVersion, nargs=0, help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=OneLineParser)
    serve = verbs.add_parser("serve", help="start the server", allow_abbrev=False)
    serve.add_argument("model", nargs="?", help="the model, as an alternative to --model")
    add_flags(serve)
    pull = verbs.add_parser("pull", help="download a model into the cache")
    pull.add_argument("model", nargs="?", help="alias or hub id; default: the default model")
    verbs.add_parser("models", help="what is known, what is cached, its size")
    chat = verbs.add_parser("chat", help="talk to a model in the terminal; it can call two demo tools")
    chat.add_argument("--url", default="", help="server to talk to; default: the one on port 8000, else a new one")
    chat.add_argument("--model", default="", help="model of a new server, or the name to ask for")
    chat.add_argument("--api-key", default="", help="also CALLGATE_API_KEY")
    verbs.add_parser("doctor", help="what this machine can run, and why not")
    verbs.add_parser("formats", help="tool-call and reasoning formats")
    return parser


def with_verb(argv: Sequence[str]) -> list[str]:
    """``--model X`` without a verb means ``serve --model X``. Another word ends with one line and status 2."""
    if argv and (argv[0] in VERBS or argv[0] in ("-h", "--help", "--version")):
        return list(argv)
    if argv and not argv[0].startswith("-"):
        hint = did_you_mean(argv[0], VERBS) or f"; callgate serve {argv[0]} serves a model of that name"
        if argv[0] in PEERS_VERBS:
            hint = f": {PEERS_VERBS[argv[0]]}"
        make_parser().error(f"no command {argv[0]!r}{hint}; the commands are {', '.join(VERBS)}")
    return ["serve", *argv]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. Returns the exit status."""
    given = sys.argv[1:] if argv is None else argv
    from_module = argv is None and sys.argv[0].endswith("__main__.py")
    if not given and not from_module:
        make_parser().print_help()
        return 2
    arguments = make_parser().parse_args(with_verb(given))
    command = importlib.import_module(f"server.commands.{arguments.verb}")
    try:
        status: int = command.run(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1
    return status
