"""The commands of the `rredcot` command line, one a file; `rredcot_plugin.cli` puts them together."""
