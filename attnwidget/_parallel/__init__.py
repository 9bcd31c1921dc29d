"""Work for several workers: any `concurrent.futures.Executor`, of threads, of processes, or of a Dask cluster.

Rows and heads are independent, so their computation is cut into `Task`s: a function, a *subject* that several tasks
share (an attention and its settings), and a few small arguments, such as the rows. `Work` runs them:

- At most two tasks per worker are submitted. Results arrive in any order; the caller puts them in their places.
- Threads share the subject itself. For other workers it is pickled without its numbers (`packing`). A tensor of a saved
  capture is named by its file, which each worker maps (`saved_tensors`). Other tensors go once for each subject into a
  temporary file that pools map, or to each Dask worker by `scatter`; both are removed after the subject's last task.
- The tasks of a lost worker run again: on a new pool if the old one is broken, in this process if there is none left. A
  warning says so. A task that loses its worker three times is an error.
- An error names its task. Results that are finished by then, or before an interrupt, are kept with the subject
  (`kept_results`), so that the same call only computes the rest.
- In another process a task has one thread of torch, because there are as many tasks as workers. A process that was
  forked from one with busy threads waits for ever when it starts threads. So all that may start some happens within
  the task: its arguments arrive as bytes, and its result leaves as bytes (`packing`), never by torch's shared memory.
- If no worker answers for long, a warning says so, names a task and tells what to do.

Tasks compute as this process would, but for rounding: last bits depend on the number of threads. Sums over rows are
added in float64, task by task.
"""
