"""TensorBoard: the rows of a run as scalars, over the run's own steps."""

import pathlib
import time

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from keras_transformer.training.metric_logging import Row, dev_values

# The x-axes of TensorBoard's charts show these already.
_NOT_SHOWN = {"step", "seconds"}


class TensorBoardLog:
    """Writes two runs to a folder, "train" and "dev", whose charts TensorBoard lays together.

    Args:
        folder: where to.
        step: where the run resumes; what an earlier process wrote beyond it is hidden.
    """

    def __init__(self, folder: pathlib.Path, step: int = 0) -> None:
        self._folder = folder
        self._step = step
        self._writers: dict[str, EventFileWriter] = {}

    def write(self, row: Row) -> None:
        """Writes one row; its numbers about the dev set go to the run "dev"."""
        of_dev = dev_values(row)
        dev = {name.removeprefix("val_"): value for name, value in of_dev.items()}
        train = {name: row[name] for name in row.keys() - of_dev.keys() - _NOT_SHOWN}
        self._add("train", train, int(row["step"]))
        if dev:
            self._add("dev", dev, int(row["step"]))

    def _add(self, run: str, scalars: Row, step: int) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        writer = self._writer(run)
        writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        writer.flush()

    def _writer(self, run: str) -> EventFileWriter:
        if run not in self._writers:
            self._writers[run] = writer = EventFileWriter(str(self._folder / run))
            # TensorBoard drops what an earlier process wrote from the step of this event on.
            start = SessionLog(status=SessionLog.START)
            writer.add_event(Event(wall_time=time.time(), step=self._step + 1, session_log=start))
        return self._writers[run]
