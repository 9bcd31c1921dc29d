"""Work for several workers: any `concurrent.futures.Executor`, of threads, of processes, or of a Dask cluster.

Rows and heads are independent, so whoever computes them makes `Task`s: a function, the *subject* that several tasks
share (an attention, and what goes with it), and a few small arguments, such as which rows. `Work` runs them:

- At most twice as many tasks are given out as there are workers. Results come in the order in which they are ready;
  the caller puts them in their places, so that the order does not matter.
- Threads are handed the subject itself. To others it is pickled without its numbers (`packing`): a tensor of a saved
  capture is named by its file, which each worker maps (`saved_tensors`); others go once for each subject into a
  temporary file that pools map, or to each Dask worker by `scatter`: gone when the last task of the subject is done.
- A worker that is lost takes nothing with it: its tasks are done again, on a fresh pool where the old one is broken, in
  this process where there is none, and a warning says so. A task that loses its worker three times is an error.
- An error names its task. What other tasks had finished by then, or by an interrupt, is kept with the subject
  (`kept_results`), so that the same call only does the rest.
- In another process a task has one thread of torch, since there are as many tasks as workers. A pool that forks is safe
  for that reason: a process that was forked from one whose threads had work hangs when it starts threads of its own.

Tasks compute as this process would. A merge of pieces in their places is equal bit by bit; sums over rows are added in
float64, task by task, so that they differ by no more than rounding does there.
"""
