"""Between the method and whoever brings rollouts: a trainer, or `rredcot score`. No host is imported here."""
