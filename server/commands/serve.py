"""``callgate serve``: check everything that can be checked in a moment, then load, then serve."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass

import msgspec
import uvloop

from engine.config import EngineConfig
from engine.launch import EngineStartError, run_worker_node
from engine.logs import open_standard_streams
from engine.model_store import DEFAULT_MODEL, ModelStoreError, resolve
from engine.shutdown import EngineFailed, run_until_signal
from server.args import ServerArgs, load_keys
from server.commands.progress import PullDisplay
from server.descriptors import raise_descriptor_limit
from server.flags import fields_of
from server.logs import set_up_logging
from server.memory import return_large_blocks
from server.run import PortInUse, bind, serve


class StartRefused(Exception):
    """A setting is wrong; the message is one line."""


@dataclass(frozen=True)
class Settings:
    engine: EngineConfig
    server: ServerArgs
    drain_timeout: float


def run(arguments: argparse.Namespace) -> int:
    open_standard_streams()
    raise_descriptor_limit()
    return_large_blocks()
    try:
        settings = make_settings(arguments)
    except (StartRefused, ValueError, OSError) as error:
        return _fail(error, 2)
    try:
        set_up_logging(settings.server.log_level)
        if settings.engine.node_rank > 0:
            config = find_model(settings.engine)
            uvloop.run(run_until_signal(lambda stop: run_worker_node(config, stop)))
            return 0
        with bind(settings.server.host, settings.server.port) as sock:
            config = find_model(settings.engine)
            serving = serve(config, settings.server, sock, drain_timeout=settings.drain_timeout, on_ready=_show)
            uvloop.run(serving)
    except (PortInUse, ModelStoreError, EngineStartError, EngineFailed, ValueError, OSError) as error:
        return _fail(error, 1)
    return 0


def make_settings(arguments: argparse.Namespace) -> Settings:
    """The command line as frozen settings, with names of templates and parsers checked."""
    engine, server, own = (fields_of(arguments, part) for part in ("engine", "server", "run"))
    if arguments.model and engine.get("model", arguments.model) != arguments.model:
        raise StartRefused("the model is given twice")
    engine.setdefault("model", arguments.model or DEFAULT_MODEL)
    names = own.get("served_model_name", ())
    level = own.get("log_level", "info")
    keys = load_keys(own.get("api_key", ()), file=own.get("api_key_file", ""), variable="CALLGATE_API_KEY")
    admin = load_keys(own.get("admin_api_key", ()), variable="CALLGATE_ADMIN_API_KEY")
    engine |= {"served_model_name": names[0] if names else "", "log_level": level}
    server |= {"served_model_names": names, "log_level": level, "api_keys": keys, "admin_keys": admin}
    settings = Settings(EngineConfig(**engine), ServerArgs(**server), own.get("drain_timeout", 30.0))
    check_names(settings.server)
    return settings


def check_names(args: ServerArgs) -> None:
    """Fail on a wrong template or parser before a model is loaded. Raises ValueError (TemplateError is one)."""
    if args.chat_template:
        from chat_templates import choose_template

        choose_template(None, (), args.chat_template)
    if args.tool_call_parser not in ("", "auto", "none"):
        from toolcall.registry import get_format

        get_format(args.tool_call_parser)
    if args.reasoning_parser not in ("", "auto", "none"):
        from toolcall.registry import get_reasoning

        get_reasoning(args.reasoning_parser)


def find_model(config: EngineConfig) -> EngineConfig:
    """The same settings with ``model`` as a path (pulled first where needed) and a name to serve it under."""
    with PullDisplay(config.model) as display:
        found = resolve(config.model, observer=display)
    return msgspec.structs.replace(
        config, model=str(found.path), served_model_name=config.served_model_name or found.name
    )


def _show(text: str) -> None:
    """Print the banner. A server whose output nobody can take serves all the same."""
    try:
        print(text, flush=True)
    except OSError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # what is still buffered must not fail at exit


def _fail(error: Exception, status: int) -> int:
    line = " ".join(str(error).split()) or type(error).__name__
    print(f"callgate serve: {line}", file=sys.stderr)
    return status
