"""A clock that tests advance, so that no test depends on how busy the machine is."""


class FakeClock:
    """Stands in for the module ``time`` in the module under test."""

    def __init__(self):
        self.now_s = 0.0

    def perf_counter_ns(self):
        return round(self.now_s * 1e9)

    def perf_counter(self):
        return self.now_s

    monotonic = perf_counter

    def sleep(self, seconds):
        self.now_s += seconds

    def launch(self, *times_ms):
        """Return a launch that takes these times in turn, then the last one again and again."""
        left = list(times_ms)

        def launch():
            self.sleep(1e-3 * (left.pop(0) if len(left) > 1 else left[0]))

        return launch
