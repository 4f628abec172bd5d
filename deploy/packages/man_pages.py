"""Man pages of section 1, made from what the program says to --help: one for `baton` and one for
each subcommand. The --help texts stay the only place where a flag is described."""

import datetime
import re

# A flag or argument with the type of its value, and its text, which may stand on the next line.
HEAD = re.compile(r"^  (-{0,2}\S+(?: (?:TEXT|INT)\S*)?(?: \.\.\.)?) *(.*)$")


def escape(text):
    """`text` as roff prints it literally."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def _option(syntax, about):
    names, _, value = syntax.partition(" ")
    lines = [".TP", f".B {escape(names)}" + (f" \\fR{escape(value)}" if value else "")]
    return lines + [escape(about) if about else "\\&"]


def _body(lines):
    """The roff of everything after the line of usage."""
    out = []
    pending = None  # [syntax, about]
    for line in [*lines, ""]:
        text = line.strip()
        head = HEAD.match(line) if not line.startswith("   ") else None
        if pending and line.startswith("   ") and text:
            pending[1] = f"{pending[1]} {text}".strip()
            continue
        if pending:
            out += _option(*pending)
            pending = None
        if head is not None:
            pending = [head.group(1), head.group(2)]
        elif text.endswith(":") and not line.startswith(" "):
            out.append(f".SH {escape(text[:-1].upper())}")
        elif text:
            out += [".PP", escape(text)]
    return out


def _page(name, about, body, head):
    version, day = head
    return "\n".join(
        [
            f'.TH "{name.upper()}" "1" "{day}" "baton {version}" "User Commands"',
            ".SH NAME",
            f"{escape(name)} \\- {escape(about)}",
            *body,
            "",
        ]
    )


def commands(usage):
    """[(name, about)] of the table that `baton --help` prints."""
    return re.findall(r"^  ([a-z]\S*) +(\S.*)$", usage, re.MULTILINE)


def pages(say, version, epoch):
    """{file name: text}. `say(*args)` gives what the program prints for these arguments."""
    day = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%d")
    head = (version, day)
    table = commands(say("--help"))
    if not table:
        raise SystemExit("man_pages.py: `baton --help` lists no subcommand")
    body = [".SH SYNOPSIS", ".B baton", "SUBCOMMAND [flags]", ".SH SUBCOMMANDS"]
    for name, about in table:
        body += [".TP", f".BR baton\\-{escape(name)} (1)", escape(about)]
    about = "disaggregated LLM inference server"
    body += [".SH EXIT STATUS", "0; 1 for a failure; 2 for a command line that is wrong."]
    found = {"baton.1": _page("baton", about, body, head)}
    for name, about in table:
        lines = say(name, "--help").splitlines()
        usage = next((i for i, line in enumerate(lines) if line.startswith("Usage:")), None)
        if usage is None:
            raise SystemExit(f"man_pages.py: `baton {name} --help` has no line of usage")
        body = [
            ".SH SYNOPSIS",
            escape(lines[usage].removeprefix("Usage:").strip()),
            ".SH DESCRIPTION",
            *(escape(line) for line in lines[:usage] if line.strip()),
            *_body(lines[usage + 1 :]),
            ".SH SEE ALSO",
            ".BR baton (1)",
        ]
        found[f"baton-{name}.1"] = _page(f"baton-{name}", about, body, head)
    return found
