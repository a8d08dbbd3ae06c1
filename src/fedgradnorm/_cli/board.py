"""Several runs as they are trained, on stderr: a line for each that has finished."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import Progress, TaskID

from fedgradnorm._cli.output import err

if TYPE_CHECKING:
    from fedgradnorm.experiments._compare import News, Watch


@contextmanager
def showing_runs() -> Iterator[Watch]:
    """What a comparison tells its news to.

    A line stays of every run that has finished. Below it, a terminal shows a bar for each run under
    way, and one for all of them.
    """
    bars = Progress(console=err, transient=True, disable=not err.is_terminal)
    whole, over = bars.add_task("all runs", total=None), 0
    shown: dict[str, TaskID] = {}

    def watch(news: Sequence[News]) -> None:
        nonlocal over
        for item in news:
            title = item.trial.title
            if item.done:
                over += 1
                if title in shown:
                    bars.remove_task(shown.pop(title))
                how = f"failed: {item.failed}" if item.failed else "done"
                line = f"{title}: {how}; {over} of {item.count} runs done"
                err.print(line, markup=False, highlight=False, soft_wrap=True)
            elif item.event is not None:
                if title not in shown:
                    shown[title] = bars.add_task(title)
                bars.update(shown[title], completed=item.event.round, total=item.event.rounds)
            under_way = sum(bar.percentage for bar in bars.tasks if bar.id != whole) / 100
            bars.update(whole, completed=over + under_way, total=item.count)

    with bars:
        yield watch
