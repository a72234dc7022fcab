"""Renders chat templates in a process of its own, with hard limits on memory, processor time and output.

Run by path, never imported by the package: it must start fast and hold nothing worth stealing, so it knows only the
standard library and jinja2. A template is a program from a stranger; the sandbox stops it from reaching Python, the
limits stop it from eating the machine. Reads and writes frames: 8 bytes of length, then JSON.
"""

import contextlib
import json
import re
import resource
import struct
import sys
from datetime import datetime
from typing import Any, NoReturn

sys.path += sys.argv[1:]  # where jinja2 and markupsafe live; isolated mode hides user installations

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

Json = dict[str, Any]
_MAX_MESSAGE_CHARS = 500


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}`: marks what the assistant wrote, for training; rendering just passes it through."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's interface)

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class Marker:
    """Gives the control tokens in a template's own literals their private spelling.

    So what the template writes can be told from what a user typed, whatever the template does with either.
    `prefix_mark`/`suffix_mark` go to literals that a role name may complete to a control token: '<|' + role + '|>'.
    """

    def __init__(self, spelling: dict[str, str], prefix_mark: str, suffix_mark: str) -> None:
        self._spelling, self._prefix_mark, self._suffix_mark = spelling, prefix_mark, suffix_mark
        tokens = sorted(spelling, key=lambda token: (-len(token), token))
        self._pattern = re.compile("|".join(map(re.escape, tokens))) if tokens else None
        self._prefixes = tuple({token[:size] for token in tokens for size in range(2, len(token))})
        self._suffixes = tuple({token[-size:] for token in tokens for size in range(2, len(token))})
        self.words: set[str] = set()

    def mark(self, text: str) -> str:
        if re.fullmatch(r"\w{1,32}", text):
            self.words.add(text)
        if self._pattern is not None:
            text = self._pattern.sub(lambda match: self._spelling[match.group()], text)
        if text.startswith(self._suffixes):
            text = self._suffix_mark + text
        return text + self._prefix_mark if text.endswith(self._prefixes) else text

    def mark_tree(self, tree: Any) -> None:
        for node in tree.find_all((jinja2.nodes.Const, jinja2.nodes.TemplateData)):
            name = "value" if isinstance(node, jinja2.nodes.Const) else "data"
            if isinstance(getattr(node, name), str):
                setattr(node, name, self.mark(getattr(node, name)))

    def mark_value(self, value: Any) -> Any:
        """Mark control tokens handed in by name (bos_token and the like)."""
        if isinstance(value, list):
            return [self.mark_value(item) for item in value]
        return self._spelling.get(value, value)


class StrftimeNow:
    """The clock of templates: a fixed time, remembering whether it was asked."""

    def __init__(self, now: str) -> None:
        self._now, self.is_used = datetime.fromisoformat(now), False

    def __call__(self, format: str) -> str:
        self.is_used = True
        return self._now.strftime(format)


def raise_exception(message: str) -> NoReturn:
    """What templates call to refuse a conversation."""
    raise jinja2.TemplateError(message)


def dump_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """The `tojson` filter as transformers defines it: no HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def check_printable(value: Any) -> Any:
    """Refuse to print functions and other objects, whose text holds an address that changes from run to run."""
    if isinstance(value, str | int | float | bool | None | jinja2.Undefined):
        return value
    if isinstance(value, dict):
        for pair in value.items():
            check_printable(list(pair))
        return value
    if isinstance(value, list | tuple):
        for item in value:
            check_printable(item)
        return value
    raise jinja2.TemplateError(f"the template prints a {type(value).__name__}, which is not text")


def make_environment() -> Any:
    """The environment of transformers' chat templates, without anything random."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, GenerationTag],
        finalize=check_printable,
    )  # fmt: skip
    environment.filters["tojson"] = dump_json
    environment.globals["raise_exception"] = raise_exception
    for table, name in ((environment.filters, "random"), (environment.globals, "lipsum")):
        table.pop(name, None)
    return environment


class Renderer:
    """Renders one request after another; keeps the last compiled template."""

    def __init__(self) -> None:
        self._environment = make_environment()
        self._key: tuple[Any, ...] = ()
        self._template: Any = None
        self._marker: Any = None

    def render(self, request: Json) -> Json:
        marks = request["marks"]
        key = (request["template"], tuple(marks["spelling"].items()), marks["prefix"], marks["suffix"])
        if key != self._key:
            marker = Marker(marks["spelling"], marks["prefix"], marks["suffix"])
            tree = self._environment.parse(request["template"])
            marker.mark_tree(tree)
            self._template, self._marker, self._key = self._environment.from_string(tree), marker, key
        clock = StrftimeNow(request["now"])
        names = {name: self._marker.mark_value(value) for name, value in request["special_tokens"].items()}
        pieces, size = [], 0
        for piece in self._template.generate(**{"strftime_now": clock, **names, **request["variables"]}):
            size += len(piece)
            if size > request["max_chars"]:
                raise jinja2.TemplateError(f"the output is longer than {request['max_chars']} characters")
            pieces.append(piece)
        words = sorted(self._marker.words)
        return {"text": "".join(pieces), "clock_used": clock.is_used, "words": words}


def limit_process(memory_bytes: int) -> None:
    """No more memory than stated, no files, no children. Open pipes stay usable."""
    limits = {resource.RLIMIT_AS: memory_bytes, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0,
              resource.RLIMIT_NOFILE: 3, resource.RLIMIT_NPROC: 0}  # fmt: skip
    for kind, value in limits.items():
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (value, value))


def limit_seconds(seconds: int) -> None:
    """Have the kernel end this process after `seconds` more of processor time, should nobody else do it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + seconds + 1, hard))


def answer(renderer: Renderer, request: Json) -> Json:
    """Render one request; every failure becomes an answer."""
    try:
        return renderer.render(request)
    except MemoryError:
        return {"error": "it needs more memory than allowed"}
    except RecursionError:
        return {"error": "it nests too deeply"}
    except jinja2.TemplateSyntaxError as error:
        return {"error": f"line {error.lineno}: {error.message}"[:_MAX_MESSAGE_CHARS]}
    except Exception as error:
        name = "" if type(error) is jinja2.TemplateError else f"{type(error).__name__}: "
        return {"error": f"{name}{error}"[:_MAX_MESSAGE_CHARS]}


def load_lazily_imported() -> None:
    """Use once what jinja2 and Python import on first use, before files are forbidden."""
    environment = make_environment()
    datetime(2024, 1, 1).strftime("%d %b %Y")
    for source in (
        "{{ 1 | tojson }}{{ [1] | map('string') | join }}",
        "{% if %}",
        "{{ a.b.c }}",
        "{{ ''.__class__.x }}",
    ):
        with contextlib.suppress(jinja2.TemplateError):
            environment.from_string(source).render()


def serve() -> None:
    """Answer frames from standard input until it closes."""
    renderer, source, sink = Renderer(), sys.stdin.buffer, sys.stdout.buffer
    load_lazily_imported()
    is_limited = False
    while len(head := source.read(8)) == 8:
        request = json.loads(source.read(struct.unpack(">Q", head)[0]))
        if not is_limited:
            limit_process(request["memory_bytes"])
            is_limited = True
        limit_seconds(request["seconds"])
        try:
            reply = json.dumps(answer(renderer, request)).encode("ascii")
        except (MemoryError, RecursionError):
            reply = b'{"error": "it needs more memory than allowed"}'
        sink.write(struct.pack(">Q", len(reply)) + reply)
        sink.flush()


if __name__ == "__main__":
    serve()
