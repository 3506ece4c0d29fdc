"""Where the time of a trace went, by program and by the decoder's named scopes or by operation.

    rvchat bench --profile DIR ...
    python tests/bench/engine_profile.py [--by scope|operation] [--top N] DIR

Times are what operations took on all threads together, in milliseconds, without what waits for others (loops, calls,
conditionals); on a machine that others use they include being interrupted, so read their shares. Scopes come from the
programs that a trace holds: xplane.pb and HloProto are read by their field numbers (tsl/profiler/protobuf/xplane.proto
and xla/service/hlo.proto of OpenXLA).
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from jax.profiler import ProfileData

CONTAINERS = re.compile(r"^(while|call|conditional|cond|wrapped_while)\b|ThunkExecutor")
SCOPES = re.compile(r"\b(embed|attention|mlp|per_layer_embedding|head|sample|write_pages|experts|nll)\b")
# What JAX puts around everything, which says nothing.
WRAPPERS = re.compile(r"^(jit\(|while$|body$|cond$|closed_call$|branch_\d|platform_index)")


def fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The length-delimited fields of a protocol buffer's message: number and content."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = varint()
        match tag & 7:
            case 0:
                varint()
            case 1:
                at += 8
            case 5:
                at += 4
            case 2:
                length = varint()
                yield tag >> 3, data[at : at + length]
                at += length
            case kind:
                raise ValueError(f"a field of kind {kind}")


def inside(data: memoryview, *path: int) -> Iterator[memoryview]:
    """What stands at a path of field numbers."""
    if not path:
        yield data
        return
    for number, content in fields(data):
        if number == path[0]:
            yield from inside(content, *path[1:])


def scopes(trace: bytes) -> dict[tuple[str, str], str]:
    """(program, operation) -> the path of scopes that it was written in."""
    found = {}
    for plane in inside(memoryview(trace), 1):
        for metadata in inside(plane, 4, 2):  # event metadata that hold a program in a stat's bytes
            for module in inside(metadata, 5, 6, 1):
                program = next((bytes(name).decode() for name in inside(module, 1)), "")
                for instruction in inside(module, 3, 2):
                    name = next((bytes(name).decode() for name in inside(instruction, 1)), "")
                    path = next((bytes(path).decode() for path in inside(instruction, 7, 2)), "")
                    found[program, name] = path
    return found


def told(path: str, by: str) -> str:
    if by == "scope":
        return next(reversed(SCOPES.findall(path)), "no scope")
    return "/".join(part for part in path.split("/") if not WRAPPERS.match(part)) or "?"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--by", choices=("scope", "operation"), default="scope")
    parser.add_argument("--top", type=int, default=20)
    options = parser.parse_args()
    file = max(options.folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    raw = file.read_bytes()
    paths = scopes(raw)
    times: dict[str, Counter[str]] = defaultdict(Counter)
    calls: dict[str, Counter[str]] = defaultdict(Counter)
    for plane in ProfileData.from_serialized_xspace(raw).planes:
        for line in plane.lines:
            for event in line.events:
                stats = dict(event.stats)
                operation, program = stats.get("hlo_op"), str(stats.get("hlo_module", ""))
                if not operation or CONTAINERS.search(event.name) or event.name.startswith("end: "):
                    continue
                path = paths.get((program, str(operation)), "")
                what = told(path, options.by)
                if options.by == "operation":
                    what = f"{operation}  {what}"
                times[program][what] += event.duration_ns
                calls[program][what] += 1
    for program, spent in times.items():
        total = sum(spent.values())
        print(f"\n{program}: {total / 1e6:,.1f} ms")
        for what, duration in spent.most_common(options.top):
            print(f"{duration / 1e6:10,.1f} {duration / total:6.1%} {calls[program][what]:7,}  {what[:150]}")


if __name__ == "__main__":
    main()
