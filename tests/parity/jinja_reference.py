"""Jinja2 set up as transformers sets it up for chat templates. Needs the jinja2 package."""
import datetime
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2025, 7, 10, 12, 0)


class GenerationTracker(jinja2.ext.Extension):
    tags = {"generation"}

    def __init__(self, environment):
        super().__init__(environment)
        environment.extend(spans=[], written=lambda: 0)

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_track"), [], [], body).set_lineno(line)

    def _track(self, caller):
        text = caller()
        start = self.environment.written()
        self.environment.spans.append((start, start + len(text)))
        return text


def make_environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTracker, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    return env


def render(env, template, context):
    """(text, generation spans in characters)."""
    env.spans = []
    blocks = []
    env.written = lambda: sum(len(b) for b in blocks)
    for block in template.generate(**context):
        blocks.append(block)
    return "".join(blocks), list(env.spans)
