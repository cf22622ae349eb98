"""The run around a template's loop: opened, logged, saved, stopped, finished.

A template keeps its state, its step and its loop. What is here would be a bug to do otherwise.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from chomp.checkpoint import (
    Checkpointer,
    CheckpointMetadata,
    LoadOptions,
    StepFolder,
    restore_latest_or_initialize,
)
from chomp.config import config_hash, config_to_mapping, validated
from chomp.data import GrugLmExample, iter_from_step
from chomp.errors import ChompError, HookError, NonFiniteError, RunInterrupted, require
from chomp.kernels.precision import Precision
from chomp.mesh import compiler_options, create_mesh, prepare_devices, require_fits_mesh
from chomp.storage.secrets import without_secrets
from chomp.training import resume
from chomp.training.evaluation import build_evaluators, build_tagged_eval_callback
from chomp.training.profiler import traced_steps
from chomp.training.run_folder import RunFolder, derived_values, environment
from chomp.training.samples import Samples
from chomp.training.setup import (
    compile_step,
    open_data,
    require_step_memory,
    start_report,
    with_reproducible_attention,
)
from chomp.training.step_log import LoopClock, StepLog, require_metrics
from chomp.training.stopping import NonFiniteGuard, SaveStopSync, StopSignal

log = logging.getLogger(__name__)

Hook = Callable[[Any, int], object]
"""A function of (state, completed steps), called between two steps."""

TrainStep = Callable[[Any, GrugLmExample], tuple[Any, Mapping[str, Any]]]
"""A template's step: the state and a batch give the next state and metrics."""


class _ScheduledHook(NamedTuple):
    function: Hook
    every: int | None  # steps
    at_end: bool


@contextmanager
def open_run(config: Any, *, template: str, fresh_state: Callable[[Any], Any]) -> Iterator["Run"]:
    """The run of a template, ready for its first step: what can fail early has been tried.

    `config` is the template's run config, `template` its train.py (`__file__`), and
    `fresh_state(config)` makes the state that a new run begins with.
    """
    with ExitStack() as stack:
        yield Run(config, Path(template).parent, fresh_state, stack)


class Run:
    """One attempt at a run. The loop takes `batches()`, and calls `after_step` after each one.

    `config` is the run's config on these devices, `state` the newest state: at first the one to go
    on from, fresh or restored and proven. `mesh`, `mp`, `folder`, `tokenizer`, `loader`,
    `eval_datasets`, `tracker` and `clock` are there for hooks.
    """

    def __init__(
        self, config: Any, template: Path, fresh_state: Callable[[Any], Any], stack: ExitStack
    ) -> None:
        config = validated(config)  # whoever made it, and however
        prepare_devices()  # before JAX looks for them
        self.mesh = create_mesh(config.mesh)
        self.config = config = with_reproducible_attention(config, self.mesh)
        self.mp = Precision.parse(config.trainer.precision)
        self.folder = folder = stack.enter_context(
            RunFolder.open(config.output_path, config.logging)
        )
        stack.enter_context(jax.set_mesh(self.mesh))
        self._signals = stack.enter_context(StopSignal())
        self._stack = stack

        # What the run reads.
        self.tokenizer, self.loader, self.eval_datasets = open_data(config, self.mesh)
        loader = stack.enter_context(closing(self.loader))
        make_state = partial(fresh_state, config)
        require_fits_mesh(make_state, self.mesh)  # before anything is allocated

        # The state to go on from: the newest checkpoint that can be trusted, or a fresh one.
        self._total_steps = total_steps = config.trainer.steps
        schedule_start = config.optimizer.schedule_start
        compared = resume.without_prefix(config, folder.path)
        metadata = CheckpointMetadata(
            step=0,
            run_id=config.run_id,
            attempt=folder.attempt,
            config_hash=config_hash(compared),
            config=without_secrets(config_to_mapping(compared)),
            data_fingerprint=loader.dataset.fingerprint(),
            data_offset=0,
            tokens_seen=0,
            tokenizer_hash=self.tokenizer.content_hash,
            mesh=dict(self.mesh.shape),
            environment=environment(),
        )

        def prove(found: StepFolder) -> None:
            resume.require_schedule_start(schedule_start, found)
            resume.require_not_past(total_steps, found)
            loader.restore_streams(found.metadata.stream_states)
            resume.require_same_batches(loader, found, total_steps=total_steps)

        beginning = restore_latest_or_initialize(
            folder.checkpoints,
            make_state,
            about=metadata,
            mesh=self.mesh,
            config=config,
            options=LoadOptions.of(config.trainer),
            data_offset_at=loader.batches.examples_before,
            past_fingerprint=partial(resume.past_fingerprint, loader),
            proof=prove,
        )
        found, self.state = beginning.found, beginning.state
        resume.require_schedule_start(schedule_start, found)
        if found is None and folder.attempt > 1:
            path, attempt = folder.checkpoints, folder.attempt
            log.warning("%s has no checkpoint: attempt %d starts at step 0", path, attempt)
        else:
            log.info("starting from %s (%s)", found.path if found else "step 0", beginning.reason)

        # Only now: a config that was refused must not describe what the folder holds.
        folder.describe(config, template, self.tokenizer, derived_values(config))
        self._signals.raise_if_received()  # before minutes of compiling

        # What watches the loop and keeps its results.
        self._completed = int(self.state.step)
        steps = range(self._completed, total_steps)
        max_steps = config.trainer.max_steps  # of this start, which ends then as by a signal
        self._last_of_start = None if max_steps is None else steps.start + max_steps
        before = metadata if found is None else found.metadata
        self.clock = LoopClock()
        self._guard = NonFiniteGuard(config.trainer.nonfinite_policy, before.skipped_steps)
        self._sync = SaveStopSync()
        self._hooks: list[_ScheduledHook] = []
        report = start_report(config, loader, self.state, steps=steps)
        self._checkpointer = Checkpointer(
            folder.checkpoints,
            config.checkpoint,
            replace(metadata, continues=beginning.continues, template_hash=folder.template_hash()),
        )
        self.tracker = stack.enter_context(
            folder.tracker(config.logging, total_steps=total_steps, start_step=steps.start)
        )
        stack.enter_context(self._checkpointer)
        self.tracker.log_summary(report)
        self._step_log = StepLog(
            self,
            guard=self._guard,
            steps=steps,
            tokens_seen=before.tokens_seen,
            saves=self._checkpointer.take_reports,
        )

    # ---- Hooks: functions that are called between two steps --------------------------------------

    def every(self, steps: int | None, hook: Hook, *, at_end: bool = False) -> None:
        """Call `hook(state, completed_steps)` after every so many steps; None: never.

        `at_end`: once after the last step too, when its state is saved. A hook that raises ends the
        run, with its state saved and the hook named.
        """
        require(
            steps is None or steps >= 1,
            f"run.every({steps}, …)",
            allowed="a number of steps of at least 1, or None",
            fix="pass None for a hook that is not called between steps",
        )
        self._hooks.append(_ScheduledHook(hook, steps, at_end))

    def evaluation(self, losses_of: Callable[[Any, Any], Any]) -> Hook:
        """A hook that evaluates held-out data as `config.eval` says, and logs the result.

        `losses_of(params, batch)` gives the unweighted loss of every position.
        """
        evaluators = build_evaluators(
            self.config.eval, self, losses_of, has_average=self.config.trainer.ema_beta is not None
        )
        evaluate = build_tagged_eval_callback(evaluators, self.tracker, self._step_log.unlogged)

        def evaluation(state: Any, completed: int) -> None:
            with self.clock.phase("eval"):
                evaluate({"current": state.params, "ema": state.ema_params}, completed)

        return evaluation

    def harness(self, scores_of: Callable[[Any, Any], Any]) -> Hook:
        """A hook that runs the lm-eval tasks of `config.eval.harness`, and keeps their results.

        On the averaged weights, where there are any. `scores_of(params, batch)` gives losses, and
        whether each next token was the likeliest one.
        """
        from chomp.training.harness import Harness  # noqa: PLC0415  # needs lm-eval

        tasks = Harness(self.config.eval.harness, scores_of, self)

        def harness(state: Any, completed: int) -> None:
            name = "params" if state.ema_params is None else "ema"
            tasks.run(_best_weights(state), name, completed)

        return harness

    def sampling(self) -> Hook:
        """A hook that writes samples as `config.samples` says, by the averaged weights if any."""
        samples = Samples(self)

        def sampling(state: Any, completed: int) -> None:
            samples.write(_best_weights(state), completed)

        return sampling

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Log numbers of your own, at the last completed step; for hooks."""
        self.tracker.log(dict(metrics), step=self._completed - 1)

    # ---- The loop --------------------------------------------------------------------------------

    def compile(self, train_step: Any) -> TrainStep:
        """The jitted step, compiled when a batch of a new shape comes.

        Ahead of the call, so that compiling is no step's time, and a step that needs more memory
        than a device has is a `ConfigError`.
        """
        programs: dict[Any, Any] = {}
        options = compiler_options(self.mesh, is_reproducible=self.config.trainer.reproducible)

        def step(state: Any, batch: GrugLmExample) -> tuple[Any, Mapping[str, Any]]:
            # Attention may need another program for a batch of very many documents.
            kind = (batch.tokens.shape, jax.tree.structure(batch))
            if kind not in programs:
                with self.clock.phase("compile"):
                    programs[kind] = compile_step(train_step, state, batch, options)
                    require_step_memory(programs[kind], is_state_held=True)
            result: tuple[Any, Mapping[str, Any]] = programs[kind](state, batch)
            return result

        return step

    def batches(self) -> Iterator[tuple[int, GrugLmExample]]:
        """The 0-based index and the batch of each step that is left.

        Batches are made ahead by a thread and lie on the devices already.
        """
        steps = self._steps()
        self._stack.callback(steps.close)  # also if the loop ends by an error
        return steps

    def _steps(self) -> Generator[tuple[int, GrugLmExample], None, None]:
        start = self._completed
        self.clock.read()  # the time of setting up belongs to no step
        with (
            closing(iter_from_step(self.loader, start, self._total_steps)) as batches,
            closing(traced_steps(self.config, self.clock, start_step=start)) as steps,
        ):
            for step in steps:
                with self.clock.phase("loading"):
                    batch = next(batches)
                yield step, batch
                if self._completed != step + 1:
                    raise ChompError(
                        f"a loop that took the batch of step {step + 1} without after_step({step})",
                        allowed="one call of run.after_step(state, metrics) for each batch",
                        fix="call it at the end of the loop's body",
                    )

    def after_step(self, state: Any, metrics: Mapping[str, jax.Array]) -> None:
        """Log a step that was just started, and do what is due: hooks, save, stop.

        Raises what ends the run early: `RunInterrupted` after a signal, `NonFiniteError` as
        `train.nonfinite_policy` says, `HookError`.
        """
        require_metrics(metrics)  # by names and shapes: nothing is waited for
        step, self.state = self._completed, state
        self._completed = completed = step + 1
        self._step_log.add(step, metrics)  # read when the next step is under way
        is_last = completed == self._total_steps
        for hook in self._hooks:
            is_due = hook.every is not None and completed % hook.every == 0
            if is_due and not (is_last and hook.at_end):  # then `finish` calls it
                self._step_log.flush()  # a bad step is known before it is evaluated
                with self.clock.phase("hook"):
                    self._call(hook.function)
        # By all processes together: a clock or a signal is one process's own.
        is_save_due, cause = self._sync.decide(
            completed,
            wants_save=self._checkpointer.is_due(completed),
            must_save=self._checkpointer.is_permanent(completed),
            stop=self._signals.received,
        )
        stops = cause is not None or completed == self._last_of_start
        if is_save_due or stops or self._guard.stopped_by:
            self._step_log.flush()  # a step that ends the run ends it here, before it is saved
            with self.clock.phase("checkpoint"):
                self._save()
        if self._guard.stopped_by:
            self._guard.raise_if_stopped(self._checkpointer.wait())
        if stops and not is_last:
            raise self._signals.interruption(self._checkpointer.wait(), cause)

    def finish(self, state: Any) -> None:
        """Save the last state for good, then call the hooks that are due at the end."""
        self.state = state
        self._step_log.flush()
        self._save()  # first: what follows may fail
        saved_at = self._checkpointer.wait()
        self._guard.raise_if_stopped(saved_at)  # the last step was bad
        for hook in self._hooks:
            if hook.at_end:
                self._signals.raise_if_received(saved_at)  # the same command does what is left
                self._call(hook.function)
        self._step_log.close()

    def _call(self, hook: Hook) -> None:
        try:
            hook(self.state, self._completed)
        except (RunInterrupted, NonFiniteError):
            raise
        except Exception as error:
            name = getattr(hook, "__name__", type(hook).__name__)
            log.exception("the hook %s failed after step %d", name, self._completed)
            # Saving takes all processes, and the others did not fail.
            is_saved = jax.process_count() == 1
            if is_saved:
                self._step_log.flush()
                self._save()
            place = self._checkpointer.wait()
            raise HookError(
                f"the hook {name} after {self._completed} steps: {type(error).__name__}: {error}",
                allowed="hooks that return",
                fix="correct the hook, and run the same command: it continues from "
                + (place if is_saved else f"the newest checkpoint in {place}"),
                hook=name,
            ) from error

    def _save(self) -> None:
        """Begin to save the state: after the last step for good."""
        completed, loader = self._completed, self.loader
        streams = loader.stream_states(completed)  # where sources without random access stand
        hashes = partial(resume.next_batch_hashes, loader, completed, self._total_steps, streams)
        self._checkpointer.save(
            self.state,
            step=completed,
            data_offset=loader.batches.examples_before(completed),
            stream_states=streams,
            next_batches=hashes,
            tokens_seen=self._step_log.tokens_seen,
            skipped_steps=self._guard.skipped_steps,
            is_final=completed == self._total_steps,
        )


def _best_weights(state: Any) -> Any:
    return state.params if state.ema_params is None else state.ema_params
