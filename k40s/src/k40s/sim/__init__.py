"""Virtual time over the same pure parts: what would happen, for one to 5,000 nodes.

outcomes = simulate(read_scenario(text))
print(report.text(outcomes)); report.write(outcomes, folder)
"""

from k40s.placement import SCORERS
from k40s.sim import report
from k40s.sim.engine import Plant, Progress, unheard
from k40s.sim.outcome import Outcome, Sample
from k40s.sim.scenario import Scenario, read_scenario, scenario_yaml, with_choices


def simulate(scenario: Scenario, progress: Progress = unheard) -> list[Outcome]:
    """One run for each scorer of the scenario, all with the same events; the same seed gives the same outcomes."""
    return [Plant(scenario, SCORERS[name], progress).run() for name in scenario.spec.scorers]


__all__ = [
    "Outcome",
    "Plant",
    "Progress",
    "Sample",
    "Scenario",
    "read_scenario",
    "report",
    "scenario_yaml",
    "simulate",
    "with_choices",
]
