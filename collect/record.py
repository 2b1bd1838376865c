"""What is known of a kernel on a device, and where its new measurements go."""

from foretune.collect.benchmark import environment
from foretune.datasets import RunLog
from foretune.device import Device
from foretune.kernel import Kernel
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.space import Configuration


class MeasurementCache:
    """The measurements of one kernel on one device in a run log; nothing, without one.

    Args:
        kernel: what is measured.
        device: on what.
        log: where measurements go; those it has are not made again.
    """

    def __init__(self, kernel: Kernel, device: Device, log: RunLog | None = None) -> None:
        self.kernel = kernel
        self.device = device
        self.log = log

    def find(self, problem: Problem, config: Configuration) -> Measurement | None:
        """Return what is known of a configuration, unless other code or versions measured it."""
        if self.log is None:
            return None
        found = self.log.find((self.kernel.name, self.device.name, problem, config))
        current = found is not None and found.environment == environment(self.kernel)
        return found if current else None

    def append(self, measurement: Measurement) -> None:
        """Keep a new measurement.

        Raises:
            RunTableError: it is impossible; it is not written.
            OutputError: the log cannot be written.
        """
        if self.log is not None:
            self.log.append(measurement)
