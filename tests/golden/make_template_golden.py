#!/usr/bin/env python3
"""Fills template_golden.json: expressions and small templates with the text that jinja2 gives in
transformers' environment.

usage: make_template_golden.py template_golden.json
       (pip install jinja2==3.1.6 transformers==5.23.0)

The file holds the variables and the templates; a new case needs `template` alone. `right` becomes
the text, or null where jinja2 raises an error: then Baton refuses too. A case whose text has an
address of Python in it is refused by this script.
"""

import datetime
import functools
import json
import sys

import jinja2
import transformers
import transformers.utils.chat_template_utils as utils

assert (jinja2.__version__, transformers.__version__) == ("3.1.6", "5.23.0")
NOW = 1753488000  # 2025-07-26 00:00:00 UTC


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(2025, 7, 26)


utils.datetime = Clock


@functools.lru_cache(maxsize=4)
def compiled(source):
    return utils._cached_compile_jinja_template(source)


def render(source, variables):
    try:
        return compiled(source).render(**variables)
    except Exception:
        return None


def main():
    path = sys.argv[1]
    with open(path, encoding="utf-8") as file:
        golden = json.load(file)
    cases = golden.pop("cases")
    for case in cases:
        case["right"] = render(case["template"], golden["variables"])
        assert " at 0x" not in (case["right"] or ""), case
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(golden)[:-1] + ', "cases": [\n')
        file.write(",\n".join(json.dumps(case) for case in cases) + "\n]}\n")


if __name__ == "__main__":
    main()
