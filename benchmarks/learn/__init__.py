"""The benchmark on learning: systems, a lean trainer around verl's own loss, runs, schedule, analysis and pictures."""
