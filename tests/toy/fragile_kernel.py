"""A kernel whose failed launch takes the device along, as a bad access on a GPU does.

Importing it exchanges the stopwatch of the process, for one that waits for that device.
"""

from toy_kernel import Toy

from foretune.collect import benchmark
from foretune.collect.timing import Timer


class FragileDevice(Timer):
    """Fails for ever after `broken` was set."""

    broken = False

    def wait(self):
        if self.broken:
            raise RuntimeError("illegal memory access")


class Fragile(Toy):
    """Breaks the device where `Toy` just cannot run."""

    def build(self, problem, config, inputs):
        launch = super().build(problem, config, inputs)
        if config["behaviour"] != "no run":
            return launch

        def broken():
            DEVICE.broken = True
            return launch()

        return broken


DEVICE = FragileDevice()
benchmark.timer_for = lambda kernel, problem, device: DEVICE
