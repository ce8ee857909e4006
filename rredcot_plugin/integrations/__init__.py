"""The only part of the package that imports a host: `verl` (the method) and `verl_cpu` (the CPU platform)."""
