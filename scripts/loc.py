"""``make loc``: lines of code per package, without blank lines and comments."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("server", "engine", "toolcall", "chat_templates", "tests", "benchmarks", "examples", "scripts")
SUFFIXES = {".py": "#", ".cpp": "//", ".h": "//", ".jinja": "{#"}


def count(path: Path) -> int:
    comment = SUFFIXES[path.suffix]
    lines = (line.strip() for line in path.read_text("utf-8", errors="replace").splitlines())
    return sum(1 for line in lines if line and not line.startswith(comment))


def print_parts(root: Path, lines: dict[Path, int]) -> None:
    for part in sorted(path for path in root.iterdir() if path.is_dir()):
        inside = [number for path, number in lines.items() if part in path.parents]
        if inside:
            print(f"  {part.name:26}{len(inside):>7}{sum(inside):>9}")


def main() -> int:
    total = 0
    print(f"{'package':28}{'files':>7}{'lines':>9}")
    for package in PACKAGES:
        files = [path for path in sorted((ROOT / package).rglob("*")) if path.suffix in SUFFIXES]
        lines = {path: count(path) for path in files}
        total += sum(lines.values())
        print(f"{package:28}{len(files):>7}{sum(lines.values()):>9}")
        if package == "engine":
            print_parts(ROOT / package, lines)
    print(f"{'total':28}{'':7}{total:>9}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
