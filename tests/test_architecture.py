"""Who may import whom, and what nobody may call. See docs/architecture.md."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.source_tree import ALL, PACKAGES, Source, imports, sources

ALLOWED_FROM_OUTSIDE = {
    "chat_templates": (),
    "toolcall": ("engine.messages",),
    "server": (
        "toolcall",
        "chat_templates",
        "engine.messages",
        "engine.sampling_params",
        "engine.config",
        "engine.client",
        "engine.launch",
        "engine.logs",
        "engine.shutdown",
        "engine.model_store",
        "engine.grammar",
        "engine.text.tokenizer",
        "engine.platform.host",
        "engine.platform.modules",
        "engine.kernels.cpu.build",
    ),
    "engine": (),
}
"""What a package may import of the others. ``engine.grammar`` is there for checking client grammars early,
``platform.host`` and ``kernels.cpu.build`` for ``callgate doctor``, ``platform.modules`` for ``callgate chat``."""

CONTRACTS = (
    "engine.messages",
    "engine.sampling_params",
    "engine.config",
    "engine.client",
    "engine.child",
    "engine.text.tokenizer",
    "engine.grammar.interface",
    "engine.scheduler.req",
    "engine.scheduler.batch",
    "engine.executor.executor",
    "engine.executor.forward_batch",
)
"""Data and protocols that layers hand to each other: every layer of engine may import these."""

LEVELS = (
    {"weights", "platform", "kernels", "model_store", "ipc", "distributed", "kv_cache", "speculative"},
    {"text"},
    {"quantization", "grammar", "attention", "sampling"},
    {"layers"},
    {"models"},
    {"executor", "scheduler"},
)
"""Inside engine, lowest first. What is not named (processes, launch, managers) stands above all of them."""

TORCH_FREE = (
    "server",
    "toolcall",
    "chat_templates",
    "engine.scheduler",
    "engine.kv_cache",
    "engine.sampling",
    "engine.grammar",
    "engine.speculative",
    "engine.text",
    "engine.model_store",
    "engine.launch",
    "engine.tokenizer_manager",
    "engine.detokenizer_manager",
    "engine.executor.native_executor",
    "engine.executor.hash_lm",
    "engine.executor.forward_batch",
)

ONLY_IN = {
    "fastapi": ("server",),
    "starlette": ("server",),
    "pydantic": ("server",),
    "prometheus_client": ("server",),
    "jinja2": ("chat_templates.sandbox",),
    "zmq": ("engine.ipc", "engine.supervisor", "engine.model_process", "engine.detokenizer_process"),
    "llguidance": ("engine.grammar",),
    "xgrammar": ("engine.grammar",),
}
"""Third-party packages that belong to one part."""

ONE_FILE = ("huggingface_hub", "vllm_flash_attn", "vllm", "flash_attn", "ray", "xgrammar")
"""Optional packages: imported in one file at most, inside a function, so that they may be missing."""

TORCH_CUDA = ("engine.platform", "engine.kernels", "engine.attention")


def starts(module: str, prefixes: tuple[str, ...]) -> bool:
    return any(module == prefix or module.startswith(prefix + ".") for prefix in prefixes)


def ours(source: Source) -> Iterator[tuple[str, int]]:
    for module, line in imports(source):
        if module.split(".")[0] in PACKAGES:
            yield module, line


def level(module: str) -> int:
    part = module.split(".")[1] if "." in module else ""
    return next((number for number, names in enumerate(LEVELS) if part in names), len(LEVELS))


def test_packages_import_only_what_they_may() -> None:
    wrong = []
    for source in sources():
        package = source.module.split(".")[0]
        for module, line in ours(source):
            if module.split(".")[0] != package and not starts(module, ALLOWED_FROM_OUTSIDE[package]):
                if module == "engine" or any(a.startswith(module + ".") for a in ALLOWED_FROM_OUTSIDE[package]):
                    continue  # the parent of a name that is imported from it on the same line
                wrong.append(f"{source.path}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_inside_engine_imports_go_downward() -> None:
    wrong = []
    for source in sources(("engine",)):
        for module, line in ours(source):
            if module == "engine" or starts(module, CONTRACTS) or any(c.startswith(module + ".") for c in CONTRACTS):
                continue
            same = source.module.startswith(".".join(module.split(".")[:2]))
            above = level(source.module) == len(LEVELS)
            if not (same or above or level(module) < level(source.module)):
                wrong.append(f"{source.path}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_torch_is_imported_only_where_tensors_are() -> None:
    wrong = [
        f"{source.path}:{line} imports {module}"
        for source in sources()
        if starts(source.module, TORCH_FREE)
        for module, line in imports(source)
        if module.split(".")[0] in ("torch", "transformers", "triton")
    ]
    assert not wrong, "\n".join(wrong)


def test_torch_cuda_is_named_only_in_its_layers() -> None:
    wrong = [
        f"{source.path}:{node.lineno}"
        for source in sources()
        if not starts(source.module, TORCH_CUDA)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and node.attr == "cuda" and ast.unparse(node.value) == "torch"
    ]
    assert not wrong, "\n".join(wrong)


def test_third_party_packages_stay_in_their_part() -> None:
    wrong = [
        f"{source.path}:{line} imports {module}"
        for source in sources()
        for module, line in imports(source)
        if module.split(".")[0] in ONLY_IN and not starts(source.module, ONLY_IN[module.split(".")[0]])
    ]
    assert not wrong, "\n".join(wrong)


def test_optional_packages_are_in_one_file_and_lazy() -> None:
    for package in ONE_FILE:
        users = {s.path for s in sources() for module, _ in imports(s) if module.split(".")[0] == package}
        assert len(users) <= 1, f"{package}: {users}"
        for source in sources():
            top = {name.split(".")[0] for node in source.tree.body for name in _names(node)}
            assert package not in top, f"{source.path} imports {package} at its top"


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


FORBIDDEN_CALLS = ("eval", "exec", "os.system", "torch.load", "yaml.load", "__import__", "marshal.loads", "os.popen")
FORBIDDEN_IMPORTS = ("pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal", "joblib")


def test_nothing_runs_text_or_unpickles() -> None:
    wrong = []
    for source in sources(ALL):
        wrong += [
            f"{source.path}:{line} imports {module}"
            for module, line in imports(source)
            if module.split(".")[0] in FORBIDDEN_IMPORTS
        ]
        wrong += [f"{source.path}:{line} {what}" for what, line in _forbidden_calls(source)]
    assert not wrong, "\n".join(wrong)


def _forbidden_calls(source: Source) -> Iterator[tuple[str, int]]:
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in (*FORBIDDEN_CALLS, "compile", "builtins.compile"):
            yield f"calls {name}", node.lineno
        for keyword in node.keywords:
            on = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
            if keyword.arg in ("shell", "trust_remote_code", "allow_pickle") and on:
                yield f"passes {keyword.arg}=True", node.lineno


WALL_CLOCK = {
    "chat_templates/sandbox.py::_strftime_now": "templates print the date",
    "engine/runner.py::_hash_lm": "created",
    "engine/runner.py::_runner": "created",
    "server/commands/chat.py::run_tool": "a tool that tells the time",
    "server/middleware.py::access_line": "the log's time",
    "server/ollama/lines.py::answer": "created_at",
    "server/openai/chat.py::_style": "created",
    "server/openai/completions.py::_style": "created",
    "server/openai/responses/conversations.py::create": "created_at",
    "server/openai/responses/events.py::ended": "completed_at",
    "server/openai/responses/handler.py::_fields": "created",
}
"""Where the wall clock is read, and for what it is shown. Deadlines and order use time.monotonic."""
CLOCKS = ("time.time", "time.time_ns", "datetime.now", "datetime.datetime.now", "datetime.utcnow", "datetime.today")


def test_logic_reads_no_wall_clock() -> None:
    found = {
        f"{source.path}::{function.name}"
        for source in sources()
        for function in ast.walk(source.tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in CLOCKS
    }
    assert found == set(WALL_CLOCK), "show it, and name it here; or use time.monotonic"


@pytest.mark.parametrize(
    "modules",
    [
        "server.run, server.app, server.commands.serve",
        "toolcall, toolcall.registry",
        "chat_templates",
        "engine.detokenizer_process",
        "engine.scheduler.scheduler, engine.executor.hash_lm, engine.model_process",
    ],
)
def test_light_processes_load_no_torch(modules: str) -> None:
    program = f"import sys, {modules}\nsys.exit(1 if {{'torch', 'transformers'}} & set(sys.modules) else 0)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("server.commands.serve", "fastapi, starlette, uvicorn, pydantic, jinja2, numpy, httpx, rich, toolcall"),
        ("server.gateway", "numpy, httpx, rich"),
        ("engine.detokenizer_process", "numpy, httpx, tokenizers, jinja2"),
        ("engine.model_process", "httpx, tokenizers, jinja2, llguidance"),
    ],
)
def test_a_start_waits_for_no_import_that_it_does_not_need(module: str, absent: str) -> None:
    """``serve`` starts the engine's processes before it imports the web framework, which takes longer than all else."""
    names = set(absent.split(", "))
    program = f"import sys, {module}\nprint(*({names!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert not found.split()
