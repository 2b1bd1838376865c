"""Tests grams of CO2 of measured launches: `foretune.cli.carbon`."""

from types import SimpleNamespace

import pytest

from foretune.cli.carbon import launch_energies, show_carbon
from foretune.cli.output import Output
from foretune.problem import Problem


def result(power_w):
    """Return what is read of a tuned problem: 2 ms by default, 1 ms at best."""
    default = SimpleNamespace(config={"b": 1})
    best = SimpleNamespace(config={"b": 2})
    trace = [SimpleNamespace(config={"b": b}, time_ms=2.0 / b, power_w=power_w) for b in (1, 2)]
    return SimpleNamespace(problem=Problem(n=8), baseline=default, winner=best, trace=trace)


def test_carbon_is_energy_of_default_and_winner_times_grams(capsys):
    energies = launch_energies([result(90.0)])
    assert energies == {"n=8 default": 180.0, "n=8 best": 90.0}
    shown = show_carbon(Output(False), 400.0, energies, "launches")["carbon"]
    # 90 mJ a million times are 0.025 kWh
    assert shown["g_per_million_launches"]["n=8 best"] == pytest.approx(10.0)
    assert "n=8 best 10 g (400 g/kWh, as given)" in " ".join(capsys.readouterr().out.split())


def test_carbon_without_meter_is_nan(capsys):
    shown = show_carbon(Output(False), 400.0, launch_energies([result(float("nan"))]), "launches")
    assert all(g != g for g in shown["carbon"]["g_per_million_launches"].values())
    assert "because their power is unknown" in " ".join(capsys.readouterr().out.split())
    assert show_carbon(Output(False), None, {}, "launches") == {}
