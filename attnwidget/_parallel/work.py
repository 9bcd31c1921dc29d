"""Tasks submitted to workers, and their results gathered as they arrive."""

from __future__ import annotations

import time
import warnings
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import ExitStack
from typing import Any

from .._utils.mutation import levels_to_the_caller
from .._utils.progress_bars import progress_bar
from . import kept_results
from .executors import Cluster, Here, SentSubject, workers_of
from .packing import Parcel, unseal
from .task import Subject, Task

AHEAD = 2  # submitted tasks for each worker, with the running one
MOST_LOSSES = 3  # of workers for one task
SCRIPT = "a script that starts processes begins its work below if __name__ == '__main__'"
WAIT = 0.2  # seconds between two looks at an interrupt
SILENT = 60.0  # seconds without an answer of any worker, after which a warning says so; then after twice as many
IF_SILENT = (
    "no worker has answered for {:,.0f} seconds, and one of them should be at {}. Wait if that is long work. If the "
    "workers do nothing, interrupt, which keeps finished results, and give a new executor, such as "
    "ProcessPoolExecutor({}, mp_context=multiprocessing.get_context('spawn'))"
)


class Work:
    """Tasks on their way through workers.

    Args:
        tasks: in any order; tasks of one subject must be consecutive.
        executor: whose workers run them; None: this thread, one with each step.

    Attributes:
        left: the number of tasks without a result.
        share: the finished share of their cells.
    """

    def __init__(self, tasks: Sequence[Task], executor: Executor | None) -> None:
        self._tasks, self._workers = [*tasks], workers_of(executor)
        self._waiting, self._given = deque(range(len(tasks))), dict[Future[Any], int]()
        self._sent: dict[Subject, SentSubject] = {}
        self._of_subject = Counter(task.subject for task in tasks)  # the number without a result
        self._losses: Counter[int] = Counter()
        self._done, self._all = 0.0, sum(task.cells for task in tasks) or 1.0
        self._error: RuntimeError | None = None
        self._heard: float | None = None  # when a worker answered last, or was given work after it had none
        self._silent = SILENT  # the silence after which the next warning comes
        self.left = len(tasks)

    def add(self, task: Task) -> None:
        """Add a task behind all others."""
        self._waiting.append(len(self._tasks))
        self._tasks.append(task)
        self._of_subject[task.subject] += 1
        self._all += task.cells
        self.left += 1

    @property
    def share(self) -> float:
        """The finished share."""
        return 1.0 if self.left == 0 else min(self._done / self._all, 1.0)

    @property
    def size(self) -> int:
        """The number of workers, busy or not."""
        return self._workers.count()

    @property
    def workers(self) -> int:
        """The number of busy workers."""
        return min(self._workers.count(), max(1, len(self._given) + len(self._waiting)))

    def step(self, seconds: float = WAIT) -> list[tuple[int, Any]]:
        """Submit tasks, wait for a result, and return the numbers and results that have arrived.

        Args:
            seconds: the longest wait; a task in this thread runs to its end.

        Raises:
            RuntimeError: a task failed, with its name and the reason.
        """
        if self._error is not None:
            raise self._error
        self._leave_the_lost()
        self._give_out()
        found: list[tuple[int, Any]] = []
        lost: list[int] = []
        ready, _ = wait(self._given, seconds, return_when=FIRST_COMPLETED)
        self._tell_silence(heard=bool(ready))
        for future in ready:
            number = self._given.pop(future)
            error: BaseException | None
            try:
                error = future.exception()
            except BaseException as cancelled:  # somebody else cancelled it
                error = cancelled
            if error is None:
                try:
                    found.append((number, _opened(future.result())))
                except (TypeError, ValueError) as unreadable:
                    error = unreadable
            if error is None:
                self._count_done(number)
            elif self._workers.is_lost(error):
                lost.append(number)
            else:
                self._error = self._failed(number, error)
                self._error.__cause__ = error
        if lost and self._error is None:
            self._again(lost)
        if self._error is not None and not found:
            raise self._error
        return found  # results that have arrived come first

    def close(self) -> None:
        """Cancel all tasks that are not done; running ones finish, and their results are ignored."""
        for future in self._given:
            future.cancel()
        self._given.clear()
        self._waiting.clear()
        self._close_sent()
        self._workers.close()

    @property
    def _is_here(self) -> bool:
        return type(self._workers) is Here

    def _close_sent(self) -> None:
        for sent in self._sent.values():
            sent.close()
        self._sent.clear()

    def _give_out(self) -> None:
        most = AHEAD * max(1, self._workers.count())
        while self._waiting and len(self._given) < (1 if self._is_here else most):
            number = self._waiting.popleft()
            task = self._tasks[number]
            try:
                if task.subject not in self._sent:
                    self._sent[task.subject] = self._workers.send(task.subject)
                future = self._workers.submit(task, self._sent[task.subject])
            except Exception as error:
                if not self._workers.is_lost(error):
                    raise
                self._again([number])
                return
            self._given[future] = number

    def _tell_silence(self, *, heard: bool) -> None:
        """Warn if no worker has answered for long."""
        now = time.monotonic()
        if heard or self._heard is None or not self._given:
            self._heard, self._silent = now, SILENT
        elif now - self._heard >= self._silent:
            waited, self._silent = now - self._heard, 2 * (now - self._heard)
            where = self._tasks[min(self._given.values())].where
            message = IF_SILENT.format(waited, where, self._workers.count() or 1)
            warnings.warn(message, UserWarning, stacklevel=levels_to_the_caller())

    def _count_done(self, number: int) -> None:
        task = self._tasks[number]
        self._done, self.left = self._done + task.cells, self.left - 1
        self._of_subject[task.subject] -= 1
        if not self._of_subject[task.subject] and task.subject in self._sent:
            self._sent.pop(task.subject).close()

    def _again(self, lost: list[int]) -> None:
        """Resubmit the tasks of lost workers and their successors."""
        numbers = sorted({*lost, *self._given.values()})
        self._losses.update(numbers)
        worst = max(numbers, key=lambda number: self._losses[number])
        if self._losses[worst] >= MOST_LOSSES:
            script = "" if self._done else f", or none can start: {SCRIPT}"
            raise RuntimeError(
                f"{self._tasks[worst].where}: its worker was lost {MOST_LOSSES} times, as when there is too little "
                f"memory{script}: give fewer workers, or executor=None to compute it here"
            )
        for future in self._given:
            future.cancel()
        self._given.clear()
        self._close_sent()  # data of lost workers is sent again
        self._waiting.extendleft(reversed(numbers))
        self._replace_workers("a worker was lost")

    def _leave_the_lost(self) -> None:
        """Run here the tasks that no worker is left for."""
        if isinstance(self._workers, Cluster) and self.left and self._workers.is_gone:
            self._waiting.extendleft(sorted(self._given.values(), reverse=True))
            self._given.clear()
            self._sent.clear()  # the scheduler has forgotten all of it
            self._workers = Here()
            self._warn("the cluster has no workers any more", "this process")

    def _replace_workers(self, why: str) -> None:
        before = self._workers
        self._workers = before.renewed()
        by = "this process" if self._is_here else "other workers" if self._workers is before else "a new pool"
        self._warn(why, by)

    def _warn(self, why: str, by: str) -> None:
        done = len(self._tasks) - self.left
        warnings.warn(
            f"{why} after {done:,} of {len(self._tasks):,} tasks: the rest is done by {by}, and nothing is lost",
            UserWarning,
            stacklevel=levels_to_the_caller(),
        )

    def _failed(self, number: int, error: BaseException) -> RuntimeError:
        words = str(error) or type(error).__name__
        return RuntimeError(f"{self._tasks[number].where}: {words}")


def _opened(result: Any) -> Any:
    """Return a result as the task returned it, whichever way it came."""
    return unseal(result) if isinstance(result, Parcel) else result


def gather(
    tasks: Sequence[Task],
    executor: Executor | None,
    *,
    progress: bool = False,
    desc: str = "tasks",
) -> list[Any]:
    """Run tasks to the end, and return their results in the order of the tasks.

    After an error or an interrupt, finished results are kept, and the same call continues from them.

    Args:
        tasks: tasks of one subject must be consecutive.
        executor: whose workers run them; None: this thread.
        progress: draw a bar with the time left and the number of workers, if tqdm is installed.
        desc: the label of the bar.

    Raises:
        RuntimeError: a task failed, with its name and the reason.
        TypeError: it is not an executor; or something cannot be sent to another process.
    """
    found = kept_results.take(tasks)
    numbers = [number for number in range(len(tasks)) if number not in found]
    work = Work([tasks[number] for number in numbers], executor)
    try:
        with ExitStack() as stack:
            bar = stack.enter_context(progress_bar()(total=100, unit="%", desc=desc)) if progress else None
            while work.left:
                found |= {numbers[at]: result for at, result in work.step()}
                if bar is not None:
                    bar.set_postfix_str(f"{work.workers} worker{'s' * (work.workers != 1)}", refresh=False)
                    bar.update(round(100 * work.share) - bar.n)
    except BaseException:
        kept_results.keep(tasks, found)
        raise
    finally:
        work.close()
    return [found[number] for number in range(len(tasks))]
