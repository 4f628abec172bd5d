"""Shows ninja's output as one line of progress with an estimate of what is left; whatever is not a
step (a warning, an error) is printed as it is. On a terminal the line is drawn anew, elsewhere a
line comes every 20 seconds. Usage: ninja ... | ninja_progress.py
"""

import re
import sys
import time

STEP = re.compile(r"\[(\d+)/(\d+)\] ")
EVERY_S = 20


def text_of(done, total, elapsed_s):
    """`done` is at least 1."""
    left_s = elapsed_s * (total - done) / done
    left = f"{left_s / 60:.0f} min" if left_s >= 90 else f"{left_s:.0f} s"
    return f"built {done} of {total} steps, about {left} left"


def main():
    is_terminal = sys.stdout.isatty()
    begin = time.monotonic()
    drawn_s = 0.0
    is_step = False
    for line in sys.stdin:
        match = STEP.match(line)
        if match is None:
            print(("\r\033[K" if is_terminal and is_step else "") + line, end="", flush=True)
            is_step = False
            continue
        done, total = int(match[1]), int(match[2])
        elapsed_s = time.monotonic() - begin
        # Ninja counts what it does before the build, such as looking for new files, as step 0.
        if done == 0 or (done < total and elapsed_s - drawn_s < (0.2 if is_terminal else EVERY_S)):
            continue
        drawn_s = elapsed_s
        text = text_of(done, total, elapsed_s)
        begin_line, end_line = ("\r\033[K", "") if is_terminal else ("", "\n")
        print(begin_line + text, end=end_line, flush=True)
        is_step = True
    if is_terminal and is_step:
        print()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
