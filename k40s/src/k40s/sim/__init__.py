"""Virtual time over the same pure parts: what would happen, for one to 5,000 nodes.

outcomes = simulate(read_scenario(text))
print(report.text(outcomes)); report.write(outcomes, folder)
"""

from k40s.placement import SCORERS
from k40s.sim import report
from k40s.sim.engine import Outcome, Plant, Sample
from k40s.sim.scenario import Scenario, read_scenario, scenario_yaml


def simulate(scenario: Scenario) -> list[Outcome]:
    """One run for each scorer of the scenario, all with the same events; the same seed gives the same outcomes."""
    return [Plant(scenario, SCORERS[name]).run() for name in scenario.spec.scorers]


__all__ = ["Outcome", "Plant", "Sample", "Scenario", "read_scenario", "report", "scenario_yaml", "simulate"]
